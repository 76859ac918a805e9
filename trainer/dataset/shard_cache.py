"""Copies of whole shards on a local disk, from wherever they are, each checked once."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Sequence

from imageshards import storage
from imageshards.errors import UserError
from imageshards.tfrecord import RecordError, scan_file
from trainer.config import is_remote
from trainer.dataset.spec import DataSet, Shard

COPIES_AT_ONCE = 8
# Between two lines that say how far it is.
_TOLD_EVERY_SEC = 10.0
_PART_BYTES = 8 << 20


def copy_path(folder: str, shard: Shard) -> str:
    """Where the copy of a shard belongs."""
    # Shards of several folders may share a name.
    origin = hashlib.sha256(os.path.dirname(shard.path).encode()).hexdigest()[:8]
    return os.path.join(folder, f"{origin}-{os.path.basename(shard.path)}")


def copy_shards(dataset: DataSet, shards: Sequence[Shard], folder: str) -> None:
    """Copies shards, several at a time, and says on stderr how far it is.

    A copy appears whole or not at all. What is missing, or has not the size it should, is not
    copied.

    Args:
        dataset: Where they belong.
        shards: What is copied.
        folder: An existing one.

    Raises:
        OSError: There is no room, or the folder cannot be written.
        UserError: A shard cannot be had, or its checksum is not the data set's though its
            records are whole.
    """
    needed, free = sum(s.num_bytes for s in shards), shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(f"{gigabytes(needed)} are needed, {gigabytes(free)} are free")
    print(f"copying {len(shards)} shards ({gigabytes(needed)}) to {folder}", file=sys.stderr)
    stopped = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        waiting = {pool.submit(_copy, dataset, s, copy_path(folder, s), stopped): s for s in shards}
        try:
            _await(waiting, needed)
        except BaseException:
            # Ctrl-C, or an error that the others would meet as well.
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def local_size_bytes(path: str) -> int | None:
    """The size of a local file; None where there is none."""
    try:
        return os.path.getsize(path)
    except OSError:
        return None


def gigabytes(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / 1e9:.2f} GB"


def _await(waiting: dict[concurrent.futures.Future[None], Shard], needed_bytes: int) -> None:
    copied_bytes, told_sec = 0, time.monotonic()
    for number, done in enumerate(concurrent.futures.as_completed(waiting), 1):
        done.result()
        copied_bytes += waiting[done].num_bytes
        if time.monotonic() - told_sec > _TOLD_EVERY_SEC:
            told_sec = time.monotonic()
            print(
                f"copied {number} of {len(waiting)} shards "
                f"({gigabytes(copied_bytes)} of {gigabytes(needed_bytes)})",
                file=sys.stderr,
            )


def _copy(dataset: DataSet, shard: Shard, path: str, stopped: threading.Event) -> None:
    part = f"{path}.{uuid.uuid4().hex}.part"
    try:
        for _ in range(2):  # Once more if the copy, and not the shard, is at fault.
            digest = _fetch(shard, part, stopped)
            if digest is None or os.path.getsize(part) != shard.num_bytes:
                return  # left to the reader, which tells more
            if shard.sha256 in (None, digest) or not is_remote(shard.path):
                break
        else:
            _check_damaged(dataset, shard, part)
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def _fetch(shard: Shard, part: str, stopped: threading.Event) -> str | None:
    """Copies a shard; its SHA-256 (of a remote one), or None where it is missing."""
    if not is_remote(shard.path):
        try:
            shutil.copyfile(shard.path, part)
        except FileNotFoundError:
            return None
        return ""
    digest = hashlib.sha256()
    try:
        with storage.open_read(shard.path) as stored, open(part, "wb") as copied:
            while data := stored.read(_PART_BYTES):
                if stopped.is_set():
                    raise InterruptedError
                digest.update(data)
                copied.write(data)
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.filename != shard.path:
            raise  # the local file's
        raise UserError(
            f"--data received a data set whose shard {shard.path} cannot be copied "
            f"({e.strerror}); expected shards that may be read: start again, those that are "
            "copied already are used again."
        ) from e
    return digest.hexdigest()


def _check_damaged(dataset: DataSet, shard: Shard, part: str) -> None:
    """A shard with another checksum that is no damage to its records is another shard.

    Raises:
        UserError: It is. Where records are damaged, the reader tells which.
    """
    records = scan_file(part, dataset.compression)
    if any(isinstance(record, RecordError) for record in records):
        return
    raise UserError(
        f"--data received {dataset.data!r}, whose shard {os.path.basename(shard.path)} has another "
        "SHA-256 than its manifest says; expected the data set as it was built: copy it again, "
        "or build it again with python -m beam_pipeline."
    )
