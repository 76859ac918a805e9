"""What a reader is for: an accelerator that never waits, from a slow store, too; a run that goes
on at once; hosts that read their part only.

    python -m benchmarks.feeding_cases DATA PERCENT HOSTS HOST BATCHES

is a process of one host that begins after so much of a pass: it prints [seconds to the first
batch, requests and bytes by then, bytes of as many batches after the first so many].
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Settings
from benchmarks.measure import run_module
from benchmarks.outcome import Figure, Outcome, medians
from benchmarks.reader_cases import photos, shards
from benchmarks.reader_kinds import BATCH, SIZE
from benchmarks.reader_rounds import in_turn
from benchmarks.slow_store import LATENCY_SEC, SLOW_SEC, counts, slow_store
from imageshards.text import counted

# Of an accelerator: with fewer its steps would be shorter than those of any training.
_LARGE_BATCH = 256
_SHARE_OF_LIMIT = 0.9
_SLOW_EVERY = 100
_HERE = "benchmarks.feeding_cases"
_PERCENTS, _HOSTS = (1, 50, 99), (1, 2, 4)
# What a resumed run may read before its first batch: a piece of each stream, and pieces ahead.
_PIECES, _PIECE_BYTES = 64 + 128, 1 << 20


def accelerator(s: Settings) -> Outcome:
    """A stand-in of an accelerator that could take 9 of 10 pictures that decoding alone makes."""
    data = shards(s)
    on_disk = [_fed(s, str(data)) for _ in range(s.rounds)]
    with slow_store(data.parent, _SLOW_EVERY) as bucket:
        from_store = [_fed(s, f"{bucket}/{data.name}") for _ in range(s.rounds)]
    sides = {"on disk, all cores": on_disk, "from the store, which has one core": from_store}
    return Outcome(
        "accelerator",
        f"{s.records:,} records of 256 px, batches of {_LARGE_BATCH}, random-resized crop to "
        f"{SIZE[0]} px and flip on the host, an accelerator of {_SHARE_OF_LIMIT:g} of the limit",
        ("limit, images/s", "ms a step", "busy", "wait ms: median", "p99", "p99.9",
         "where a pass ends", "first batch"),
        {side: medians(rows) for side, rows in sides.items()},
        (Figure("busy, on disk", tuple(row[2] for row in on_disk), 0.98),
         Figure("busy, from the store", tuple(row[2] for row in from_store), 0.95)),
        ("the limit is decoding, cropping, resizing and flipping of JPEGs in memory, before each",
         f"the store takes {1e3 * LATENCY_SEC:g} ms for a request and "
         f"{SLOW_SEC:g} s for every {_SLOW_EVERY}th"),
    )  # fmt: skip


def resume(s: Settings) -> Outcome:
    """What a run reads from a store before its first batch, wherever it goes on."""
    data = shards(s)
    with slow_store(data.parent) as bucket:
        found = {
            f"at {percent} %": [_printed(s, _HERE, f"{bucket}/{data.name}", percent, 1, 0, 0)
                                for _ in range(s.rounds)]
            for percent in _PERCENTS
        }  # fmt: skip
    most = _PIECES * _PIECE_BYTES
    firsts = [row for rows in found.values() for row in rows]
    return Outcome(
        "resume", f"{s.records:,} records of 256 px at a store of {1e3 * LATENCY_SEC:g} ms a "
        f"request, batches of {BATCH}, one core: until the first batch",
        ("seconds", "requests", "MB"),
        {side: medians([(sec, n, size / 1e6) for sec, n, size, *_ in rows])
         for side, rows in found.items()},
        (Figure("MB, the worst", (max(row[2] for row in firsts) / 1e6,), most / 1e6, False),
         Figure("seconds, the worst", (max(row[0] for row in firsts),), 2, False)),
        (f"expected at most: {_PIECES} pieces of 1 MiB, those read ahead included",),
    )  # fmt: skip


def hosts(s: Settings) -> Outcome:
    """What each of several hosts reads of a pass."""
    data, steps = shards(s), s.records // BATCH
    with slow_store(data.parent) as bucket:
        sizes = {
            count: [_printed(s, _HERE, f"{bucket}/{data.name}", 0, count, host, steps)[3] / 1e6
                    for host in range(count)]
            for count in _HOSTS
        }  # fmt: skip
    alone = sizes[1][0]
    return Outcome(
        "hosts", f"the second pass over {s.records:,} records of 256 px, batches of {BATCH} of all "
        "hosts, bytes counted at the store; pieces of 64 KiB, as the dataset is small",
        ("MB a host: least", "most", "of one host's"),
        {counted(n, "host"): (min(own), max(own), max(own) / alone) for n, own in sizes.items()},
        tuple(Figure(f"{n} hosts, most, times {n}", (n * max(own) / alone,), 1.05, False)
              for n, own in sizes.items() if n > 1),
    )  # fmt: skip


def _fed(s: Settings, data: str) -> tuple[float, ...]:
    """The limit and what an accelerator of a share of it meets, on the cores of this process."""
    arguments = ("--data", str(shards(s)), "--raw", str(photos(s)))
    windows = in_turn({"limit": "limit_crops"}, arguments, s.work, 3, s.window_seconds)["limit"]
    limit = statistics.median(window.images_per_second for window in windows)
    msec = 1e3 * _LARGE_BATCH / (_SHARE_OF_LIMIT * limit)
    options = {"batch_size": min(_LARGE_BATCH, s.records), "image_size": SIZE[0]}
    found = _printed(
        s, "benchmarks.waits", data, json.dumps(options), 20 * s.window_seconds, f"{msec:.2f}"
    )
    waits = found["wait_msec"]
    return (limit, msec, found["utilization"], waits["median"], waits["p99"], waits["p99.9"],
            found["pass_end_msec"] or 0.0, found["startup_msec"])  # fmt: skip


def _printed(s: Settings, module: str, *arguments: Any) -> Any:
    """The line of JSON among what a module prints."""
    lines = run_module(module, *arguments, log=s.log).output.splitlines()
    return json.loads(next(line for line in lines if line.startswith(("[", "{"))))


def main(data: str, *numbers: str) -> None:
    """Reads as one host does."""
    import tensorflow  # noqa: F401  # its start is not the reader's

    import imageshards as ims
    from trainer.dataset import pieces
    from trainer.dataset.spec import ReplicaSlices

    percent, count, host, batches = map(int, numbers)
    if batches:  # so dealt as a dataset of gigabytes is in pieces of 1 MiB
        pieces.PIECE_BYTES = 1 << 16
    train = ims.open(data).train(batch_size=BATCH, image_size=SIZE[0], augment="none", seed=1)
    before, begun = counts(), time.perf_counter()
    step = train.steps_per_epoch * percent // 100
    stream = iter(train.batches(step, ReplicaSlices(1, count, host)))
    next(stream)
    seconds, first = time.perf_counter() - begun, counts()
    passes = [first]
    for _ in range(2):  # what is read ahead at the beginning is no part of the second one
        for _ in range(batches):
            next(stream)
        passes.append(counts())
    found = [first[0] - before[0], first[1] - before[1], passes[2][1] - passes[1][1]]
    print(json.dumps([seconds, *found]))


FEEDING_BENCHMARKS: dict[str, Callable[[Settings], Outcome]] = {
    "accelerator": accelerator,
    "resume": resume,
    "hosts": hosts,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
