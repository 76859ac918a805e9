"""Checks of one shard, its records and their pictures, in one pass over its bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import IO, Any, BinaryIO, NamedTuple, cast

from imageshards import storage
from imageshards.errors import IndexDamageError
from imageshards.example import Values, decode_example, dtype_of
from imageshards.index import (
    COLUMN_OF,
    IndexRows,
    index_schema,
    index_table,
    read_shard_index,
)
from imageshards.text import counted
from imageshards.tfrecord import Record, RecordError, scan_records

# Problems of one kind that are listed per shard; more are counted.
MAX_PROBLEMS = 5

_BUFFER_BYTES = 1 << 20
_SHA256 = re.compile(rb"[0-9a-f]{64}")
# What is known of a shard only when it was read.
_BY_READING = (
    "checksums", "framing", "records", "classes", "balance", "schema", "labels", "keys",
    "pictures", "index",
)  # fmt: skip
# Columns of the index that no record tells.
_NOT_IN_RECORDS = ("source_bytes",)
_MODES = {1: "L", 3: "RGB"}


class Problem(NamedTuple):
    """One thing that is wrong, as a sentence that names file, record and offset."""

    check: str
    message: str
    file: str | None = None
    record: int | None = None
    offset_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """What a worker needs to know to check one shard.

    Attributes:
        directory: The data set.
        split: The split that the shard belongs to.
        entry: The shard's entry of the manifest.
        compression: `none` or `gzip`.
        features: The manifest's features.
        classes: The manifest's classes.
        first_label: The label of the first of them.
        image: The manifest's image options.
        decode: Numbers of the records whose picture is decoded; None for all.
    """

    directory: str
    split: str
    entry: Mapping[str, Any]
    compression: str
    features: Mapping[str, Mapping[str, Any]]
    classes: tuple[str, ...]
    first_label: int
    image: Mapping[str, Any]
    decode: frozenset[int] | None


@dataclasses.dataclass
class ShardResult:
    """What a worker found in one shard.

    Attributes:
        key_hashes, content_hashes: 64 bits of every record's key, and of the checksum of
            its original picture, in the order of the records; equal ones are candidates
            for duplicates.
        not_looked_at: Checks that could not be made, or not of all its records.
    """

    file: str
    problems: list[Problem] = dataclasses.field(default_factory=list)
    found: Counter[str] = dataclasses.field(default_factory=Counter)
    classes: Counter[str] = dataclasses.field(default_factory=Counter)
    num_records: int = 0
    num_bytes: int = 0
    num_decoded: int = 0
    sha256: str = ""
    key_hashes: array[int] = dataclasses.field(default_factory=lambda: array("Q"))
    content_hashes: array[int] = dataclasses.field(default_factory=lambda: array("Q"))
    not_looked_at: tuple[str, ...] = ()

    @property
    def hidden(self) -> Counter[str]:
        """Problems that were found but, being too many, not listed."""
        return self.found - Counter(problem.check for problem in self.problems)

    def add(self, check: str, what: str, record: Record | RecordError | None = None) -> None:
        """Notes one problem of this shard; `what` has no full stop."""
        self.found[check] += 1
        if self.found[check] > MAX_PROBLEMS:
            return
        if record is None:
            self.problems.append(Problem(check, f"{self.file}: {what}.", self.file))
            return
        number, offset = record.number, record.offset_bytes
        message = f"{self.file}, record {number} at byte {offset}: {what}."
        self.problems.append(Problem(check, message, self.file, number, offset))


def check_shard(task: ShardTask) -> ShardResult:
    """Reads one shard whole and compares it with its entry."""
    result = ShardResult(task.entry["file"])
    path = storage.join(task.directory, result.file)
    rows = IndexRows()
    try:
        with storage.open_read(path) as file:
            hashing = _Hashing(file)
            stream = cast(IO[bytes], io.BufferedReader(hashing, _BUFFER_BYTES))
            result.num_bytes = file.seek(0, os.SEEK_END)
            file.seek(0)
            _check_records(task, result, stream, rows)
            while stream.read(_BUFFER_BYTES):
                pass
            result.sha256 = hashing.sha256.hexdigest()
    except OSError as e:
        missing = isinstance(e, FileNotFoundError)
        reason = "the manifest lists it, but it is missing"
        result.add("files", reason if missing else f"it could not be read ({e.strerror or e})")
        result.not_looked_at = _BY_READING
        return result
    _compare_with_entry(task, result)
    if task.entry.get("index") is not None:
        _check_index(task, result, rows)
    return result


def _check_records(
    task: ShardTask, result: ShardResult, stream: IO[bytes], rows: IndexRows
) -> None:
    for record in scan_records(stream, result.file, task.compression, result.num_bytes):
        result.num_records += 1
        if isinstance(record, RecordError):
            result.add("framing", record.reason, record)
            result.key_hashes.append(0)
            result.content_hashes.append(0)
            continue
        features: dict[str, Values] | None
        try:
            features = decode_example(record.payload)
        except ValueError as e:
            features = None
            result.add("schema", str(e), record)
        if features is not None:
            problems = schema_problems(features, task.features)
            for problem in problems:
                result.add("schema", problem, record)
            if not problems:
                _check_content(task, result, record, features)
                num_bytes = record.next_offset_bytes - record.offset_bytes
                rows.add(features, num_bytes, source_bytes=None)
        result.key_hashes.append(_hash(features, "image/filename"))
        result.content_hashes.append(_hash(features, "image/key/sha256"))


def schema_problems(
    features: Mapping[str, Values], declared: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Where a record's features differ from the manifest's, as phrases."""
    problems = [f"feature {name!r} is missing" for name in declared if name not in features]
    for name, values in features.items():
        spec = declared.get(name)
        if spec is None:
            problems.append(f"feature {name!r} is not in the manifest")
            continue
        dtype = dtype_of(values)
        if dtype not in ("", spec["dtype"]):
            problems.append(f"feature {name!r} is {dtype}; the manifest says {spec['dtype']}")
        elif spec["shape"] is not None and len(values) != math.prod(spec["shape"]):
            problems.append(
                f"feature {name!r} holds {counted(len(values), 'value')}; the manifest's shape "
                f"{spec['shape']} needs {math.prod(spec['shape'])}"
            )
        elif name in COLUMN_OF and not _is_text(values[0]):
            problems.append(f"feature {name!r} is {values[0]!r}, which is no text in UTF-8")
    return problems


def _is_text(value: bytes | int | float) -> bool:
    """Whether a value of a text or number can be shown."""
    if isinstance(value, bytes):
        try:
            value.decode()
        except UnicodeDecodeError:
            return False
    return True


def _check_content(
    task: ShardTask, result: ShardResult, record: Record, features: Mapping[str, Values]
) -> None:
    text = _bytes(features, "image/class/text")
    label = cast(int, features["image/class/label"][0])
    name = text.decode("utf-8", "surrogateescape")
    result.classes[name] += 1
    class_id = label - task.first_label
    if not 0 <= class_id < len(task.classes):
        first = f", which begin at {task.first_label}" if task.first_label else ""
        what = (
            f"label {label} is outside the manifest's {counted(len(task.classes), 'class')}{first}"
        )
        result.add("labels", what, record)
    elif task.classes[class_id] != name:
        what = (
            f"label {label} is {task.classes[class_id]!r} in the manifest but {name!r} in the text"
        )
        result.add("labels", what, record)
    height, width, channels = (
        cast(int, features[f"image/{side}"][0]) for side in ("height", "width", "channels")
    )
    for problem in _constant_problems(features, channels):
        result.add("schema", problem, record)
    if problem := size_problem(height, width, channels, task.image):
        result.add("pictures", problem, record)
        return
    if task.decode is None or record.number in task.decode:
        result.num_decoded += 1
        encoded = _bytes(features, "image/encoded")
        if problem := picture_problem(encoded, height, width, channels):
            result.add("pictures", problem, record)


def _constant_problems(features: Mapping[str, Values], channels: int) -> Iterator[str]:
    expected = {
        "image/format": b"JPEG",
        "image/colorspace": {1: b"Grayscale", 3: b"RGB"}.get(channels),
    }
    for name, value in expected.items():
        if features[name][0] != value:
            yield f"feature {name!r} is {features[name][0]!r}; expected {value!r}"
    if not _SHA256.fullmatch(_bytes(features, "image/key/sha256")):
        yield "feature 'image/key/sha256' is not 64 hexadecimal digits"


def size_problem(height: int, width: int, channels: int, image: Mapping[str, Any]) -> str:
    """Why a size in pixels cannot come from the manifest's image options; "" if it can.

    Args:
        height, width: Of the encoded picture, in pixels.
        channels: 1 or 3.
        image: The manifest's `image`.
    """
    if channels != image.get("channels", channels):
        return f"it has {channels} channels; the manifest says {image['channels']}"
    size, mode = image["size"], image["mode"]
    target = (size, size) if isinstance(size, int) else tuple(size)
    if min(height, width) < 1:
        return f"its size is {width}x{height} px"
    if mode == "none":
        return ""
    if mode == "shortest":
        right = min(height, width) == target[0]
        smaller = min(height, width) < target[0]
    else:
        right = (height, width) == target
        smaller = height <= target[0] and width <= target[1]
    if right or (smaller and image.get("only_shrink")):
        return ""
    return (
        f"its size is {width}x{height} px, which --resize_mode {mode} to "
        f"{target[1]}x{target[0]} px does not give"
    )


def picture_problem(encoded: bytes, height: int, width: int, channels: int) -> str:
    """Why JPEG bytes do not decode to what their record says; "" if they do."""
    from imageshards.jpeg import open_picture

    try:
        with open_picture(encoded) as picture:
            found = (picture.format, picture.size, picture.mode)
            if found == ("JPEG", (width, height), _MODES.get(channels)):
                picture.load()
                return ""
    except (OSError, SyntaxError, ValueError) as e:
        return f"the picture does not decode ({e})".rstrip(".")
    return (
        f"the picture is {found[0]} {found[1][0]}x{found[1][1]} px {found[2]}; the record says "
        f"JPEG {width}x{height} px with {channels} channels"
    )


def _compare_with_entry(task: ShardTask, result: ShardResult) -> None:
    entry = task.entry
    if result.num_bytes != entry["num_bytes"]:
        what = f"it has {result.num_bytes} bytes; the manifest says {entry['num_bytes']}"
        result.add("files", what)
    if result.num_records != entry["num_records"]:
        held = counted(result.num_records, "record")
        what = f"it holds {held}; the manifest says {entry['num_records']}"
        result.add("records", what)
    if result.found["framing"] or result.found["schema"]:
        # Unreadable records would only be counted a second time.
        result.not_looked_at = ("classes", "index") if entry.get("index") else ("classes",)
        return
    listed = {name: count for name, count in entry["classes"].items() if count}
    for name in sorted(listed.keys() | result.classes.keys()):
        if listed.get(name, 0) != result.classes[name]:
            what = (
                f"it holds {counted(result.classes[name], 'record')} of class {name!r}; "
                f"the manifest says {listed.get(name, 0)}"
            )
            result.add("classes", what)


def _check_index(task: ShardTask, result: ShardResult, rows: IndexRows) -> None:
    """Compares the index of a shard with the rows that its records make."""
    file = task.entry["index"]["file"]
    try:
        found = read_shard_index(task.directory, task.entry, index_schema(task.features))
    except IndexDamageError as e:
        result.add("index", f"its {file} {e.problem}")
        return
    if len(rows) != found.num_rows:
        return  # Records that cannot be read were reported.
    expected = index_table(rows, task.split, result.file, task.compression, task.features)
    for name in found.column_names:
        if name in _NOT_IN_RECORDS or found[name].equals(expected[name]):
            continue
        pairs = zip(found[name].to_pylist(), expected[name].to_pylist(), strict=True)
        for number, (said, held) in enumerate(pairs):
            if repr(said) != repr(held):  # NaN is no difference
                what = f"row {number} of {file} says {name} {said!r}; the record has {held!r}"
                result.add("index", what)


def _bytes(features: Mapping[str, Values], name: str) -> bytes:
    return cast(bytes, features[name][0])


def _hash(features: Mapping[str, Values] | None, name: str) -> int:
    """64 bits that stand for a value; 0 for none."""
    value = features.get(name) if features else None
    if not value or not isinstance(value[0], bytes):
        return 0
    return int.from_bytes(hashlib.blake2b(value[0], digest_size=8).digest(), "little")


class _Hashing(io.RawIOBase):
    """A file that is hashed as it is read, so that its bytes are read once."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer) or 0  # type: ignore[attr-defined]
        self.sha256.update(memoryview(buffer)[:count])
        return count
