"""Finds existing TFRecord files and the split of each."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.manifest import SPLIT_NAMES
from imageshards.tfrecord import FILE_NAME, HEADER_BYTES, is_header

ENDINGS = "*.tfrec, *.tfrecord, *.tfrecords, *.record or NAME-00000-of-00008"

_GZIP_MAGIC = b"\x1f\x8b"
# Text before the number, number, total, rest of the file name.
_PART = re.compile(r"(.*)-(\d+)-of-(\d+)([^/]*)$")


def find_splits(directory: str, given: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the files of every split: of the `given` (split, place) pairs, else of the directory.

    Raises:
        UserError: A place has no files, a series is incomplete, or a file is given twice.
    """
    if not given:
        return split_files(directory, list_files("DIR", directory))
    splits: dict[str, list[str]] = defaultdict(list)
    for name, place in given:
        splits[name] += list_files("split", place)
    times = Counter(path for paths in splits.values() for path in paths)
    twice = [path for path, count in times.items() if count > 1]
    if twice:
        raise UserError(
            argument="split",
            received=f"the file {twice[0]} twice",
            expected="every file in one split",
            remedy="name the files by globs",
        )
    return dict(splits)


def list_files(argument: str, place: str) -> list[str]:
    """Lists the TFRecord files of a file, a glob, or everything below a folder, sorted.

    Raises:
        UserError: There are no files, or a folder lacks a part of a numbered series.
        OSError: A folder cannot be listed.
    """
    if any(c in place for c in "*?["):
        paths = storage.glob(place)
    elif storage.is_folder(place):
        start = len(place.rstrip("/"))
        paths = [f.path for f in storage.files_below(place) if _is_records(f.path[start:])]
        # Only a folder is checked, because a glob may mean a part of a series.
        _check_series(argument, place, paths)
    else:
        paths = [place] if storage.exists(place) else []
    if not paths:
        raise UserError(
            argument=argument,
            received=f"{place!r}, where there is no TFRecord",
            expected=f"files called {ENDINGS}",
            remedy="name files by " + Arg("split", "train=GLOB") + ", or build a dataset of "
            "images with imageshards build --input PHOTOS --output FOLDER",
        )
    return paths


def _is_records(path: str) -> bool:
    """Returns whether a path below a folder is a TFRecord file, and no part of it is hidden."""
    return not re.search(r"/[._]", path) and bool(FILE_NAME.search(os.path.basename(path)))


def _check_series(argument: str, place: str, paths: Sequence[str]) -> None:
    """Refuses a folder that was copied only in part: `…-00000-of-00008` needs all eight files."""
    series: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in paths:
        if found := _PART.match(path):
            series[f"{found[1]}-*-of-{found[3]}{found[4]}", int(found[3])].add(int(found[2]))
    for (pattern, total), numbers in series.items():
        if missing := sorted({*range(total)} - numbers):
            raise UserError(
                argument=argument,
                received=f"{place!r}, where of {os.path.basename(pattern)} {len(missing)} of "
                f"{total} files are missing (the first is number {missing[0]})",
                expected="all of them",
                remedy="copy the folder again, or choose files by " + Arg("split", "NAME=GLOB"),
            )


def split_files(directory: str, paths: Sequence[str]) -> dict[str, list[str]]:
    """Groups files by split: by the name of their folder, else by a word of their own name.

    All files are `train` if no name contains a split.

    Raises:
        UserError: Only some of the names contain a split.
    """
    splits: dict[str, list[str]] = defaultdict(list)
    nameless: list[str] = []
    for path in paths:
        name = split_of(path)
        (splits[name] if name else nameless).append(path)
    if nameless and splits:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, where {os.path.basename(nameless[0])} belongs to no split, "
            f"but {os.path.basename(next(iter(splits.values()))[0])} to {next(iter(splits))}",
            expected="train, validation or test in every name or in none",
            remedy="name the files of every split, for example "
            + Arg("split", f"train={directory}/a*"),
        )
    return dict(splits) if splits else {"train": nameless}


def split_of(path: str) -> str | None:
    """Returns the split that a path names: `validation-00000-of-00128` → `validation`."""
    folder, name = os.path.split(path)
    folder = os.path.basename(folder).lower()
    if folder in SPLIT_NAMES:
        return folder
    words = re.split(r"[^a-z]+", name.lower())
    return next((word for word in words if word in SPLIT_NAMES), None)


def folder_from(output: str, path: str) -> str:
    """Returns a file's folder for a manifest in `output`: relative if below, else absolute."""
    folder, output = storage.parent_of(path), output.rstrip("/")
    if folder.rstrip("/") == output:
        return ""
    return folder.removeprefix(f"{output}/")


def check_plain(paths: Sequence[str]) -> None:
    """Refuses files that are gzipped as a whole, because readers cannot seek in them."""
    heads = storage.map_concurrently(lambda p: storage.read_range(p, 0, HEADER_BYTES), paths)
    for path, head in zip(paths, heads, strict=True):
        # The length of a record, the first bytes of a plain file, may equal gzip's magic number.
        if head.startswith(_GZIP_MAGIC) and not is_header(head):
            raise UserError(
                argument="DIR",
                received=f"a dataset whose file {path} is compressed with gzip, so no record is "
                "found inside of it",
                expected="plain files",
                remedy="gunzip them first",
            )
