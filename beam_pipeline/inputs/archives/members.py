"""Finds images in tar and zip archives; each becomes a range of bytes of its archive, never a file.

Only headers are read, by `tarfile` and `zipfile`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import posixpath
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from beam_pipeline.images.member import DEFLATED, PICTURE, STORED, ZIP_MEMBER
from beam_pipeline.inputs.folders import PathFilter, Skipped, folder_entries, matching_files
from beam_pipeline.inputs.layout import expand_braces, glob_root, is_glob, layout_of, wrong_input
from beam_pipeline.inputs.spool import DECOMPRESSION_ERRORS, decompressed
from beam_pipeline.options import ARCHIVE_SUFFIXES, ARCHIVES, DATASET, TABLE, InputOptions
from imageshards import storage
from imageshards.errors import UserError
from imageshards.storage.base import RANGE_BYTES

# A tar header has 512 bytes. With a larger buffer, reading headers would also read data of images.
_LOCAL_BUFFER_BYTES = 4096
_FIRST_RANGE_BYTES = 64 << 10
# Number of names in a folder of a store that are searched for archives.
_PEEKED_NAMES = 1000
_FILES = (*ARCHIVE_SUFFIXES, ".parquet")
_SUFFIX = re.compile(f"(?:{'|'.join(map(re.escape, _FILES))})$", re.IGNORECASE)
_ENCRYPTED = 0x01  # flag of a member of a zip archive
_TAR_BLOCK_BYTES = tarfile.BLOCKSIZE


class Member(NamedTuple):
    """File in an archive.

    Attributes:
        name: Normalised path inside the archive, behind the stem of a tar that is inside a tar.
        offset_bytes: Position of the bytes in the archive; in a zip, of the local header.
        size_bytes: Number of bytes; in a zip, of compressed bytes.
        form: As for an `ImageRef`.
    """

    name: str
    offset_bytes: int
    size_bytes: int
    form: str = PICTURE


def archive_files(source: InputOptions) -> list[tuple[str, str]]:
    """Returns (path, beginning of keys) of each archive of an input.

    Keys begin with nothing for a single archive. For several archives, keys begin with the path of
    their archive below the input's folder, without its suffix.
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
    """Open archive. All methods raise `UserError` if the archive is damaged."""

    def __init__(self, path: str, file: Any, name: str = ""):
        self._path = path
        self._file = file
        self._is_zip = (name or path).lower().endswith(".zip")

    def members(self) -> Iterator[Member | Skipped]:
        """Yields the files of the archive in order, and a `Skipped` for each member passed over."""
        with self._as_user_errors():
            yield from self._of_zip() if self._is_zip else self._of_tar(0, None, "")

    def read(self, member: Member) -> bytes:
        """Returns the bytes of a member of a tar."""
        with self._as_user_errors():
            self._file.seek(member.offset_bytes)
            data: bytes = self._file.read(member.size_bytes)
            return data

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

    def _of_zip(self) -> Iterator[Member | Skipped]:
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

    @contextlib.contextmanager
    def _as_user_errors(self) -> Iterator[None]:
        try:
            yield
        except (*DECOMPRESSION_ERRORS, tarfile.TarError, zipfile.BadZipFile, ValueError) as e:
            raise unreadable(self._path, e) from e


def unreadable(path: str, e: BaseException) -> UserError:
    """Returns the error for an archive that cannot be read to its end."""
    reason = getattr(e, "strerror", None) or str(e) or type(e).__name__
    if isinstance(e, OSError) and e.errno:
        problem = f"which cannot be read ({reason})"
        return wrong_input(path, problem, remedy="fix the path or its permissions")
    problem = f"which is damaged, cut off or no archive of its name ({reason})"
    return wrong_input(path, problem, "a whole .tar, .zip or .tar.gz", "fetch or pack it again")


def _inside(name: str) -> str | None:
    """Returns the path of a member inside its archive; None if it leads out of the archive."""
    path = posixpath.normpath(name)
    if path.startswith(("/", "../")) or path in ("..", "."):
        return None
    return path


@contextlib.contextmanager
def open_archive(path: str, spooled: str = "") -> Iterator[Archive]:
    """Opens an archive, or its decompressed copy; raises `UserError` if it cannot be read.

    Without a copy, a compressed tar can only be read once, from its beginning.
    """
    place = spooled or path
    with contextlib.ExitStack() as stack:
        try:
            if not spooled and (opener := decompressed(path)):
                file: Any = stack.enter_context(opener(storage.open_read(path)))
            elif storage.is_local(place):
                opened: Any = storage.open_read(place)
                raw = opened.detach()  # the buffer of an opened file is too large
                file = stack.enter_context(io.BufferedReader(raw, _LOCAL_BUFFER_BYTES))
            else:
                file = _StoreFile(place)
        except OSError as e:
            raise unreadable(path, e) from e
        yield Archive(path, file, place)


class _StoreFile:
    """Object of a store as a file, read in ranges."""

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


def without_wrapper(names: Sequence[str], is_split: Callable[[str], bool]) -> int:
    """Returns the length of the path of a folder that wraps all images; 0 if no folder does.

    `flower_photos/` wraps `flower_photos/daisy/1.jpg`. `train/` does not wrap `train/daisy/1.jpg`,
    as the name of a split has a meaning.
    """
    length = 0
    while names:
        top = {name[length:].partition("/")[0] for name in names}
        (first, *others) = top
        deep = all(name.count("/", length) > 1 for name in names)
        if others or is_split(first) or not deep:
            break
        length += len(first) + 1
    return length
