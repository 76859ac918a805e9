"""Caches of serialized records: in memory, or as copies of the shards on a local disk."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import tensorflow as tf

from imageshards.errors import UserError
from trainer.dataset.shard_cache import copy_path, copy_shards, gigabytes, local_size_bytes
from trainer.dataset.spec import ReadOptions, Shard, Subset
from trainer.dataset.tensorflow_files import needs_copy
from trainer.reader.sources import INSPECT_RECORDS, Source, file_source, interleave, number_source

# Left for the model and everything else when a cache is weighed against free memory.
MEMORY_RESERVE = 0.2
_CGROUP = "/sys/fs/cgroup"


def memory_source(subset: Subset, read_options: ReadOptions) -> Source:
    """Reads every record that `subset` asks for once, and keeps it as it is, still JPEG.

    The stages that make the order then handle record numbers only; the order stays the same.

    Raises:
        UserError: The split does not fit into memory.
        tf.errors.OpError: A shard is damaged, or has another number of records.
    """
    check_memory(subset)
    files = file_source(subset)
    serialized, record, inspected = _load(files, subset, read_options)
    # Records are kept in the order in which they were read: row_of finds one by its number.
    rows = np.empty(len(record), np.int64)
    rows[record] = np.arange(len(record))
    row_of = tf.constant(rows)

    def inspect(record: Any) -> tuple[Any, Any, Any]:
        row = tf.gather(row_of, record)
        classes, keep, present = (tf.gather(part, row) for part in inspected)
        return classes, keep, present

    def fetch(record: Any) -> Any:
        found = tf.gather(serialized, tf.gather(row_of, tf.maximum(record, 0)))
        return tf.where(record >= 0, found, b"")

    return dataclasses.replace(
        number_source(subset), inspect=inspect if inspected else None, fetch=fetch
    )


def check_memory(subset: Subset, free_bytes: int | None = None) -> None:
    """Compares a split with the memory that is free.

    Args:
        subset: Whose serialized records are to be kept.
        free_bytes: None to ask the system; if that does not know, memory is taken to suffice.

    Raises:
        UserError: They do not fit.
    """
    free = free_memory_bytes() if free_bytes is None else free_bytes
    needed = subset.split.num_bytes
    if free is None or needed <= free * (1 - MEMORY_RESERVE):
        return
    raise UserError(
        f"--cache received 'memory', but the split {subset.split.name} has "
        f"{gigabytes(needed)} and {gigabytes(free)} of memory are free (a fifth of it is left "
        "to the rest of the program); use --cache disk, or none."
    )


def free_memory_bytes() -> int | None:
    """Memory this process can still get: of the machine, or of its container if less."""
    found = [n for n in (_machine_free_bytes(), _container_free_bytes()) if n is not None]
    return min(found) if found else None


def on_disk(subset: Subset, read_options: ReadOptions) -> Subset:
    """The same split, with local copies in `read_options.cache_folder` of some shards.

    All shards are copied for the cache `disk`; otherwise those that TensorFlow cannot read itself,
    if any. A copy that exists is used again; a new one appears whole or not at all. A shard of
    another size than the data set says, or a damaged one, is not replaced by its copy: reading
    it tells what is wrong.

    Raises:
        UserError: The folder is not named, not writable, or too full; or a shard cannot be
            read, or is whole but another one than the data set says.
    """
    whole = subset.split.shards
    shards = [s for s in whole if read_options.cache == "disk" or needs_copy(s.path)]
    if not shards:
        return subset
    if read_options.cache_folder is None:
        raise UserError("--cache received 'disk', but no folder to keep the shards in.")
    folder = os.path.join(read_options.cache_folder, subset.dataset.fingerprint[:16] or "shards")
    missing = [s for s in shards if local_size_bytes(copy_path(folder, s)) != s.num_bytes]
    try:
        os.makedirs(folder, exist_ok=True)
        if missing:
            copy_shards(subset.dataset, missing, folder)
    except OSError as e:
        why, otherwise = "--cache received 'disk'", ", or use --cache none"
        if needs_copy(shards[0].path):
            why, otherwise = f"--data received {subset.dataset.data!r}, which is copied first", ""
        raise UserError(
            f"{why}, but {folder!r} cannot be filled ({e}); expected a writable folder with "
            f"enough room: name another one by --cache_folder{otherwise}."
        ) from e
    copied = tuple(_copied(s, folder) if s in shards else s for s in whole)
    return dataclasses.replace(subset, split=dataclasses.replace(subset.split, shards=copied))


def _load(
    files: Source, subset: Subset, read_options: ReadOptions
) -> tuple[Any, Any, tuple[Any, ...]]:
    """All serialized records, string [n], their numbers, and what `files.inspect` says of them."""
    shards = tf.data.Dataset.range(len(subset.split.shards))
    elements = interleave(files, shards, subset, deterministic=True)
    batches = elements.batch(INSPECT_RECORDS)
    if files.inspect is not None:
        inspect = files.inspect

        def inspected(serialized: Any, record: Any) -> tuple[Any, ...]:
            classes, keep, present = inspect(serialized, record)
            # What is filtered out needs no memory.
            return tf.where(keep, serialized, b""), record, classes, keep, present

        batches = batches.map(inspected, num_parallel_calls=read_options.threads)
    # One batch of everything: TensorFlow moves the strings into it, it does not copy them.
    whole = batches.unbatch().batch(max(1, subset.split.num_records))
    serialized, record, *rest = whole.get_single_element()
    return serialized, record.numpy(), tuple(rest)


def _machine_free_bytes() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            fields = dict(line.split(":", 1) for line in f)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _container_free_bytes() -> int | None:
    try:
        with open(os.path.join(_CGROUP, "memory.max"), encoding="ascii") as f:
            limit = int(f.read())
        with open(os.path.join(_CGROUP, "memory.current"), encoding="ascii") as f:
            return max(0, limit - int(f.read()))
    except (OSError, ValueError):
        return None  # no container, or one without a limit


def _copied(shard: Shard, folder: str) -> Shard:
    path = copy_path(folder, shard)
    if local_size_bytes(path) != shard.num_bytes:
        return shard
    return dataclasses.replace(shard, path=path)
