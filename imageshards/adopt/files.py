"""The TFRecord files that others wrote: which there are, and the split of each."""

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
# Path before it, number, how many, what follows in the file's name.
_PART = re.compile(r"(.*)-(\d+)-of-(\d+)([^/]*)$")


def find_splits(directory: str, given: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The files of every split: of (split, folder, file or glob) pairs, else of the directory.

    Raises:
        UserError: There are none, not all of a series are there, or one is given twice.
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
    """The TFRecord files that a place means, sorted: a file, a glob, or a folder with all below it.

    Raises:
        UserError: There are none, or a part of a numbered series is missing from a folder.
        OSError: They cannot be listed.
    """
    if any(c in place for c in "*?["):
        paths = storage.glob(place)
    elif storage.is_folder(place):
        start = len(place.rstrip("/"))
        paths = [f.path for f in storage.files_below(place) if _is_records(f.path[start:])]
        _check_series(argument, place, paths)
    else:
        paths = [place] if storage.exists(place) else []
    if not paths:
        raise UserError(
            argument=argument,
            received=f"{place!r}, where there is no TFRecord",
            expected=f"files called {ENDINGS}",
            remedy="name others by " + Arg("split", "train=GLOB") + ", or build a dataset of "
            "images with imageshards build --input PHOTOS --output FOLDER",
        )
    return paths


def _is_records(path: str) -> bool:
    """Whether a path below a folder is that of TFRecords, and neither it nor a part is hidden."""
    return not re.search(r"/[._]", path) and bool(FILE_NAME.search(os.path.basename(path)))


def _check_series(argument: str, place: str, paths: Sequence[str]) -> None:
    """Of `…-00000-of-00008` all eight have to be there: a half-copied folder is found now."""
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
                remedy="copy the folder again, or name the files that are meant by "
                + Arg("split", "NAME=GLOB"),
            )


def split_files(directory: str, paths: Sequence[str]) -> dict[str, list[str]]:
    """Which split every file belongs to: by its folder's name, else by a word of its own name.

    Where no name says anything, all files are `train`.

    Raises:
        UserError: Only some of the names say something.
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
    """The split a path names, in lower case: `validation-00000-of-00128` → `validation`."""
    folder, name = os.path.split(path)
    folder = os.path.basename(folder).lower()
    if folder in SPLIT_NAMES:
        return folder
    words = re.split(r"[^a-z]+", name.lower())
    return next((word for word in words if word in SPLIT_NAMES), None)


def folder_from(output: str, path: str) -> str:
    """The folder of a file as a manifest in `output` names it: below it, else as a whole."""
    folder, output = storage.parent_of(path), output.rstrip("/")
    if folder.rstrip("/") == output:
        return ""
    return folder.removeprefix(f"{output}/")


def check_plain(paths: Sequence[str]) -> None:
    """Refuses files that are compressed as a whole: nobody can seek in those.

    Raises:
        UserError: One is.
        OSError: A file cannot be read.
    """
    for path, head in zip(paths, storage.map_concurrently(_head, paths), strict=True):
        # The length of a plain record may look like gzip's magic number.
        if head.startswith(_GZIP_MAGIC) and not is_header(head):
            raise UserError(
                argument="DIR",
                received=f"a dataset whose file {path} is compressed with gzip, so no record is "
                "found inside of it",
                expected="plain files",
                remedy="gunzip them first",
            )


def _head(path: str) -> bytes:
    return storage.read_range(path, 0, HEADER_BYTES)
