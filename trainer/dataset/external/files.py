"""The files of a data set without a manifest: splits, sizes, compression, counts in names."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence

from imageshards import storage, tfrecord
from imageshards.errors import UserError
from trainer.config import DataConfig
from trainer.dataset.external.tfds import TfdsFolder, find_folder, open_tfds

SPLIT_NAMES = ("train", "training", "validation", "valid", "val", "test", "testing", "eval", "dev")
ENDINGS = "*.tfrec, *.tfrecord, *.tfrecords (each also with .gz) or NAME-00000-of-00008"

# `x.tfrecord`, `x.tfrec.gz`, `x.tfrecord-00000-of-00008`, `train-00000-of-01024`.
_RECORDS = re.compile(
    r"(\.(tfrec|tfrecord|tfrecords)(-\d+-of-\d+)?|^[^.]+-\d+-of-\d+)(\.gz)?$", re.IGNORECASE
)
_PART = re.compile(r"^(.*?)-(\d+)-of-(\d+)(.*)$")
_COUNT = re.compile(r"[-_](\d+)\.(tfrec|tfrecord|tfrecords)(\.gz)?$", re.IGNORECASE)
_TAIL_BYTES = 16

# A file's path, and how many records it holds: None where nobody said.
_Counted = tuple[str, int | None]


@dataclasses.dataclass(frozen=True)
class ExternalFile:
    """One TFRecord file that others wrote.

    Attributes:
        path: Where it lies.
        num_bytes: Its size.
        modified_nsec: When it was last changed, in nanoseconds since 1970.
        ends: Its first 12 and last 16 bytes: both hold checksums of what is between.
        num_records: How many it holds, None where nobody said.
    """

    path: str
    num_bytes: int
    modified_nsec: int
    ends: bytes
    num_records: int | None


@dataclasses.dataclass(frozen=True)
class Layout:
    """Files by split.

    Attributes:
        splits: By name.
        compression: `none` or `gzip`, of every file.
        tfds: What TensorFlow Datasets says of them, None where others wrote them.
    """

    splits: Mapping[str, tuple[ExternalFile, ...]]
    compression: str
    tfds: TfdsFolder | None


def find_layout(config: DataConfig) -> Layout:
    """Finds the files `config.data` and `config.validation_data` mean.

    Raises:
        UserError: There are none, or they are not TFRecords, or not all of them are there.
    """
    tfds = _find_tfds(config.data)
    splits: dict[str, Sequence[_Counted]]
    if tfds is not None:
        splits = {name: shards for name, shards in tfds.splits.items() if shards}
    else:
        paths = list_files("⟦--data⟧", config.data)
        splits = {name: _counted(files) for name, files in split_files(config.data, paths).items()}
    # What TensorFlow Datasets says of its own files is not a guess.
    guessed = set() if tfds is not None else set(splits)
    if config.validation_data is not None:
        splits["validation"] = _validation(config.validation_data, splits)
        guessed.add("validation")
    layout = {
        name: tuple(storage.map_concurrently(_look_at, files)) for name, files in splits.items()
    }
    compression = _compression([file for files in layout.values() for file in files])
    named = [file for name, files in layout.items() if name in guessed for file in files]
    if not _counts_are_right(named, compression):
        for name in guessed:
            layout[name] = tuple(dataclasses.replace(f, num_records=None) for f in layout[name])
    return Layout(layout, compression, tfds)


def has_records(data: str) -> bool:
    """Whether `data` means TFRecords: a glob, a file, or a folder that holds some."""
    try:
        if find_folder(data) is not None or any(c in data for c in "*?["):
            return True
        return bool(_files_below(data)) if storage.is_folder(data) else storage.exists(data)
    except OSError:
        return False


def list_files(flag: str, data: str) -> list[str]:
    """The TFRecord files that `data` means, sorted.

    Args:
        flag: Named in errors.
        data: A file, a glob, or a folder, whose own files and whose sub-folders' count.

    Raises:
        UserError: There are none, or `data` cannot be listed, or a part of a numbered
            series is missing from a folder.
    """
    try:
        if any(c in data for c in "*?["):
            paths = storage.glob(data)
        elif storage.is_folder(data):
            paths = _files_below(data)
            _check_series(flag, data, paths)
        elif storage.exists(data):
            paths = [data]
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), data)
    except OSError as e:
        raise UserError(
            f"{flag} received {data!r}, which cannot be listed ({e.strerror or e}); expected a "
            f"folder, a file or a glob of TFRecords: {ENDINGS}."
        ) from e
    if not paths:
        raise UserError(
            f"{flag} received {data!r}, where there is neither a manifest.json nor a TFRecord; "
            f"expected files called {ENDINGS}, or a data set built with "
            "imageshards build --input PHOTOS --output FOLDER."
        )
    return paths


def split_files(data: str, paths: Sequence[str]) -> dict[str, list[str]]:
    """Which split every file belongs to: by its folder's name, else by a word of its own name.

    Where no name says anything, all files are `train`.

    Args:
        data: As `--data` received it.
        paths: Files.

    Raises:
        UserError: Only some of the names say something.
    """
    splits: dict[str, list[str]] = defaultdict(list)
    nameless = []
    for path in paths:
        name = split_of(path)
        if name:
            splits[name].append(path)
        else:
            nameless.append(path)
    if nameless and splits:
        raise UserError(
            f"⟦--data⟧ received {data!r}, where {os.path.basename(nameless[0])} belongs to no "
            f"split, but {os.path.basename(next(iter(splits.values()))[0])} to "
            f"{next(iter(splits))}; expected train, validation or test in every name or "
            "in none: name the files to train on by a glob, and others by ⟦--validation_data⟧."
        )
    return dict(splits) if splits else {"train": nameless}


def split_of(path: str) -> str | None:
    """The split a path names, in lower case: `validation-00000-of-00128` → `validation`."""
    folder, name = os.path.split(path)
    folder = os.path.basename(folder).lower()
    if folder in SPLIT_NAMES:
        return folder
    words = re.split(r"[^a-z]+", name.lower())
    return next((word for word in words if word in SPLIT_NAMES), None)


def count_in_name(path: str) -> int | None:
    """230 for `flowers00-230.tfrec`, None where the name ends in no number.

    What ends in a number may still mean something else by it.
    """
    name = os.path.basename(path)
    if _PART.match(name):
        return None
    found = _COUNT.search(name)
    return int(found[1]) if found else None


def _find_tfds(data: str) -> TfdsFolder | None:
    try:
        folder = find_folder(data)
    except OSError as e:
        raise UserError(
            f"⟦--data⟧ received {data!r}, which cannot be listed ({e.strerror or e}); "
            "expected a folder that may be read."
        ) from e
    return None if folder is None else open_tfds(folder)


def _counted(paths: Sequence[str]) -> list[_Counted]:
    return [(path, count_in_name(path)) for path in paths]


def _validation(data: str, splits: Mapping[str, Sequence[_Counted]]) -> list[_Counted]:
    paths = list_files("⟦--validation_data⟧", data)
    taken = {
        os.path.abspath(path): name
        for name, files in splits.items()
        for path, _ in files
        if name != "validation"
    }
    for path in paths:
        if os.path.abspath(path) in taken:
            raise UserError(
                f"⟦--validation_data⟧ received {data!r}, whose file {os.path.basename(path)} is "
                f"also part of the split {taken[os.path.abspath(path)]} of ⟦--data⟧; expected "
                "files that are not trained on: name the others by a glob."
            )
    return _counted(paths)


def _look_at(counted: _Counted) -> ExternalFile:
    path, num_records = counted
    try:
        found = storage.stat(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        head = storage.read_range(path, 0, tfrecord.HEADER_BYTES)
        tail = storage.read_range(path, max(0, found.size_bytes - _TAIL_BYTES), found.size_bytes)
    except OSError as e:
        raise UserError(
            f"⟦--data⟧ received a data set whose file {path} cannot be read ({e.strerror or e}); "
            "expected every file of it: copy it again."
        ) from e
    return ExternalFile(path, found.size_bytes, found.mtime_ns, head + tail, num_records)


def _files_below(data: str) -> list[str]:
    """Every TFRecord file in a folder and in its sub-folders, sorted."""
    entries = storage.list_folder(data)
    for folder in entries.copy():
        if folder.is_folder and not folder.name.startswith("."):
            entries += storage.list_folder(folder.path)
    return sorted(e.path for e in entries if not e.is_folder and _is_records(e.name))


def _is_records(name: str) -> bool:
    return not name.startswith((".", "_")) and bool(_RECORDS.search(name))


def _check_series(flag: str, data: str, paths: Sequence[str]) -> None:
    """Of `…-00000-of-00008` all eight have to be there: a half-copied folder is found now."""
    series: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for path in paths:
        found = _PART.match(os.path.basename(path))
        if found:
            stem = os.path.join(os.path.dirname(path), found[1])
            series[stem, found[3], found[4]].add(int(found[2]))
    for (stem, total, _), numbers in series.items():
        missing = sorted(set(range(int(total))) - numbers)
        if missing:
            raise UserError(
                f"{flag} received {data!r}, where of {os.path.basename(stem)}-…-of-{total} "
                f"{len(missing)} of {int(total)} files are missing (the first is number "
                f"{missing[0]}); expected all of them: copy the folder again, or name the files "
                "that are meant by a glob."
            )


def _compression(files: Sequence[ExternalFile]) -> str:
    kinds: dict[str, str] = {}
    for file in files:
        if not file.num_bytes:
            continue
        head = file.ends[: min(tfrecord.HEADER_BYTES, file.num_bytes)]
        kind = tfrecord.compression_of(head)
        if kind is None:
            raise UserError(
                f"⟦--data⟧ received a data set whose file {file.path} is no TFRecord file (record "
                "0 at byte 0: the checksum of its length is wrong); expected TFRecords, plain or "
                "compressed with gzip."
            )
        kinds.setdefault(kind, file.path)
    if len(kinds) > 1:
        raise UserError(
            f"⟦--data⟧ received a data set where {kinds['gzip']} is compressed and {kinds['none']} "
            "is not; expected all files alike: compress or expand some of them."
        )
    return next(iter(kinds), "none")


def _counts_are_right(files: Sequence[ExternalFile], compression: str) -> bool:
    """Whether the numbers in the names are counts: the smallest file is counted to see.

    A name that ends in a running number (`part-003.tfrecord`) looks the same. A count that
    is wrong in another file stops the run when that file is read.
    """
    if any(file.num_records is None for file in files):
        return False
    smallest = min((f for f in files if f.num_bytes), key=lambda f: f.num_bytes, default=None)
    if smallest is None:
        return all(file.num_records == 0 for file in files)
    records = tfrecord.scan_file(smallest.path, compression)
    held = sum(1 for _ in records)
    if held == smallest.num_records:
        return True
    print(
        f"note: {os.path.basename(smallest.path)} holds {held} records, so the numbers in the "
        "files' names are not taken for counts",
        file=sys.stderr,
    )
    return False
