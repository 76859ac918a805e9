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
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from beam_pipeline.inputs.layout import (
    expand_braces,
    glob_root,
    is_glob,
    literal_prefix,
    may_match_inside,
)
from beam_pipeline.options import DATASET
from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.images.options import passed_over
from imageshards.manifest import MANIFEST_NAME
from imageshards.storage import Stat, is_local
from imageshards.text import printable
from imageshards.typed import decode

# Path, size in bytes or why it is passed over, modification time in ns.
Found = tuple[str, "int | Skipped", int]

EXCLUDED_BY_GLOB = "excluded_by_glob"
UNREADABLE_FOLDER = "unreadable_folder"
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


class PathFilter:
    """Decides by its path below an input which file or folder is passed over, and why.

    Args:
        root: Folder of the input.
        globs: Those of --exclude_glob, in the form of a glob that is an input: `*` does not cross a
            slash, `**` does. One without a slash is compared with every name of a path.
    """

    def __init__(self, root: str, globs: Sequence[str] = ()):
        self.root = root.rstrip("/")
        self._prefix = len(self.root) + 1
        self._globs = [(glob, _matches_at_or_above(glob)) for glob in globs]

    def __call__(self, path: str) -> Skipped | None:
        below = path[self._prefix :]
        if self._globs:
            composed = unicodedata.normalize("NFC", below)
            for glob, matches in self._globs:
                if matches(composed):
                    return Skipped(EXCLUDED_BY_GLOB, glob)
        reason = passed_over(below)
        return Skipped(reason) if reason else None


def _matches_at_or_above(glob: str) -> Callable[[str], object]:
    """A test of whether a glob matches a path, or a folder above it."""
    anywhere = "" if "/" in glob.rstrip("/") else "(?:.*/)?"
    body = _translated(unicodedata.normalize("NFC", glob.strip("/")))
    return re.compile(f"{anywhere}{body}(?:/.*)?", re.DOTALL).fullmatch


def _translated(glob: str) -> str:
    """A glob as a regular expression, without flags and end."""
    from apache_beam.io.filesystem import FileSystem  # imports all of Beam

    return FileSystem.translate_pattern(glob).removeprefix("(?ms)").removesuffix(r"\Z")


class _Manifest(msgspec.Struct):
    """What the manifests of all versions have."""

    format_version: Any
    splits: Any
    fingerprint: Any


def is_dataset(folder: str) -> bool:
    """Whether a folder holds a finished dataset: a manifest.json that a build has written."""
    path = storage.join(folder, MANIFEST_NAME)
    try:
        # Files of this name that others write may be large.
        if b'"format_version"' not in storage.read(path, _HEAD_BYTES):
            return False
        decode(storage.read(path), _Manifest)
    except (OSError, ValueError):
        return False
    return True


def finished_input(path: str) -> UserError:
    """The error for an input that is a finished dataset."""
    return UserError(
        argument="input",
        received=f"{path!r}, a finished dataset",
        expected="original images",
        remedy="give their folder, move the dataset out of it, or say "
        + Arg("layout", DATASET)
        + " to copy its records",
    )


def subfolders(path: str, passes_over: PathFilter) -> list[tuple[str, str]]:
    """(name, path) of the folders in a folder, by name, without those that are passed over.

    A folder below the input that this user may not list has none: `files_outside_folders` names it.

    Raises:
        UserError: It is not there, cannot be listed, or is a finished dataset.
    """
    found = []
    try:
        for name, below, is_folder in folder_entries(path):
            if name == MANIFEST_NAME and is_dataset(path):
                raise finished_input(path)
            if is_folder and not passes_over(below):
                found.append((name, below))
    except OSError as e:
        _unreadable(path, e, passes_over)
    return sorted(found)


def files_outside_folders(path: str, passes_over: PathFilter) -> Iterator[Skipped]:
    """The files of a folder that are in none of its class folders, and what is passed over."""
    try:
        for _, below, is_folder in folder_entries(path):
            if skipped := passes_over(below):
                yield skipped
            elif not is_folder:
                yield Skipped("outside_class_folders")
    except OSError as e:
        yield _unreadable(path, e, passes_over)


def folder_entries(path: str) -> Iterator[tuple[str, str, bool]]:
    """(name, path, whether it is a folder) of what is in a folder; here, as the disk gives them.

    Raises:
        OSError: The folder cannot be listed; in a store, it holds nothing.
    """
    if is_local(path):
        # Not storage.list_folder, which passes over broken links: these are counted, too.
        yield from ((entry.name, entry.path, _is_dir(entry)) for entry in _scan(path))
        return
    entries = storage.list_folder(path)
    if not entries:
        raise OSError("it holds nothing")
    yield from ((entry.name, entry.path, entry.is_folder) for entry in entries)


def _unreadable(path: str, e: OSError, passes_over: PathFilter) -> Skipped:
    """A folder below the input that this user may not list, which is passed over.

    Raises:
        UserError: It is the input itself, or the error is another one. Then the folder may be
            readable the next time, so its images must not go unnoticed.
    """
    if isinstance(e, PermissionError) and path.rstrip("/") != passes_over.root:
        return Skipped(UNREADABLE_FOLDER, printable(path))
    raise UserError(
        argument="input",
        received=f"{e.filename or path!r}, which cannot be listed ({e.strerror or e})",
        expected="a folder, a glob, or an image table named .csv, .jsonl or .parquet",
        remedy="fix the path or its permissions",
    ) from e


def none_readable(folders: Iterable[str]) -> bool:
    """Whether this user may list none of some folders; those of a store are listed as one."""
    for folder in folders:
        if not is_local(folder):
            return False
        try:
            next(_scan(folder), None)
            return False
        except PermissionError:
            continue
    return True


def files_below(path: str, passes_over: PathFilter) -> Iterator[Found]:
    """Every file below a folder.

    Raises:
        UserError: There is no such folder, or it is that of the input and cannot be listed.
    """
    if is_local(path):
        return _enter(path, _Walk(passes_over), _folders_above(path))
    return _objects(path, storage.files_below(path), _Walk(passes_over))


def matching_files(pattern: str) -> list[str]:
    """The files that a glob with braces matches, ordered by path; a name without magic as it is.

    Raises:
        UserError: The root of a glob cannot be listed.
    """
    found: list[str] = []
    for each in expand_braces(pattern):
        if is_glob(each):
            matched = files_matching(each, PathFilter(glob_root(each)))
            found += sorted(file for file, size, _ in matched if not isinstance(size, Skipped))
        else:
            found.append(each)
    return found


def files_matching(pattern: str, passes_over: PathFilter) -> Iterator[Found]:
    """Every file that matches a glob, as Beam reads globs.

    Raises:
        UserError: Its root cannot be listed.
    """
    root = glob_root(pattern)
    below = pattern.removeprefix(root).lstrip("/")
    pattern = os.path.join(root, below)
    matches = re.compile(_translated(pattern), re.DOTALL).fullmatch
    start = len(root.rstrip("/")) + 1
    walk = _Walk(passes_over, matches, lambda folder: may_match_inside(below, folder[start:]))
    if is_local(pattern):
        # Beam's own walk does not follow links to folders, and drops broken links without a word.
        return _enter(root, walk, _folders_above(root))
    # A store lists no other names than those with this prefix.
    return _objects(pattern, storage.files_from(literal_prefix(pattern)), walk)


@dataclasses.dataclass(frozen=True)
class _Walk:
    """Which files and folders a listing takes, by their paths."""

    passes_over: PathFilter
    takes: Callable[[str], object] = lambda path: True
    enters: Callable[[str], bool] = lambda folder: True


def _objects(path: str, found: Iterator[Stat], walk: _Walk) -> Iterator[Found]:
    try:
        for file in found:
            if walk.takes(file.path):
                yield file.path, walk.passes_over(file.path) or file.size_bytes, file.mtime_ns
    except OSError as e:
        _unreadable(path, e, walk.passes_over)


def _folders_above(path: str) -> frozenset[str]:
    """The folder and those above it, links resolved."""
    real = pathlib.Path(os.path.realpath(path))
    return frozenset(map(str, (real, *real.parents)))


def _enter(path: str, walk: _Walk, above: frozenset[str]) -> Iterator[Found]:
    """The files below a folder, or the folder itself where this user may not list it."""
    try:
        yield from _walk(path, walk, above)
    except OSError as e:
        yield path, _unreadable(path, e, walk.passes_over), 0


def _walk(path: str, walk: _Walk, above: frozenset[str]) -> Iterator[Found]:
    """The files below a folder.

    A link to one of the folders `above`, the folder itself among them, would never end.
    """
    for entry in _scan(path):
        is_folder = _is_dir(entry)
        enters = is_folder and walk.enters(entry.path)
        if not enters and not walk.takes(entry.path):
            continue
        if skipped := walk.passes_over(entry.path):
            yield entry.path, skipped, 0
        elif not is_folder:
            yield _file(entry)
        elif not enters:
            yield entry.path, Skipped("directory"), 0
        elif (here := os.path.realpath(entry.path)) in above:
            yield entry.path, Skipped("link_to_a_folder_above"), 0
        else:
            yield from _enter(entry.path, walk, above | {here})


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
    with os.scandir(path) as entries:
        yield from entries
