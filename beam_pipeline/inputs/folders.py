"""Finds files below a folder or behind a glob, on this machine or in a store.

However many files a folder has, only a few are held: folders of this machine are scanned in no
particular order, stores are listed page by page. The plan orders images by hashes of their keys,
so the order in which they are found changes no byte.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator

from beam_pipeline.inputs.layout import FileId, ancestors, file_id, glob_root, literal_prefix
from imageshards import storage
from imageshards.errors import UserError
from imageshards.form import anything, loads
from imageshards.manifest import MANIFEST_NAME
from imageshards.storage import Stat, is_local
from imageshards.text import printable

# Path, size in bytes or why it is passed over, modification time in ns.
Found = tuple[str, "int | Skipped", int]

FINISHED_DATA_SET = "finished_data_set"

_RESOURCE_FORKS = "__MACOSX"  # what macOS adds to archives; looks like a class folder
_PAGE_OBJECTS = 1000
_HEAD_BYTES = 1024  # the version comes first


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A file or folder that was passed over.

    Attributes:
        reason: Why; files are counted by it.
        name: What a person is to hear of by name, in a warning of its own.
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
        f"--input: {path!r} is a finished data set, with the manifest.json of a build; expected "
        "original images: give their folder, move the data set out of it, or say --layout data_set "
        "to copy its records."
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
        if is_folder and name[:1] != "." and name != _RESOURCE_FORKS:
            found.append((name, below))
    return sorted(found)


def files_outside_folders(path: str) -> Iterator[Skipped]:
    """The files of a folder that are in none of its class folders, and what is hidden in it."""
    for name, _, is_folder in _entries(path):
        if name.startswith("."):
            yield Skipped("hidden")
        elif not is_folder:
            yield Skipped("outside_class_folders")


def _entries(path: str) -> Iterator[tuple[str, str, bool]]:
    """(name, path, whether it is a folder) of what is in a folder."""
    if is_local(path):
        yield from ((entry.name, entry.path, _is_dir(entry)) for entry in _scan(path))
        return
    try:
        entries = storage.list_folder(path)
    except OSError as e:
        raise _cannot_list(path, e) from e
    if not entries:
        raise UserError(f"--input {path!r} holds nothing; expected a folder, glob or image table.")
    yield from ((entry.name, entry.path, entry.is_folder) for entry in entries)


def _cannot_list(path: str, e: OSError) -> UserError:
    return UserError(
        f"--input {path!r} cannot be listed ({e.strerror or e}); fix the path or its permissions."
    )


def files_below(path: str) -> Iterator[Found]:
    """Every file below a folder, but none of finished data sets.

    Raises:
        UserError: There is no such folder, or it cannot be listed.
    """
    if is_local(path):
        return _finished(path) if is_data_set(path) else _walk(path, None)
    return _stored_below(path)


def files_matching(pattern: str) -> Iterator[Found]:
    """Every file that matches a glob, as Beam reads globs, but none of finished data sets.

    Raises:
        UserError: Its root cannot be listed.
    """
    if is_local(pattern):
        yield from _local_matches(pattern)
        return
    matches = _matcher(pattern)
    # A store lists no other names than those with this prefix.
    found = _without_data_sets(pattern, storage.files_from(literal_prefix(pattern)))
    yield from (file for file in found if _is_finished(file) or matches(file[0]))


def _matcher(pattern: str) -> Callable[[str], object]:
    from apache_beam.io.filesystem import FileSystem  # imports all of Beam

    return re.compile(FileSystem.translate_pattern(pattern)).match


def _stored_below(folder: str) -> Iterator[Found]:
    """The files below a folder of a store; of a finished data set it yields that alone."""
    manifest = storage.join(folder, MANIFEST_NAME)
    found = storage.files_below(folder)
    try:
        # Mostly the first page tells, without a request, that there is no manifest.json.
        page = list(itertools.islice(found, _PAGE_OBJECTS))
    except OSError as e:
        raise _cannot_list(folder, e) from e
    may_follow = len(page) == _PAGE_OBJECTS and page[-1].path < manifest
    if (may_follow or any(file.path == manifest for file in page)) and is_data_set(folder):
        yield from _finished(folder)
        return
    yield from _without_data_sets(folder, itertools.chain(page, found))


def _without_data_sets(path: str, found: Iterator[Stat]) -> Iterator[Found]:
    """Objects, ordered by path, without what finished data sets have behind manifest.json.

    That is `quarantine/` and `report/`; no name before it could be taken for an image.
    """
    inside: str | None = None
    try:
        for file in found:
            if inside is not None and file.path.startswith(inside):
                continue
            folder, _, name = file.path.rpartition("/")
            if name == MANIFEST_NAME and is_data_set(folder):
                inside = folder + "/"
                yield from _finished(folder)
            else:
                yield file.path, file.size_bytes, file.mtime_ns
    except OSError as e:
        raise _cannot_list(path, e) from e


def _finished(folder: str) -> Iterator[Found]:
    yield folder, Skipped(FINISHED_DATA_SET, printable(folder)), 0


def _is_finished(found: Found) -> bool:
    return isinstance(found[1], Skipped) and found[1].reason == FINISHED_DATA_SET


def _local_matches(pattern: str) -> Iterator[Found]:
    # Beam's own walk does not follow links to folders, and drops broken links without a word.
    root = glob_root(pattern)
    below = pattern.removeprefix(root).lstrip("/")
    matches = _matcher(os.path.join(root, below))
    depth = None if "**" in below else below.count("/")
    for found in _walk(root, depth):
        if _is_finished(found) or matches(found[0]):
            yield found


def _walk(path: str, depth: int | None, above: frozenset[FileId] | None = None) -> Iterator[Found]:
    """Files below a folder.

    Args:
        path: The folder.
        depth: How many levels of folders are entered; None for all.
        above: The folder and those above it, if they are known: a link to one would never end.
    """
    for entry in _scan(path):
        if not _is_dir(entry):
            yield _file(entry)
        elif entry.name.startswith("."):
            yield entry.path, Skipped("hidden"), 0
        elif depth == 0:
            yield entry.path, Skipped("directory"), 0
        else:
            if above is None:  # mostly no folder is inside, and nobody asks
                above = ancestors(path)
            here = file_id(entry.path)
            if here in above:
                yield entry.path, Skipped("link_to_a_folder_above"), 0
            elif is_data_set(entry.path):
                yield from _finished(entry.path)
            else:
                inside = above if here is None else above | {here}
                yield from _walk(entry.path, None if depth is None else depth - 1, inside)


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
    except FileNotFoundError:
        raise UserError(
            f"--input {path!r} does not exist; expected a folder, glob or image table."
        ) from None
    except NotADirectoryError:
        raise UserError(
            f"--input {path!r} is a file, not a folder; expected a folder, or an image table named "
            ".csv, .jsonl or .parquet."
        ) from None
    except OSError as e:
        raise UserError(
            f"--input {path!r} cannot be listed ({e.strerror}); fix its permissions."
        ) from e
