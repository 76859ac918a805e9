"""Finds images in tar and zip archives; each becomes a range of bytes of its archive, never a file.

Only headers are read, by `tarfile` and `zipfile`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import posixpath
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from beam_pipeline.images.read import DEFLATED, PICTURE, STORED, ZIP_MEMBER
from beam_pipeline.inputs.folders import PathFilter, Skipped, folder_entries, matching_files
from beam_pipeline.inputs.layout import (
    expand_braces,
    glob_root,
    is_glob,
    layout_of,
    unreadable,
    wrong_input,
)
from beam_pipeline.inputs.spool import DECOMPRESSION_ERRORS, decompressed
from beam_pipeline.options import ARCHIVE_SUFFIXES, ARCHIVES, DATASET, TABLE, InputOptions
from imageshards import storage

# A tar header has 512 bytes. With a larger buffer, reading headers would also read data of images.
_LOCAL_BUFFER_BYTES = 4096
# Number of names in a folder of a store that are searched for archives.
_PEEKED_NAMES = 1000
_FILES = (*ARCHIVE_SUFFIXES, ".parquet")
_SUFFIX = re.compile(f"(?:{'|'.join(map(re.escape, _FILES))})$", re.IGNORECASE)
_ENCRYPTED = 0x01  # flag of a member of a zip archive
_TAR_BLOCK_BYTES = tarfile.BLOCKSIZE


class Member(NamedTuple):
    """File in an archive, with numbers as for an `ImageRef`."""

    name: str  # normalised path inside the archive, behind the stem of a tar that is inside a tar
    offset_bytes: int
    size_bytes: int
    form: str = PICTURE


def archive_files(source: InputOptions) -> list[tuple[str, str]]:
    """Returns (path, beginning of keys) of each archive of an input.

    The beginning is "" for a single archive, else the archive's path below the input's folder,
    without its suffix.
    """
    pattern = source.input
    if not is_glob(pattern) and expand_braces(pattern) == [pattern]:
        return [(pattern, "")]
    found = matching_files(pattern, "archives (.tar, .zip, .tar.gz)")
    start = len(glob_root(pattern)) + 1
    return [(path, _SUFFIX.sub("", path[start:])) for path in found]


def with_files(source: InputOptions) -> InputOptions:
    """Replaces a folder of archives or Parquet files by a glob that matches these files.

    A folder that also holds folders or images is returned unchanged, like any different input.
    """
    folder = source.input.rstrip("/")
    if is_glob(folder) or layout_of(source) in (TABLE, DATASET, ARCHIVES):
        return source
    passes_over = PathFilter(folder)
    suffixes = set()
    try:
        for path, is_folder in _first_entries(folder):
            if passes_over(path):
                continue
            if is_folder or path.lower().endswith(source.extensions):
                return source
            if found := _SUFFIX.search(path):
                suffixes.add(found[0])
    except OSError:
        return source  # the listing raises this error again, as a sentence
    if not suffixes:
        return source
    names = ",".join(f"*{suffix}" for suffix in sorted(suffixes))
    pattern = f"{{{names}}}" if len(suffixes) > 1 else names
    return dataclasses.replace(source, input=storage.join(folder, pattern))


def _first_entries(folder: str) -> Iterator[tuple[str, bool]]:
    if storage.is_local(folder):
        yield from ((path, is_folder) for _, path, is_folder in folder_entries(folder))
        return
    above = len(folder) + 1
    for _, file in zip(range(_PEEKED_NAMES), storage.files_below(folder), strict=False):
        yield file.path, "/" in file.path[above:]


class Archive:
    """Archive that `open_archive` has opened."""

    def __init__(self, file: Any, is_zip: bool):
        self._file = file
        self._is_zip = is_zip

    def members(self) -> Iterator[Member | Skipped]:
        """Yields the files of the archive in order, and a `Skipped` for each member passed over."""
        if not self._is_zip:
            yield from self._of_tar(0, None, "")
            return
        with zipfile.ZipFile(self._file) as archive:
            for found in archive.infolist():
                # Some Windows programs write backslashes as separators.
                name = _inside(found.filename.replace("\\", "/"))
                if found.is_dir():
                    continue
                if name is None:
                    yield Skipped("outside_archive")
                elif stat.S_ISLNK(found.external_attr >> 16):
                    yield Skipped("link")
                elif found.flag_bits & _ENCRYPTED:
                    yield Skipped("encrypted")
                elif found.compress_type not in (STORED, DEFLATED):
                    yield Skipped("unknown_compression")
                else:
                    yield Member(name, found.header_offset, found.compress_size, ZIP_MEMBER)

    def read(self, member: Member) -> bytes:
        self._file.seek(member.offset_bytes)
        return bytes(self._file.read(member.size_bytes))

    def _of_tar(self, start: int, end: int | None, folder: str) -> Iterator[Member | Skipped]:
        self._file.seek(start)
        with tarfile.TarFile(fileobj=self._file) as tar:
            while (found := tar.next()) and (end is None or found.offset < end):
                # `tarfile` would keep every header in memory.
                tar.members.clear()  # type: ignore[attr-defined]
                yield from self._tar_member(found, folder)
                # The last byte of the data shows that the tar is not cut off. Seeking further back
                # would decompress a compressed tar again for each member.
                self._file.seek(tar.offset - 1)
                if not self._file.read(1):
                    raise tarfile.ReadError("unexpected end of data")
            if found is None:
                # `tarfile` ends without an error where bytes that are no header follow.
                self._file.seek(tar.offset)
                block = self._file.read(_TAR_BLOCK_BYTES)
                if block.strip(b"\0") or 0 < len(block) < _TAR_BLOCK_BYTES:
                    raise tarfile.ReadError(f"no header at byte {tar.offset:,}")

    def _tar_member(self, found: tarfile.TarInfo, folder: str) -> Iterator[Member | Skipped]:
        if found.isdir():
            return
        name = _inside(found.name)
        if name is None:
            yield Skipped("outside_archive")
        elif found.islnk() or found.issym():
            yield Skipped("link")
        elif not found.isreg() or found.issparse():
            yield Skipped("special_file")
        elif name.lower().endswith(".tar"):
            inner = posixpath.join(folder, name[: -len(".tar")])
            end = found.offset_data + found.size
            yield from self._of_tar(found.offset_data, end, inner)
        else:
            yield Member(posixpath.join(folder, name), found.offset_data, found.size)


def _inside(name: str) -> str | None:
    """Returns the path of a member inside its archive; None if it leads out of the archive."""
    path = posixpath.normpath(name)
    if path.startswith(("/", "../")) or path in ("..", "."):
        return None
    return path


@contextlib.contextmanager
def open_archive(path: str, spooled: str = "", version: str = "") -> Iterator[Archive]:
    """Opens an archive, or its decompressed copy; raises `UserError` also if a later read fails.

    Without a copy, a compressed tar can only be read once, from its beginning. `version` is the one
    that the archive must have, "" for any.
    """
    place, version = (spooled, "") if spooled else (path, version)
    try:
        with contextlib.ExitStack() as stack:
            if not spooled and (opener := decompressed(path)):
                file: Any = stack.enter_context(opener(storage.open_read(path, version)))
            else:
                file = storage.open_read(place, version)
                if storage.is_local(place):  # the buffer of an opened file is too large
                    file = io.BufferedReader(file.detach(), _LOCAL_BUFFER_BYTES)
                stack.enter_context(file)
            yield Archive(file, place.lower().endswith(".zip"))
    except (*DECOMPRESSION_ERRORS, tarfile.TarError, zipfile.BadZipFile, ValueError) as e:
        reason = getattr(e, "strerror", None) or str(e) or type(e).__name__
        if isinstance(e, OSError) and e.errno:
            raise unreadable(path, e) from e
        problem = f"which is damaged, cut off or no archive of its name ({reason})"
        expected, remedy = "a whole .tar, .zip or .tar.gz", "fetch or pack it again"
        raise wrong_input(path, problem, expected, remedy) from e
