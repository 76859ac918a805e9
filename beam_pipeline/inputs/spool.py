"""Unpacks compressed archives and Parquet files into plain files, which can be read by ranges.

Spooled files are in the folder of the unfinished dataset (`.staging/spool/`) and are deleted with
that folder. The name of a spooled file is a hash of the path, size and time of its source. So a
resumed build finds the file again, and a source that has changed is spooled anew.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable
from typing import IO, Any

from beam_pipeline.inputs.layout import wrong_input
from imageshards import storage
from imageshards.errors import Arg
from imageshards.storage.base import Stat, replaced
from imageshards.storage.concurrency import check_stopped

SPOOL_NAME = "spool"
# Free space that spooled files leave on a disk.
_LEFT_FREE_BYTES = 256 << 20
_PIECE_BYTES = 1 << 20

_OPENERS: dict[tuple[str, ...], Callable[..., Any]] = {
    (".tar.gz", ".tgz"): gzip.open,
    (".tar.bz2", ".tbz2"): bz2.open,
    (".tar.xz", ".txz"): lzma.open,
}
DECOMPRESSION_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)


def decompressed(path: str) -> Callable[..., Any] | None:
    """Returns the function that opens a compressed tar as a stream; else None."""
    return next((o for ends, o in _OPENERS.items() if path.lower().endswith(ends)), None)


def spooled_path(folder: str, source: Stat, part: str = "") -> str:
    """Returns the path for the spooled contents of a file, or of a part of the file."""
    if not folder:
        problem = "which cannot be read by ranges"
        remedy = "give ListImages one by spool"
        raise wrong_input(source.path, problem, "a folder to unpack it in", remedy)
    said = repr((source.path, source.size_bytes, source.mtime_ns, source.version, part))
    digest = hashlib.sha256(said.encode("utf-8", "backslashreplace"))
    return storage.join(folder, digest.hexdigest()[:32])


def spool_tar(source: Stat, folder: str) -> str:
    """Writes a compressed tar as a plain file, unless that file exists; returns its path."""
    path = spooled_path(folder, source) + ".tar"
    opener = decompressed(source.path)
    if opener is None or storage.exists(path):
        return path
    with storage.open_write(path) as target:
        with storage.open_read(source.path, source.version) as stored:
            with opener(stored) as content:
                while data := content.read(_PIECE_BYTES):
                    check_space(folder, len(data), source.path)
                    target.write(data)
            if not _ends_whole(stored, opener):
                raise EOFError("bytes that are no such stream follow its end")
        # A file of this machine may have been written to while it was read.
        if storage.stat(source.path) != source:
            raise replaced(source.path)
    return path


def check_space(folder: str, num_bytes: int, path: str) -> None:
    """Raises `UserError` if a disk has too little space for more spooled bytes.

    Raises `KeyboardInterrupt` after Ctrl-C, as spooling a file may take minutes.
    """
    check_stopped()
    # Files of a store are written to a temporary local file first.
    place = os.path.abspath(folder) if storage.is_local(folder) else tempfile.gettempdir()
    while not os.path.exists(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    if num_bytes + _LEFT_FREE_BYTES > free:
        problem = f"which is unpacked into {folder!r}, where {free / 1e9:.1f} GB are free"
        expected = f"at least {(num_bytes + _LEFT_FREE_BYTES) / 1e9:.1f} GB"
        remedy = "free some space, choose another " + Arg("output")
        raise wrong_input(
            path, problem, expected, remedy + ", or pack the images without compression"
        )


def announce(sources: Iterable[Stat], folder: str) -> None:
    """Prints which files are going to be spooled, if there is space for their compressed size."""
    files = list(sources)
    if not files:
        return
    total = sum(file.size_bytes for file in files)
    more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
    # A resumed build finds some files spooled already. Sizes after unpacking are unknown.
    there = sum(file.size_bytes for file in storage.files_below(folder))
    check_space(folder, max(0, total - there), files[0].path)
    print(
        f"{files[0].path}{more}, {total / 1e6:,.1f} MB, cannot be read by ranges: unpacked into "
        f"{folder} until the dataset is finished",
        file=sys.stderr,
    )


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
