"""The files of a data set that others wrote: splits, sizes, compression, counts in names."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import os
import sys
from collections.abc import Mapping, Sequence

from imageshards import storage, tfrecord
from imageshards.errors import UserError
from trainer.config import DataConfig
from trainer.dataset import external_files
from trainer.dataset.tfds import TfdsFolder, find_folder, open_tfds

_TAIL_BYTES = 16


@dataclasses.dataclass(frozen=True)
class FoundFile:
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

    splits: Mapping[str, tuple[FoundFile, ...]]
    compression: str
    tfds: TfdsFolder | None


def find_layout(config: DataConfig) -> Layout:
    """Finds the files `config.data` and `config.validation_data` mean.

    Raises:
        UserError: There are none, or they are not TFRecords, or not all of them are there.
    """
    splits, tfds = _splits(config)
    if config.validation_data is not None:
        splits["validation"] = _validation(config, splits)
    named = [(path, count) for files in splits.values() for path, count in files]
    # A remote filesystem answers in milliseconds each: a thousand files want company.
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = dict(zip([p for p, _ in named], pool.map(_look_at, named), strict=True))
    compression = _compression(list(found.values()))
    layout = {name: tuple(found[path] for path, _ in files) for name, files in splits.items()}
    # What TensorFlow Datasets says of its own files is not a guess.
    guessed = [name for name in layout if tfds is None or name not in tfds.splits]
    if config.validation_data is not None and "validation" not in guessed:
        guessed.append("validation")
    if not _counts_are_right([f for name in guessed for f in layout[name]], compression):
        layout |= {name: tuple(map(_without_count, layout[name])) for name in guessed}
    return Layout(layout, compression, tfds)


def _splits(
    config: DataConfig,
) -> tuple[dict[str, list[tuple[str, int | None]]], TfdsFolder | None]:
    try:
        folder = find_folder(config.data)
    except OSError as e:
        raise UserError(
            f"--data received {config.data!r}, which cannot be listed ({e.strerror or e}); "
            "expected a folder that may be read."
        ) from e
    if folder is not None:
        tfds = open_tfds(folder)
        return {name: list(shards) for name, shards in tfds.splits.items() if shards}, tfds
    paths = external_files.list_files("--data", config.data)
    splits = external_files.split_files(config.data, paths)
    return {name: _with_counts(files) for name, files in splits.items()}, None


def _validation(
    config: DataConfig, splits: Mapping[str, Sequence[tuple[str, int | None]]]
) -> list[tuple[str, int | None]]:
    data = config.validation_data or ""
    paths = external_files.list_files("--validation_data", data)
    taken = {
        os.path.abspath(path): name
        for name, files in splits.items()
        for path, _ in files
        if name != "validation"
    }
    for path in paths:
        if os.path.abspath(path) in taken:
            raise UserError(
                f"--validation_data received {data!r}, whose file {os.path.basename(path)} is "
                f"also part of the split {taken[os.path.abspath(path)]} of --data; expected "
                "files that are not trained on: name the others by a glob."
            )
    return _with_counts(paths)


def _with_counts(paths: Sequence[str]) -> list[tuple[str, int | None]]:
    return [(path, external_files.count_in_name(path)) for path in paths]


def _look_at(named: tuple[str, int | None]) -> FoundFile:
    path, count = named
    try:
        found = storage.stat(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        size_bytes = found.size_bytes
        head = storage.read_range(path, 0, tfrecord.HEADER_BYTES)
        tail = storage.read_range(path, max(0, size_bytes - _TAIL_BYTES), size_bytes)
    except OSError as e:
        raise UserError(
            f"--data received a data set whose file {path} cannot be read ({e.strerror or e}); "
            "expected every file of it: copy it again."
        ) from e
    return FoundFile(path, size_bytes, found.mtime_ns, head + tail, count)


def _compression(files: Sequence[FoundFile]) -> str:
    kinds: dict[str, str] = {}
    for file in files:
        if not file.num_bytes:
            continue
        head = file.ends[: min(tfrecord.HEADER_BYTES, file.num_bytes)]
        kind = tfrecord.compression_of(head)
        if kind is None:
            raise UserError(
                f"--data received a data set whose file {file.path} is no TFRecord file (record 0 "
                "at byte 0: the checksum of its length is wrong); expected TFRecords, plain or "
                "compressed with gzip."
            )
        kinds.setdefault(kind, file.path)
    if len(kinds) > 1:
        raise UserError(
            f"--data received a data set where {kinds['gzip']} is compressed and {kinds['none']} "
            "is not; expected all files alike: compress or expand some of them."
        )
    return next(iter(kinds), "none")


def _counts_are_right(files: Sequence[FoundFile], compression: str) -> bool:
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


def _without_count(file: FoundFile) -> FoundFile:
    return dataclasses.replace(file, num_records=None)
