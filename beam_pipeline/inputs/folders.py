"""Finds files below a folder or behind a glob, on this machine or in a store.

Only a few files are held in memory: local folders are scanned in no particular order, stores are
listed page by page. The order does not matter, as the plan orders images by hashes of their keys.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from beam_pipeline.inputs import layout
from beam_pipeline.options import DATASET
from imageshards import storage
from imageshards.errors import Arg, UserError, wrong_input
from imageshards.images.options import passed_over
from imageshards.manifest import MANIFEST_NAME
from imageshards.text import printable

# Path, size in bytes or why the file is passed over, modification time in ns.
Found = tuple[str, "int | Skipped", int]

EXCLUDED_BY_GLOB = "excluded_by_glob"
UNREADABLE_FOLDER = "unreadable_folder"
# Kind of an entry that is no file → the reason why it is passed over.
_NOT_FILES = {
    "folder": "directory", "loop": "link_to_a_folder_above", "special": "special_file",
}  # fmt: skip
# A manifest begins with its version.
_HEAD_BYTES = 100


@dataclasses.dataclass(frozen=True)
class Skipped:
    """File or folder that was passed over."""

    reason: str  # files are counted by the reason
    name: str = ""  # name for a warning; "" for files that are only counted

    def __str__(self) -> str:
        return f"{self.reason}: {self.name}" if self.name else self.reason


class PathFilter:
    """Function from the path of a file or folder to the reason why it is passed over, if any.

    In globs `*` does not cross a slash, `**` does. A glob without a slash is compared with every
    name in a path below `root`, the folder of the input.
    """

    def __init__(self, root: str, globs: Sequence[str] = ()):
        self.root = root.rstrip("/")
        self._prefix = len(self.root) + 1
        self._globs = []
        for glob in globs:
            # Matches a path, or a folder above the path.
            anywhere = "" if "/" in glob.rstrip("/") else "(?:.*/)?"
            body = _translated(unicodedata.normalize("NFC", glob.strip("/")))
            matches = re.compile(f"{anywhere}{body}(?:/.*)?", re.DOTALL).fullmatch
            self._globs.append((glob, matches))

    def __call__(self, path: str) -> Skipped | None:
        below = path[self._prefix :]
        if self._globs:
            # A glob matches a name in either normal form of Unicode.
            composed = unicodedata.normalize("NFC", below)
            for glob, matches in self._globs:
                if matches(composed):
                    return Skipped(EXCLUDED_BY_GLOB, glob)
        reason = passed_over(below)
        return Skipped(reason) if reason else None


def _translated(glob: str) -> str:
    """Returns a glob as a regular expression, without flags and end."""
    from apache_beam.io.filesystem import FileSystem  # imported late, as it imports all of Beam

    return FileSystem.translate_pattern(glob).removeprefix("(?ms)").removesuffix(r"\Z")


def is_dataset(folder: str) -> bool:
    # A different program may have written a large file of this name.
    try:
        head = storage.read(storage.join(folder, MANIFEST_NAME), _HEAD_BYTES)
    except OSError:
        return False
    return head.lstrip(b"{ \r\n").startswith(b'"format_version"')


def finished_input(path: str) -> UserError:
    copied = Arg("layout", DATASET) + " to copy its records"
    remedy = "give their folder, move the dataset out of it, or say " + copied
    return wrong_input(path, "a finished dataset", "original images", remedy)


class Level(NamedTuple):
    """Entries of a folder that are not passed over."""

    folders: list[str]  # sorted names
    has_image: bool
    others: list[str]  # names of some files that are no images


class Tree(Protocol):
    """Folders of an input. A path is relative to the input, "" or with a slash at its end."""

    def level(self, path: str) -> Level:
        """Returns what is directly in a folder."""

    def holds_image(self, path: str) -> bool:
        """Returns whether an image is anywhere below a folder."""

    def files(self, path: str) -> Iterable[str]:
        """Yields the names of the files below a folder, in the same order for equal names."""


def folder_entries(path: str) -> Iterator[tuple[str, str, bool]]:
    if storage.is_local(path):
        # `storage.list_folder` would pass over broken links, which are counted as well.
        for entry in storage.walk(path, enters=lambda folder: False):
            if entry.error is not None:
                raise entry.error
            yield storage.name_of(entry.path), entry.path, entry.kind == "folder"
        return
    entries = storage.list_folder(path)
    if not entries:
        raise OSError("it holds nothing")
    yield from ((entry.name, entry.path, entry.is_folder) for entry in entries)


def unreadable(path: str, e: OSError, passes_over: PathFilter) -> Skipped:
    """Returns a `Skipped` for a folder that this user may not list; raises for the input itself."""
    # After any different error the folder may be readable the next time, so the build ends.
    if isinstance(e, PermissionError) and path.rstrip("/") != passes_over.root:
        return Skipped(UNREADABLE_FOLDER, printable(path))
    problem = f"which cannot be listed ({e.strerror or e})"
    expected = "a folder, a glob, or an image table named .csv, .jsonl or .parquet"
    remedy = "fix the path or its permissions"
    raise wrong_input(e.filename or path, problem, expected, remedy) from e


def none_readable(folders: Iterable[str]) -> bool:
    """Returns whether all folders are local and this user may list none of them."""
    for folder in folders:
        with contextlib.suppress(PermissionError):
            if storage.is_local(folder):
                next(folder_entries(folder), None)
            return False
    return True


def files_below(path: str, passes_over: PathFilter) -> Iterator[Found]:
    """Yields every file below a folder; raises `UserError` if the folder cannot be listed."""
    return _files(path, storage.files_below(path), passes_over)


def matching_files(pattern: str, expected: str) -> list[str]:
    """Returns the sorted files that a glob with braces matches, or the path if it is no glob."""
    found: list[str] = []
    for each in layout.expand_braces(pattern):
        if layout.is_glob(each):
            matched = files_matching(each, PathFilter(layout.glob_root(each)))
            found += sorted(file for file, size, _ in matched if not isinstance(size, Skipped))
        else:
            found.append(each)
    if not found:
        raise wrong_input(pattern, "which matches no file", expected, "fix the pattern")
    return found


def files_matching(pattern: str, passes_over: PathFilter) -> Iterator[Found]:
    """Yields every file that a glob matches; raises `UserError` if its root cannot be listed."""
    root = layout.glob_root(pattern)
    below = pattern.removeprefix(root).lstrip("/")
    pattern = os.path.join(root, below)
    matches = re.compile(_translated(pattern), re.DOTALL).fullmatch
    start = len(root.rstrip("/")) + 1
    # A store lists only names with this prefix; a local folder is walked.
    prefix = layout.literal_prefix(pattern)
    stored = iter(()) if storage.is_local(root) else storage.files_from(prefix)

    def enters(folder: str) -> bool:
        return layout.may_match_inside(below, folder[start:])

    return _files(root, stored, passes_over, matches, enters)


def _files(
    root: str,
    stored: Iterator[storage.Stat],
    passes_over: PathFilter,
    takes: Callable[[str], object] = lambda path: True,
    enters: Callable[[str], bool] = lambda folder: True,
) -> Iterator[Found]:
    """Yields the files below a local folder, and each folder that is not listed, or stored files.

    `takes` says which files are wanted, `enters` which local folders may hold such files.
    """
    if not storage.is_local(root):
        try:
            for file in filter(lambda file: takes(file.path), stored):
                yield file.path, passes_over(file.path) or file.size_bytes, file.mtime_ns
        except OSError as e:
            unreadable(root, e, passes_over)
        return
    # Beam's own listing does not follow links to folders, and drops broken links silently.
    for entry in storage.walk(root, lambda path: enters(path) and not passes_over(path)):
        may_enter = entry.kind in ("folder", "loop") and enters(entry.path)
        if entry.error is not None:
            yield entry.path, unreadable(entry.path, entry.error, passes_over), 0
        elif may_enter or takes(entry.path):
            # A deleted file or broken link is listed with size -1, and quarantined when it is read.
            size: int | Skipped = -1
            if entry.kind in _NOT_FILES:
                size = Skipped(_NOT_FILES[entry.kind])
            elif entry.kind == "file" and entry.status is not None:
                size = entry.status.st_size
            mtime_ns = entry.status.st_mtime_ns if entry.status is not None else 0
            yield entry.path, passes_over(entry.path) or size, mtime_ns
