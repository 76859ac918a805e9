"""All shards of a data set, checked by several processes in a fixed order."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from beam_pipeline.verify.shard import ShardResult, ShardTask, check_shard
from imageshards.errors import UserError


def sampled_records(counts: Sequence[int], sample: int | None) -> list[frozenset[int] | None]:
    """Which records of every shard are decoded: `sample` in all, evenly spread.

    Args:
        counts: Records per shard of one split.
        sample: Records wanted; None for all.

    Returns:
        Per shard the numbers of its records; None for all.
    """
    if sample is None:
        return [None] * len(counts)
    total = sum(counts)
    sample = min(sample, total)
    wanted = iter([(2 * i + 1) * total // (2 * sample) for i in range(sample)])
    position = next(wanted, total)
    start, chosen = 0, []
    for count in counts:
        mine = set()
        while position < start + count:
            mine.add(position - start)
            position = next(wanted, total)
        chosen.append(frozenset(mine))
        start += count
    return list(chosen)


def check_shards(
    directory: str,
    manifest: Mapping[str, Any],
    sample: int | None,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> list[ShardResult]:
    """Checks all shards of a manifest; results in its order.

    Args:
        directory: The data set.
        manifest: Its manifest.
        sample: Pictures decoded per split; None for all.
        workers: Processes; None for one per core.
        progress: Called with (shards done, shards in all).

    Raises:
        UserError: A process was killed.
    """
    tasks = [
        ShardTask(
            directory,
            shard,
            manifest.get("compression", "none"),
            manifest["features"],
            tuple(manifest["classes"]),
            manifest["image"],
            decode,
        )
        for split in manifest["splits"].values()
        for shard, decode in zip(
            split["shards"],
            sampled_records([s["num_records"] for s in split["shards"]], sample),
            strict=True,
        )
    ]
    workers = min(workers or len(os.sched_getaffinity(0)), len(tasks))
    results = []
    try:
        for result in _map(check_shard, tasks, workers):
            results.append(result)
            if progress:
                progress(len(results), len(tasks))
    except BrokenProcessPool as e:
        raise UserError(
            "A process of the check was killed, most likely for lack of memory; "
            "run it again with a smaller --workers."
        ) from e
    return results


def _map(
    function: Callable[[ShardTask], ShardResult], tasks: list[ShardTask], workers: int
) -> Iterator[ShardResult]:
    if workers <= 1:
        yield from map(function, tasks)
        return
    # Not fork: the caller may run threads of Beam or TensorFlow.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _ignore_interrupt) as pool:
        try:
            yield from pool.map(function, tasks)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ignore_interrupt() -> None:
    """Ctrl-C reaches all processes of a terminal; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
