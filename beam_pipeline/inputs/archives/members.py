"""Finds images in tar and zip archives; each becomes a range of bytes of its archive, never a file.

Only headers are read, by `tarfile` and `zipfile`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import posixpath
import stat
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self

from beam_pipeline.images.read import (
    DEFLATED,
    PICTURE,
    STORED,
    ZIP_HEADER_BYTES,
    ZIP_MEMBER,
    read_zip_member,
)
from beam_pipeline.inputs.annotations.refused import file_error
from beam_pipeline.inputs.folders import PathFilter, Skipped, files_below, matching_files
from beam_pipeline.inputs.layout import glob_root, is_glob, is_pattern, layout_of, without_suffix
from beam_pipeline.inputs.spool import DECOMPRESSION_ERRORS, decompressed, spool_tar
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import ARCHIVE_SUFFIXES, ARCHIVES, DATASET, TABLE, InputOptions
from imageshards import storage
from imageshards.errors import UserError, unreadable_input, wrong_input
from imageshards.storage.concurrency import check_stopped
from imageshards.text import printable

# A tar header has 512 bytes. With a larger buffer, reading headers would also read data of images.
_LOCAL_BUFFER_BYTES = 4096
# Flags of a member of a zip archive.
_ENCRYPTED, _UTF8 = 0x01, 0x800
_UNIX = 3  # system that made a member
_ZIP_END_BYTES = 22  # the record at the end of a zip, without its comment
# Larger texts are refused, as captions and metadata are small.
MAX_TEXT_BYTES = 16 << 20
# Headers of a tar that hold names and attributes of the next member, and their largest size.
_LONG_NAMES = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)  # fmt: skip
_MAX_NAME_BYTES = 1 << 20
_MAX_BYTES = 1 << 60
_ZEROS_BYTES = 1 << 20

# Reason of a `Skipped` that names a zip whose names are in an unknown encoding.
UNKNOWN_ENCODING = "unknown_encoding"


class Member(NamedTuple):
    """File in an archive, with numbers as for an `ImageRef`."""

    name: str  # normalised path inside the archive, behind the stem of a tar that is inside a tar
    offset_bytes: int
    size_bytes: int
    form: str = PICTURE

    @property
    def place(self) -> dict[str, Any]:
        """The values of an `ImageRef` that say where the bytes are in the archive."""
        return {name: value for name, value in self._asdict().items() if name != "name"}


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
    Raises `UserError` for archives beside tables, which may describe them.
    """
    folder = source.input.rstrip("/")
    if is_glob(folder) or layout_of(source) in (TABLE, DATASET, ARCHIVES):
        return source
    endings: dict[str, str] = {}  # of archives and tables, each with a name
    try:
        found = files_below(folder, PathFilter(folder))
        # A store lists a folder page by page, a disk at once.
        for path, size, _ in found if storage.is_local(folder) else itertools.islice(found, 1000):
            name = path[len(folder) + 1 :]
            if not isinstance(size, Skipped) and (
                "/" in name or name.lower().endswith(source.extensions)
            ):
                return source
            if (stem := without_suffix(name)) != name:
                endings[name[len(stem) :]] = name
    except (OSError, UserError):
        return source  # the listing raises this error again, as a sentence
    archives = sorted(each for each in endings if each.lower() in ARCHIVE_SUFFIXES)
    parquet = [each for each in endings if each.lower() == ".parquet"]
    if archives and (tables := endings.keys() - archives):
        problem = f"with archives and the table {endings[min(tables)]!r}"
        remedy = f"give a glob of the files that are meant, such as '{folder}/*{archives[0]}'"
        raise wrong_input(folder, problem, "files of one kind", remedy)
    if not (names := ",".join(f"*{each}" for each in archives or parquet)):
        return source
    pattern = f"{{{names}}}" if "," in names else names
    return dataclasses.replace(source, input=storage.join(folder, pattern))


class Archive:
    """Archive that `open_archive` has opened; `spooled` is the path of its decompressed copy."""

    def __init__(self, file: Any, path: str, spooled: str, encoding: str | None):
        self._file, self._path, self._encoding = file, path, encoding
        self.spooled = spooled

    def members(self) -> Iterator[Member | Skipped]:
        """Yields the files of the archive in order, and a `Skipped` for each member passed over.

        A `Skipped` of `UNKNOWN_ENCODING` comes before a member.
        """
        is_zip = self._path.lower().endswith(".zip")
        return self._of_zip() if is_zip else self._of_tar(self._file, 0, "")

    def read(self, member: Member) -> bytes:
        """Returns the content of a small member."""
        in_zip = member.form == ZIP_MEMBER
        self._file.seek(member.offset_bytes)
        data = bytes(self._file.read(member.size_bytes + (ZIP_HEADER_BYTES if in_zip else 0)))
        return read_zip_member(data, member.size_bytes, MAX_TEXT_BYTES) if in_zip else data

    def _of_zip(self) -> Iterator[Member | Skipped]:
        with zipfile.ZipFile(self._file) as archive:
            _check_zip_is_alone(self._file, archive)
            found_all = archive.infolist()
            encoding = self._encoding or _encoding_of_names(found_all)
            for found in found_all:
                if found.is_dir():
                    continue
                if not encoding and not _is_known(found):
                    yield Skipped(UNKNOWN_ENCODING, printable(self._path))
                name = self._zip_name(found, encoding)
                # Some Windows programs write backslashes as separators.
                inside = _inside(name.replace("\\", "/"))
                if inside is None:
                    yield Skipped("outside_archive")
                elif stat.S_ISLNK(found.external_attr >> 16):
                    yield Skipped("link")
                elif found.flag_bits & _ENCRYPTED:
                    yield Skipped("encrypted")
                elif found.compress_type not in (STORED, DEFLATED):
                    yield Skipped("unknown_compression")
                else:
                    yield Member(inside, found.header_offset, found.compress_size, ZIP_MEMBER)

    def _zip_name(self, found: zipfile.ZipInfo, encoding: str) -> str:
        if not encoding or _is_known(found):
            return found.filename
        try:
            return found.filename.encode("cp437").decode(encoding)
        except UnicodeEncodeError:
            return found.filename  # from a field in Unicode
        except UnicodeDecodeError as e:
            received = f"{encoding!r}, which is not the encoding of names in {self._path!r}"
            raise invalid("zip_encoding", received, "the encoding of all names") from e

    def _of_tar(self, file: Any, begin: int, folder: str) -> Iterator[Member | Skipped]:
        """Yields the members of a tar, and of tars that were joined to it by `cat`.

        `begin` is the position of `file` in the archive.
        """
        start = 0
        while start >= 0:
            file.seek(start)
            tar = tarfile.TarFile(fileobj=file, tarinfo=_Header)
            while found := tar.next():
                check_stopped()
                # `tarfile` would keep every header in memory.
                tar.members.clear()  # type: ignore[attr-defined]
                _check_size(found.size)
                yield from self._tar_member(found, tar, begin, folder)
                # The last byte of the data shows that the tar is not cut off. Seeking further back
                # would decompress a compressed tar again for each member.
                file.seek(tar.offset - 1)
                if not file.read(1):
                    raise tarfile.ReadError("unexpected end of data")
            start = _joined_tar(file, tar.offset)

    def _tar_member(
        self, found: tarfile.TarInfo, tar: tarfile.TarFile, begin: int, folder: str
    ) -> Iterator[Member | Skipped]:
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
            path = posixpath.join(folder, name[: -len(".tar")])
            inner = tar.extractfile(found)  # the range of the file, which is not unpacked
            yield from self._of_tar(inner, begin + found.offset_data, path)
        else:
            yield Member(posixpath.join(folder, name), begin + found.offset_data, found.size)


class _Header(tarfile.TarInfo):
    """Header of a member, with sizes that are checked before `tarfile` uses them."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        # `tarfile` reads names that are too long for a header into memory.
        _check_size(found.size, _MAX_NAME_BYTES if found.type in _LONG_NAMES else _MAX_BYTES)
        return found


def _check_size(size_bytes: int, most: int = _MAX_BYTES) -> None:
    if not 0 <= size_bytes <= most:
        raise tarfile.ReadError(f"a header with the size {size_bytes:,}")


def _joined_tar(file: Any, end: int) -> int:
    """Returns where another tar begins behind the zero blocks at `end`; -1 if none does."""
    file.seek(end)
    blocks = file.read(tarfile.BLOCKSIZE)
    if len(blocks) < tarfile.BLOCKSIZE or blocks.strip(b"\0"):
        at_end = "its end is missing" if not blocks else f"no header at byte {end:,}"
        raise tarfile.ReadError(at_end)
    while blocks and not blocks.strip(b"\0"):
        end += len(blocks)
        blocks = file.read(_ZEROS_BYTES)
    zeros = len(blocks) - len(blocks.lstrip(b"\0"))
    return end + zeros - zeros % tarfile.BLOCKSIZE if blocks else -1


def _check_zip_is_alone(file: Any, archive: zipfile.ZipFile) -> None:
    """Raises `BadZipFile` if bytes follow a zip, or if another zip is in front of it.

    `zipfile` finds a zip by its end and would pass over the other one.
    """
    file.seek(-_ZIP_END_BYTES - len(archive.comment), io.SEEK_END)
    if file.read(4) != b"PK\5\6":
        raise zipfile.BadZipFile("bytes follow its end")
    file.seek(0)
    begins = min((found.header_offset for found in archive.infolist()), default=0)
    if begins and file.read(4) == b"PK\3\4":
        raise zipfile.BadZipFile("another zip is joined to it")


def _is_known(found: zipfile.ZipInfo) -> bool:
    """Returns whether a zip says how the name of a member is encoded."""
    return found.filename.isascii() or bool(found.flag_bits & _UTF8)


def _encoding_of_names(members: Iterable[zipfile.ZipInfo]) -> str:
    """Returns the encoding of names that do not say theirs: UTF-8, or "" if it is unknown.

    `zipfile` reads such names as IBM's code page 437, in which each byte is a character. macOS
    writes UTF-8 without saying so, and Windows its own code page.
    """
    try:
        for found in members:
            if not _is_known(found):
                found.filename.encode("cp437").decode()
                if found.create_system != _UNIX:
                    return ""
    except UnicodeEncodeError:
        pass  # from a field in Unicode
    except UnicodeDecodeError:
        return ""
    return "utf-8"


def _inside(name: str) -> str | None:
    """Returns the path of a member inside its archive; None if it leads out of the archive."""
    path = posixpath.normpath(name)
    if path.startswith(("/", "../")) or path in ("..", "."):
        return None
    return path


@contextlib.contextmanager
def open_archive(
    path: str, found: storage.Stat | None = None, spool: str = "", encoding: str | None = None
) -> Iterator[Archive]:
    """Opens an archive, or its decompressed copy; raises `UserError` also if a later read fails.

    `found` is the file that the archive must still be, None for any. A compressed tar is unpacked
    in the folder `spool`, or, without one, can only be read once, from its beginning.
    """
    try:
        with contextlib.ExitStack() as stack:
            opener, spooled = decompressed(path), ""
            if opener and found:
                spooled = spool_tar(found, spool, opener)
            place, version = spooled or path, found.version if found and not spooled else ""
            file: Any = storage.open_read(place, version)
            if opener and not spooled:
                file = opener(file)
            elif storage.is_local(place):  # the buffer of an opened file is too large
                file = io.BufferedReader(file.detach(), _LOCAL_BUFFER_BYTES)
            stack.enter_context(file)
            yield Archive(file, path, spooled, encoding)
    except (
        *DECOMPRESSION_ERRORS, tarfile.TarError, zipfile.BadZipFile, ValueError, RecursionError,
    ) as e:  # fmt: skip
        reason = getattr(e, "strerror", None) or str(e) or type(e).__name__
        if isinstance(e, OSError) and e.errno:
            raise unreadable_input(path, e) from e
        if error := file_error(path):
            raise error from e
        problem = f"which is damaged, cut off or no archive of its name ({reason})"
        expected, remedy = "a whole .tar, .zip or .tar.gz", "fetch or pack it again"
        raise wrong_input(path, problem, expected, remedy) from e
