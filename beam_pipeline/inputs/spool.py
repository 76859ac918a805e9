"""Unpacks compressed archives and Parquet files into plain files, which can be read by ranges.

Spooled files are in the folder of the unfinished dataset (`.staging/spool/`) and are deleted with
that folder. The name of a spooled file is a hash of the path, size and time of its source. So a
resumed build finds the file again, and a source that has changed is spooled anew.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from beam_pipeline.inputs.layout import unreadable, wrong_input
from imageshards import storage
from imageshards.errors import Arg
from imageshards.storage.base import RANGE_BYTES, Stat, replaced

SPOOL_NAME = "spool"
# Free space that spooled files leave on a disk.
_LEFT_FREE_BYTES = 256 << 20

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
        try:
            with (
                storage.open_read(source.path, source.version) as stored,
                opener(stored) as content,
            ):
                while data := content.read(RANGE_BYTES):
                    check_space(folder, len(data), source.path)
                    target.write(data)
            # A file of this machine may have been written to while it was read.
            if storage.stat(source.path) != source:
                raise replaced(source.path)
        except DECOMPRESSION_ERRORS as e:
            if isinstance(e, OSError) and e.errno == errno.ESTALE:
                raise unreadable(source.path, e) from e
            problem = f"which cannot be unpacked to its end ({e})"
            remedy = "fetch or pack it again"
            raise wrong_input(source.path, problem, "a whole archive", remedy) from e
    return path


def check_space(folder: str, num_bytes: int, path: str) -> None:
    """Raises `UserError` if a disk has too little space for more spooled bytes."""
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
