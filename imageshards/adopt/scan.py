"""One pass over a TFRecord file: its checksums, labels, features, and a row for every record."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple, cast

from imageshards import storage
from imageshards.adopt.files import reading
from imageshards.errors import UserError
from imageshards.example import Values, decode_example, dtype_of
from imageshards.index import IndexRows
from imageshards.jpeg import open_picture
from imageshards.manifest import CLASS_FEATURE, FILENAME_FEATURE, LABEL_FEATURE, SHA256_FEATURE
from imageshards.progress import with_progress
from imageshards.tfrecord import (
    HEADER_BYTES,
    Record,
    RecordError,
    is_header,
    scan_records,
)

# A class id, or the name of a class where records hold names.
Label = int | str

_REMOTE_THREADS = 8
_MAX_SHOWN = 20


class Roles(NamedTuple):
    """Which feature is the picture, the class, the source file's name, the class's name."""

    image: str
    label: str
    filename: str | None
    text: str | None


@dataclasses.dataclass
class ScannedFile:
    """What one file holds.

    Attributes:
        path: Where it lies.
        num_bytes, sha256: Of the whole file.
        rows: Of its index; class names are there where records have them, else texts beside ids.
        labels: Of every record.
        lengths: Feature → (dtype, number of values) → records that have it so.
        damage: What is wrong with it.
    """

    path: str
    num_bytes: int = 0
    sha256: str = ""
    rows: IndexRows = dataclasses.field(default_factory=IndexRows)
    labels: list[Label] = dataclasses.field(default_factory=list)
    lengths: dict[str, Counter[tuple[str, int]]] = dataclasses.field(
        default_factory=lambda: defaultdict(Counter)
    )
    damage: list[RecordError] = dataclasses.field(default_factory=list)


class _HashedStream:
    """A stream whose bytes are hashed as they are read."""

    def __init__(self, stream: IO[bytes]):
        self._stream, self.digest, self.num_bytes = stream, hashlib.sha256(), 0

    def read(self, count: int) -> bytes:
        data = self._stream.read(count)
        self.digest.update(data)
        self.num_bytes += len(data)
        return data


def scan_all(
    paths: Sequence[str], add_row: Callable[[ScannedFile, Record], None]
) -> dict[str, ScannedFile]:
    """Reads whole files; all damage is told on stderr, the first of it in the error.

    Args:
        paths: Files.
        add_row: Adds the row of a record; raises ValueError where it has none.

    Raises:
        UserError: A file is no TFRecord file or damaged, or cannot be read.
    """
    # A disk is read by one thread; a store answers slowly, so several files are read at once.
    threads = 1 if all(map(storage.is_local, paths)) else _REMOTE_THREADS
    files = storage.map_concurrently(lambda path: _scan(path, add_row), paths, threads)
    found = {f.path: f for f in with_progress(files, len(paths), "files", "reading")}
    damage = [error for file in found.values() for error in file.damage]
    if not damage:
        return found
    for error in damage[:_MAX_SHOWN] if len(damage) > 1 else ():
        print(f"damaged: {error}", file=sys.stderr)
    more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
    first = damage[0]
    raise UserError(
        f"DIR received a data set whose file {first.path} is damaged at record {first.number}, "
        f"byte {first.offset_bytes}: {first.reason}{more}; expected whole files: copy them again, "
        "or name the others by --split NAME=GLOB."
    )


def _scan(path: str, add_row: Callable[[ScannedFile, Record], None]) -> ScannedFile:
    file = ScannedFile(path)
    with reading(path):
        found = storage.stat(path)
        with storage.open_read(path) as stored:
            stream = _HashedStream(stored)
            size = found.size_bytes if found else None
            for record in scan_records(cast(IO[bytes], stream), path, size):
                if isinstance(record, RecordError):
                    if not (record.number or is_header(storage.read_range(path, 0, HEADER_BYTES))):
                        raise UserError(
                            f"DIR received a data set whose file {path} is no TFRecord file "
                            "(record 0 at byte 0: the checksum of its length is wrong); expected "
                            "TFRecords."
                        )
                    file.damage.append(record)
                    continue
                try:
                    add_row(file, record)
                except ValueError as e:
                    place = record.number, record.offset_bytes
                    file.damage.append(RecordError(path, *place, str(e)))
    file.num_bytes, file.sha256 = stream.num_bytes, stream.digest.hexdigest()
    return file


def add_row(file: ScannedFile, record: Record, roles: Roles) -> None:
    """Notes a record of somebody else's.

    Raises:
        ValueError: It is no `tf.train.Example`, or has not one picture and one label.
    """
    features = decode_example(record.payload)
    picture, raw = _single(features, roles.image), _single(features, roles.label)
    if not isinstance(picture, bytes):
        raise ValueError(f"it has no feature {roles.image} with one picture")
    if not isinstance(raw, int | bytes):
        raise ValueError(f"it has no feature {roles.label} with one value")
    label = raw if isinstance(raw, int) else raw.decode(errors="replace")
    for name, values in features.items():
        file.lengths[name][dtype_of(values), len(values)] += 1
    key = _text_in(features, roles.filename) or f"{storage.name_of(file.path)}#{record.number}"
    text = label if isinstance(label, str) else _text_in(features, roles.text)
    try:
        width, height = open_picture(picture).size  # as its header says
    except (OSError, SyntaxError, ValueError):
        width, height = 0, 0  # training tells more of it
    known: dict[str, Values] = {
        FILENAME_FEATURE: [key.encode()],
        CLASS_FEATURE: [text.encode()],
        LABEL_FEATURE: [0],  # is known when all labels are
        SHA256_FEATURE: [hashlib.sha256(picture).hexdigest().encode()],
        "image/width": [width],
        "image/height": [height],
    }
    file.labels.append(label)
    file.rows.add({**features, **known}, record.next_offset_bytes - record.offset_bytes, None)


def add_own_row(file: ScannedFile, record: Record) -> None:
    """Notes a record that a build wrote.

    Raises:
        ValueError: It is no `tf.train.Example`, or lacks what every record holds.
    """
    features = decode_example(record.payload)
    try:
        file.rows.add(features, record.next_offset_bytes - record.offset_bytes, None)
    except (KeyError, IndexError) as e:
        raise ValueError(f"it lacks {e}") from e


def _single(features: Mapping[str, Values], name: str | None) -> bytes | int | float | None:
    values = features.get(name or "", [])
    return values[0] if len(values) == 1 else None


def _text_in(features: Mapping[str, Values], name: str | None) -> str:
    value = _single(features, name)
    try:
        return value.decode() if isinstance(value, bytes) else ""
    except UnicodeDecodeError:
        return ""
