"""Unpacks compressed archives and Parquet files into plain files, which can be read by ranges.

Spooled files are in the folder of the unfinished dataset (`.staging/spool/`) and are deleted with
that folder. The name of a spooled file is a hash of the path, size and time of its source. So a
resumed build finds the file again, and a source that has changed is spooled anew.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import hashlib
import lzma
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from imageshards import storage
from imageshards.errors import Arg, wrong_input
from imageshards.storage.base import Stat, replaced
from imageshards.storage.concurrency import check_stopped

SPOOL_NAME = "spool"
_PIECE_BYTES = 1 << 20
_BZ2_END = 0x177245385090
_TAIL_BYTES = 16

_OPENERS: dict[tuple[str, ...], Callable[..., Any]] = {
    (".tar.gz", ".tgz"): gzip.open,
    (".tar.bz2", ".tbz2"): bz2.open,
    (".tar.xz", ".txz"): lzma.open,
}
DECOMPRESSION_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)


def decompressed(path: str) -> Callable[..., Any] | None:
    """Returns the function that opens a compressed tar as a stream; else None."""
    return next((o for ends, o in _OPENERS.items() if path.lower().endswith(ends)), None)


@contextlib.contextmanager
def spooled_file(
    source: Stat, folder: str, part: str = ""
) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yields the path for the spooled contents of a file, or of a part, and the file to write.

    The file is None if a build has spooled the same contents before. Raises `UserError` if the disk
    is full.
    """
    if not folder:
        problem = "which cannot be read by ranges"
        remedy = "give ListImages one by spool"
        raise wrong_input(source.path, problem, "a folder to unpack it in", remedy)
    said = repr((source.path, source.size_bytes, source.mtime_ns, source.version, part))
    digest = hashlib.sha256(said.encode("utf-8", "backslashreplace"))
    path = storage.join(folder, digest.hexdigest()[:32])
    if storage.exists(path):
        yield path, None
        return
    try:
        with storage.open_write(path) as target:
            yield path, target
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Files of a store are written to a temporary local file first.
        place = folder if storage.is_local(folder) else tempfile.gettempdir()
        problem = f"which is unpacked into {place!r} ({e.strerror})"
        remedy = "free some space, choose another " + Arg("output")
        remedy += ", or pack the images without compression"
        raise wrong_input(source.path, problem, remedy=remedy) from e


def spool_tar(source: Stat, folder: str, opener: Callable[..., Any]) -> str:
    """Writes a compressed tar as a plain file, unless that file exists; returns its path."""
    with spooled_file(source, folder) as (path, target):
        if target is not None:
            with storage.open_read(source.path, source.version) as stored:
                with opener(stored) as content:
                    while data := content.read(_PIECE_BYTES):
                        check_stopped()
                        target.write(data)
                if not _ends_whole(stored, opener):
                    raise EOFError("bytes that are no such stream follow its end")
            # A file of this machine may have been written to while it was read.
            if storage.stat(source.path) != source:
                raise replaced(source.path)
    return path


def _ends_whole(stored: IO[bytes], opener: Callable[..., Any]) -> bool:
    """Returns whether a file ends as a compressed stream does, as `bz2` and `lzma` pass over more.

    A stream of bz2 ends with a mark of 48 bits at any bit, a checksum and at most 7 bits.
    """
    stored.seek(max(0, stored.seek(0, os.SEEK_END) - _TAIL_BYTES))
    tail = stored.read()
    if opener is bz2.open:
        bits = int.from_bytes(tail, "big")
        return any(bits >> 32 + shift & (1 << 48) - 1 == _BZ2_END for shift in range(8))
    return opener is gzip.open or tail.rstrip(b"\0").endswith(b"YZ")
