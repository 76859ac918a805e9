"""Copies of whole shards on a local disk: the cache `disk`."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import os
import shutil
import sys
import uuid
from collections.abc import Sequence

from imageshards import storage
from imageshards.errors import UserError
from imageshards.progress import with_progress
from imageshards.text import counted
from imageshards.tfrecord import RecordError, scan_file
from trainer.cluster.connection import note_work
from trainer.dataset.spec import DataSet, ReadOptions, Shard, Subset

COPIES_AT_ONCE = 8
_PART_BYTES = 8 << 20
_PARTS = f"*.{'[0-9a-f]' * 32}.part"


def cache_on_disk(subset: Subset, read_options: ReadOptions) -> Subset:
    """The same split, with local copies in `read_options.cache_folder` for the cache `disk`.

    A copy that exists is used again; a new one appears whole or not at all. A shard of another size
    than the data set says, or a damaged one, is not replaced by its copy: reading it tells what
    is wrong.

    Raises:
        UserError: The folder is not named, not writable, or too full; or a shard cannot be
            read, or is whole but another one than the data set says.
    """
    if read_options.cache != "disk":
        return subset
    shards = subset.split.shards
    if read_options.cache_folder is None:
        raise UserError("⟦--cache⟧ received 'disk', but no folder to keep the shards in.")
    folder = os.path.join(read_options.cache_folder, subset.dataset.fingerprint[:16] or "shards")
    missing = [s for s in shards if _copied(s, folder) is s]
    try:
        os.makedirs(folder, exist_ok=True)
        if missing:
            storage.remove_abandoned(os.path.join(glob.escape(folder), _PARTS))
            _copy_shards(subset.dataset, missing, folder)
    except OSError as e:
        raise UserError(
            f"⟦--cache⟧ received 'disk', but {folder!r} cannot be filled ({e}); expected a "
            "writable folder with enough room: name another one by ⟦--cache_folder⟧, or use "
            "⟦--cache none|cache='none'⟧."
        ) from e
    copied = tuple(_copied(s, folder) for s in shards)
    return dataclasses.replace(subset, split=dataclasses.replace(subset.split, shards=copied))


def gigabytes(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / 1e9:.2f} GB"


def _copied(shard: Shard, folder: str) -> Shard:
    """The copy of a shard in `folder`; the shard itself where there is none of its size."""
    copy = dataclasses.replace(shard, path=_copy_path(folder, shard))
    try:
        return copy if os.path.getsize(copy.path) == shard.num_bytes else shard
    except OSError:
        return shard


def _copy_path(folder: str, shard: Shard) -> str:
    # Shards of several folders may share a name.
    origin = hashlib.sha256(os.path.dirname(shard.path).encode()).hexdigest()[:8]
    return os.path.join(folder, f"{origin}-{os.path.basename(shard.path)}")


def _copy_shards(dataset: DataSet, shards: Sequence[Shard], folder: str) -> None:
    """Copies shards into `folder`, several at a time, and says on stderr how far it is.

    What is missing, or has not the size it should, is not copied.

    Raises:
        OSError: There is no room, or the folder cannot be written.
        UserError: A shard cannot be read, or its checksum is not the data set's though its
            records are whole.
    """
    needed, free = sum(s.num_bytes for s in shards), shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(f"{gigabytes(needed)} are needed, {gigabytes(free)} are free")
    what = f"copying {counted(len(shards), 'shard')} ({gigabytes(needed)}) to {folder}"
    print(what, file=sys.stderr)
    copied = storage.map_concurrently(
        lambda shard: _copy(dataset, shard, _copy_path(folder, shard)), shards, COPIES_AT_ONCE
    )
    for _ in with_progress(copied, len(shards), "shards", "copying"):
        pass


def _copy(dataset: DataSet, shard: Shard, path: str) -> None:
    part, lock = storage.hold_scratch(lambda: _new_file(f"{path}.{uuid.uuid4().hex}.part"))
    try:
        for _ in range(2):  # Once more if the copy, and not the shard, is at fault.
            digest = _fetch(shard, part)
            if digest is None or os.path.getsize(part) != shard.num_bytes:
                return  # left to the reader, which tells more
            if shard.sha256 in (None, digest) or storage.is_local(shard.path):
                break
        else:
            _check_damaged(dataset, shard, part)
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)
        os.close(lock)


def _new_file(path: str) -> str:
    with open(path, "xb"):
        return path


def _fetch(shard: Shard, part: str) -> str | None:
    """Copies a shard; its SHA-256, or None where it is missing."""
    digest = hashlib.sha256()
    try:
        with storage.open_read(shard.path) as stored, open(part, "wb") as copied:
            while data := stored.read(_PART_BYTES):
                digest.update(data)
                copied.write(data)
                note_work()
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.filename != shard.path:
            raise  # the local file's
        raise UserError(
            f"⟦--data⟧ received a data set whose shard {shard.path} cannot be copied "
            f"({e.strerror}); expected shards that may be read: start again, those that are "
            "copied already are used again."
        ) from e
    return digest.hexdigest()


def _check_damaged(dataset: DataSet, shard: Shard, part: str) -> None:
    """A shard with another checksum that is no damage to its records is another shard.

    Raises:
        UserError: It is. Where records are damaged, the reader tells which.
    """
    records = scan_file(part)
    if any(isinstance(record, RecordError) for record in records):
        return
    raise UserError(
        f"⟦--data⟧ received {dataset.data!r}, whose shard {os.path.basename(shard.path)} has "
        "another SHA-256 than its manifest says; expected the data set as it was built: copy it "
        "again, or build it again with imageshards build."
    )
