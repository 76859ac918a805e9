"""Finds images in tar and zip archives; each becomes a range of bytes of its archive, never a file.

Only headers are read, by `tarfile` and `zipfile`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import posixpath
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from beam_pipeline.images.read import DEFLATED, PICTURE, STORED, ZIP_MEMBER
from beam_pipeline.inputs.folders import PathFilter, Skipped, folder_entries, matching_files
from beam_pipeline.inputs.layout import (
    glob_root,
    is_glob,
    is_pattern,
    layout_of,
    without_suffix,
    wrong_input,
)
from beam_pipeline.inputs.spool import DECOMPRESSION_ERRORS, decompressed
from beam_pipeline.options import ARCHIVE_SUFFIXES, ARCHIVES, DATASET, TABLE, InputOptions
from imageshards import storage
from imageshards.storage.base import RANGE_BYTES

# A tar header has 512 bytes. With a larger buffer, reading headers would also read data of images.
_LOCAL_BUFFER_BYTES = 4096
_FIRST_RANGE_BYTES = 64 << 10
# Number of names in a folder of a store that are searched for archives.
_PEEKED_NAMES = 1000
_FILES = (*ARCHIVE_SUFFIXES, ".parquet")
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
    if not is_pattern(pattern):
        return [(pattern, "")]
    found = matching_files(pattern, "archives (.tar, .zip, .tar.gz)")
    start = len(glob_root(pattern)) + 1
    return [(path, without_suffix(path[start:])) for path in found]


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
            if path.lower().endswith(_FILES):
                suffixes.add(path[len(without_suffix(path)) :])
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
def open_archive(path: str, spooled: str = "") -> Iterator[Archive]:
    """Opens an archive, or its decompressed copy; raises `UserError` also if a later read fails.

    Without a copy, a compressed tar can only be read once, from its beginning.
    """
    place = spooled or path
    try:
        with contextlib.ExitStack() as stack:
            if not spooled and (opener := decompressed(path)):
                file: Any = stack.enter_context(opener(storage.open_read(path)))
            elif storage.is_local(place):
                opened: Any = storage.open_read(place)
                raw = opened.detach()  # the buffer of an opened file is too large
                file = stack.enter_context(io.BufferedReader(raw, _LOCAL_BUFFER_BYTES))
            else:
                file = _StoreFile(place)
            yield Archive(file, place.lower().endswith(".zip"))
    except (*DECOMPRESSION_ERRORS, tarfile.TarError, zipfile.BadZipFile, ValueError) as e:
        reason = getattr(e, "strerror", None) or str(e) or type(e).__name__
        if isinstance(e, OSError) and e.errno:
            problem = f"which cannot be read ({reason})"
            raise wrong_input(path, problem, remedy="fix the path or its permissions") from e
        problem = f"which is damaged, cut off or no archive of its name ({reason})"
        expected, remedy = "a whole .tar, .zip or .tar.gz", "fetch or pack it again"
        raise wrong_input(path, problem, expected, remedy) from e


class _StoreFile:
    def __init__(self, path: str):
        found = storage.stat(path)
        if found is None:
            raise FileNotFoundError(2, os.strerror(2), path)
        self._path, self._size = path, found.size_bytes
        self._position = self._start = 0
        self._data = b""
        self._range_bytes = _FIRST_RANGE_BYTES

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        begin = self._position
        end = self._size if size < 0 else min(begin + size, self._size)
        if not self._start <= begin <= end <= self._start + len(self._data):
            # Ranges are small for single headers, and grow while neighbours are read.
            is_near = 0 <= begin - self._start < len(self._data) + self._range_bytes
            grown = min(4 * self._range_bytes, RANGE_BYTES)
            self._range_bytes = grown if is_near else _FIRST_RANGE_BYTES
            until = min(max(end, begin + self._range_bytes), self._size)
            self._data = storage.read_range(self._path, begin, until) if until > begin else b""
            self._start = begin
        self._position = max(begin, end)
        return self._data[begin - self._start : end - self._start]
