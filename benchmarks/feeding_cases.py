"""Benchmarks of the reader's purpose: a busy accelerator, a quick resume, and no wasted bytes.

The benchmark `accelerator` measures how often an accelerator waits, also with a slow store.
`resume` measures how soon a resumed run has its first batch. `hosts` measures whether each host
reads only its own part.

    python -m benchmarks.feeding_cases DATA PERCENT HOSTS HOST BATCHES

This command runs the process of host number HOST of HOSTS, which begins after PERCENT of an epoch.
The command prints a JSON list: the seconds, the requests and the bytes until the first batch, and
the bytes of the second BATCHES batches.
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

# With smaller batches the steps would be shorter than the steps of any real training.
_LARGE_BATCH = 256
_SHARE_OF_LIMIT = 0.9
_SLOW_EVERY = 100
_HERE = "benchmarks.feeding_cases"
_PERCENTS, _HOSTS = (1, 50, 99), (1, 2, 4)
# Before its first batch a resumed run may read one piece of each stream, and 128 pieces in advance.
_PIECES, _PIECE_BYTES = 64 + 128, 1 << 20


def accelerator(s: Settings) -> Outcome:
    """Measures how busy the reader keeps an accelerator at 90 % of the peak decoding speed."""
    data = shards(s)
    on_disk = [_fed(s, str(data)) for _ in range(s.rounds)]
    with slow_store(data.parent, _SLOW_EVERY) as bucket:
        from_store = [_fed(s, f"{bucket}/{data.name}") for _ in range(s.rounds)]
    sides = {"on disk, all cores": on_disk, "from the store, which has one core": from_store}
    return Outcome(
        "accelerator",
        f"{s.records:,} records of 256 px, batches of {_LARGE_BATCH}, random-resized crop to "
        f"{SIZE[0]} px and flip on the host, an accelerator at {_SHARE_OF_LIMIT:g} of the limit",
        ("limit, images/s", "ms a step", "busy", "wait ms: median", "p99", "p99.9",
         "where an epoch ends", "first batch"),
        {side: medians(rows) for side, rows in sides.items()},
        (Figure("busy, on disk", tuple(row[2] for row in on_disk), 0.98),
         Figure("busy, from the store", tuple(row[2] for row in from_store), 0.95)),
        ("the limit is the speed of decoding, cropping, resizing and flipping JPEGs in memory",
         f"the store answers a request in {1e3 * LATENCY_SEC:g} ms, and every {_SLOW_EVERY}th "
         f"request in {SLOW_SEC:g} s"),
    )  # fmt: skip


def resume(s: Settings) -> Outcome:
    """Measures how much a resumed run reads from a store before its first batch."""
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
        "resume", f"until the first batch: {s.records:,} records of 256 px in a store with "
        f"{1e3 * LATENCY_SEC:g} ms per request, batches of {BATCH}, one core",
        ("seconds", "requests", "MB"),
        {side: medians([(sec, n, size / 1e6) for sec, n, size, *_ in rows])
         for side, rows in found.items()},
        (Figure("MB, the worst", (max(row[2] for row in firsts) / 1e6,), most / 1e6, False),
         Figure("seconds, the worst", (max(row[0] for row in firsts),), 2, False)),
        (f"the goal is at most {_PIECES} pieces of 1 MiB, including the pieces read in advance",),
    )  # fmt: skip


def hosts(s: Settings) -> Outcome:
    """Measures how many bytes of an epoch each of several hosts reads."""
    data, steps = shards(s), s.records // BATCH
    with slow_store(data.parent) as bucket:
        sizes = {
            count: [_printed(s, _HERE, f"{bucket}/{data.name}", 0, count, host, steps)[3] / 1e6
                    for host in range(count)]
            for count in _HOSTS
        }  # fmt: skip
    alone = sizes[1][0]
    return Outcome(
        "hosts", f"the second epoch of {s.records:,} records of 256 px, global batches of {BATCH}; "
        "the store counts the bytes; pieces of 64 KiB, because the dataset is small",
        ("MB per host: least", "most", "share of one host alone"),
        {counted(n, "host"): (min(own), max(own), max(own) / alone) for n, own in sizes.items()},
        tuple(Figure(f"{n} hosts, most, times {n}", (n * max(own) / alone,), 1.05, False)
              for n, own in sizes.items() if n > 1),
    )  # fmt: skip


def _fed(s: Settings, data: str) -> tuple[float, ...]:
    """Measures the limit, and then the waits of an accelerator at a share of the limit.

    Both measurements use the cores of this process.
    """
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
    """Runs a module and returns the decoded JSON line of its output."""
    lines = run_module(module, *arguments, log=s.log).output.splitlines()
    return json.loads(next(line for line in lines if line.startswith(("[", "{"))))


def main(data: str, *numbers: str) -> None:
    """Reads the batches of one host and prints the figures."""
    import tensorflow  # noqa: F401  # The time of this import does not count.

    import imageshards as ims
    from trainer.dataset import pieces
    from trainer.dataset.batch import ReplicaSlices

    percent, count, host, batches = map(int, numbers)
    # With small pieces a small dataset has as many pieces as a dataset of gigabytes.
    if batches:
        pieces.PIECE_BYTES = 1 << 16
    train = ims.open(data).train(batch_size=BATCH, image_size=SIZE[0], augment="none", seed=1)
    before, begun = counts(), time.perf_counter()
    step = train.steps_per_epoch * percent // 100
    stream = iter(train.batches(step, ReplicaSlices(1, count, host)))
    next(stream)
    seconds, first = time.perf_counter() - begun, counts()
    passes = [first]
    # Only the second round counts, because the first round includes the reading in advance.
    for _ in range(2):
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
