"""The cache `memory`: every serialized record of a split is read once and kept."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import tensorflow as tf

from imageshards.errors import UserError
from trainer.cluster.connection import note_work
from trainer.dataset.spec import ReadOptions, Subset
from trainer.reader.shard_cache import gigabytes
from trainer.reader.sources import INSPECT_RECORDS, Source, file_source, interleave, number_source

# Left for the model and everything else when a cache is weighed against free memory.
MEMORY_RESERVE = 0.2
_CGROUP = "/sys/fs/cgroup"

# All serialized records, string [n]; their numbers, int64 [n]; what `Source.inspect` says of them.
_Records = tuple[Any, Any, tuple[Any, ...]]
# What this process has loaded, by data set and split: (what exactly, the records). Training, its
# verdict and every validation read the same; a split that was repaired replaces its old self.
_loaded: dict[tuple[str, str], tuple[object, _Records]] = {}


def memory_source(subset: Subset, read_options: ReadOptions) -> Source:
    """Reads every record that `subset` asks for once, and keeps it as it is, still JPEG.

    They stay in memory until the process ends: whoever opens the same subset again finds them
    there. The stages that make the order then handle record numbers only; the order stays the same.

    Raises:
        UserError: The split does not fit into memory.
        tf.errors.OpError: A shard is damaged, or has another number of records.
    """
    serialized, record, inspected = _load_once(subset, read_options)
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
        f"⟦--cache⟧ received 'memory', but the split {subset.split.name} has "
        f"{gigabytes(needed)} and {gigabytes(free)} of memory are free (a fifth of it is left "
        "to the rest of the program); use ⟦--cache disk|cache='disk'⟧, or none."
    )


def free_memory_bytes() -> int | None:
    """Memory this process can still get: of the machine, or of its container if less."""
    found = [n for n in (_machine_free_bytes(), _container_free_bytes()) if n is not None]
    return min(found) if found else None


def _load_once(subset: Subset, read_options: ReadOptions) -> _Records:
    name = (subset.dataset.data, subset.split.name)
    wanted = (
        [(shard.path, shard.num_records, shard.num_bytes) for shard in subset.split.shards],
        subset.class_ids,
        subset.filters,
        subset.is_whole,
        dict(subset.placeholders),
    )
    have, records = _loaded.get(name, (None, None))
    if records is None or have != wanted:
        # Before the new ones are read: there may be no room for both.
        _loaded.pop(name, None)
        have = records = None
        check_memory(subset)
        records = _load(file_source(subset), subset, read_options)
        _loaded[name] = wanted, records
    return records


def _load(files: Source, subset: Subset, read_options: ReadOptions) -> _Records:
    shards = tf.data.Dataset.range(len(subset.split.shards))
    elements = interleave(files, shards, subset, deterministic=True)

    def noted(*batch: Any) -> tuple[Any, ...]:
        tf.numpy_function(note_work, [], [])
        return batch

    batches = elements.batch(INSPECT_RECORDS).map(noted)
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
