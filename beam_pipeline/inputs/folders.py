"""Finds files below a folder or behind a glob, on this machine or in a store.

However many files a folder has, only a few are held: folders of this machine are scanned in no
particular order, stores are listed page by page. The plan orders images by hashes of their keys,
so the order in which they are found changes no byte.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterator

from beam_pipeline.inputs.layout import glob_root, literal_prefix
from imageshards import storage
from imageshards.errors import UserError
from imageshards.form import anything, loads
from imageshards.images.options import SYSTEM_NAMES
from imageshards.manifest import MANIFEST_NAME
from imageshards.storage import Stat, is_local

# Path, size in bytes or why it is passed over, modification time in ns.
Found = tuple[str, "int | Skipped", int]

UNREADABLE_FOLDER = "unreadable_folder"
SYSTEM_FILE = "system_file"
_HEAD_BYTES = 1024  # the version comes first


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A file or folder that was passed over: files are counted by the reason; of those that have a
    name a person is to hear in a warning of its own.
    """

    reason: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.name}" if self.name else self.reason


def is_data_set(folder: str) -> bool:
    """Whether a folder holds a finished data set: a manifest.json that a build has written."""
    path = storage.join(folder, MANIFEST_NAME)
    try:
        # Files of this name that others write may be large.
        if b'"format_version"' not in storage.read(path, _HEAD_BYTES):
            return False
        found = loads(storage.read(path), anything)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"format_version", "splits", "fingerprint"} <= found.keys()


def finished_input(path: str) -> UserError:
    """The error for an input that is a finished data set."""
    return UserError(
        f"--input: {path!r} is a finished data set; expected original images: give their folder, "
        "move the data set out of it, or say --layout data_set to copy its records."
    )


def subfolders(path: str) -> list[tuple[str, str]]:
    """(name, path) of the folders in a folder, by name, without hidden ones.

    Raises:
        UserError: It is not there, cannot be listed, or is a finished data set.
    """
    found = []
    for name, below, is_folder in _entries(path):
        if name == MANIFEST_NAME and is_data_set(path):
            raise finished_input(path)
        if is_folder and name[:1] != "." and name not in SYSTEM_NAMES:
            found.append((name, below))
    return sorted(found)


def files_outside_folders(path: str) -> Iterator[Skipped]:
    """The files of a folder that are in none of its class folders, and what is hidden in it."""
    for name, _, is_folder in _entries(path):
        if name.startswith("."):
            yield Skipped("hidden")
        elif name in SYSTEM_NAMES:
            yield Skipped(SYSTEM_FILE)
        elif not is_folder:
            yield Skipped("outside_class_folders")


def _entries(path: str) -> Iterator[tuple[str, str, bool]]:
    if is_local(path):
        # Not storage.list_folder, which passes over broken links: these are counted, too.
        yield from ((entry.name, entry.path, _is_dir(entry)) for entry in _scan(path))
        return
    try:
        entries = storage.list_folder(path)
    except OSError as e:
        raise _cannot_list(path, e) from e
    if not entries:
        raise _cannot_list(path, OSError("it holds nothing"))
    yield from ((entry.name, entry.path, entry.is_folder) for entry in entries)


def _cannot_list(path: str, e: OSError) -> UserError:
    return UserError(
        f"--input {path!r} cannot be listed ({e.strerror or e}); expected a folder, a glob, or an "
        "image table named .csv, .jsonl or .parquet: fix the path or its permissions."
    )


def files_below(path: str, must_list: bool = True) -> Iterator[Found]:
    """Yields every file below a folder.

    Args:
        path: The folder.
        must_list: Whether missing permissions for the folder itself are an error; where they are
            not, and for the folders below it, the folder is passed over.

    Raises:
        UserError: There is no such folder, or it cannot be listed.
    """
    if is_local(path):
        return _walk(path, None, must_list=must_list)
    return _objects(path, storage.files_below(path))


def files_matching(pattern: str) -> Iterator[Found]:
    """Every file that matches a glob, as Beam reads globs.

    Raises:
        UserError: Its root cannot be listed.
    """
    from apache_beam.io.filesystem import FileSystem  # imports all of Beam

    if is_local(pattern):
        # Beam's own walk does not follow links to folders, and drops broken links without a word.
        root = glob_root(pattern)
        below = pattern.removeprefix(root).lstrip("/")
        pattern = os.path.join(root, below)
        found = _walk(root, None if "**" in below else below.count("/"))
    else:
        # A store lists no other names than those with this prefix.
        found = _objects(pattern, storage.files_from(literal_prefix(pattern)))
    matches = re.compile(FileSystem.translate_pattern(pattern)).match
    return (file for file in found if matches(file[0]))


def _objects(path: str, found: Iterator[Stat]) -> Iterator[Found]:
    try:
        for file in found:
            yield file.path, file.size_bytes, file.mtime_ns
    except OSError as e:
        raise _cannot_list(path, e) from e


def _walk(
    path: str, depth: int | None, above: frozenset[str] | None = None, must_list: bool = True
) -> Iterator[Found]:
    """Files below a folder.

    `depth` levels of folders are entered, all if it is None. `above` are the folder and those above
    it, links resolved, by default as the file system has them: a link to one would never end.
    """
    if above is None:
        real = pathlib.Path(os.path.realpath(path))
        above = frozenset(map(str, (real, *real.parents)))
    if not must_list and not _may_list(path):
        yield path, Skipped(UNREADABLE_FOLDER), 0
        yield path, Skipped(UNREADABLE_FOLDER, path), 0
        return
    for entry in _scan(path):
        if not _is_dir(entry):
            yield _file(entry)
        elif entry.name.startswith("."):
            yield entry.path, Skipped("hidden"), 0
        elif entry.name in SYSTEM_NAMES:
            yield entry.path, Skipped(SYSTEM_FILE), 0
        elif depth == 0:
            yield entry.path, Skipped("directory"), 0
        else:
            here = os.path.realpath(entry.path)
            if here in above:
                yield entry.path, Skipped("link_to_a_folder_above"), 0
            else:
                left = None if depth is None else depth - 1
                yield from _walk(entry.path, left, above | {here}, must_list=False)


def _may_list(path: str) -> bool:
    """Whether permissions allow to list a folder; other errors are left to who lists it."""
    try:
        os.scandir(path).close()
    except PermissionError:
        return False
    except OSError:
        pass
    return True


def _file(entry: os.DirEntry[str]) -> Found:
    """Size and time of a file; with size -1 a broken link is listed too, and quarantined later."""
    try:
        if entry.is_file():
            status = entry.stat()
            return entry.path, status.st_size, status.st_mtime_ns
    except OSError:  # deleted since it was listed, or a broken link
        return entry.path, -1, 0
    if entry.is_symlink() and not os.path.exists(entry.path):
        return entry.path, -1, 0
    return entry.path, Skipped("special_file"), 0


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _scan(path: str) -> Iterator[os.DirEntry[str]]:
    """What is in a folder of this machine, in no particular order."""
    try:
        with os.scandir(path) as entries:
            yield from entries
    except OSError as e:
        raise _cannot_list(path, e) from e
