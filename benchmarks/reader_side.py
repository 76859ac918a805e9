"""One reader in a process of its own, measured whenever it is told to.

    python -m benchmarks.reader_side KIND --data SHARDS --raw PHOTOS

Prints `ready`; then for each line on stdin, a number of seconds, reads for that long and
prints what it took as a JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

import psutil

from benchmarks import reader_kinds, reader_limits
from benchmarks.reader_kinds import Job, Read

WARM_UP_SECONDS = 3.0
# Read untimed whenever it is this one's turn again: takes away what was read in advance.
SETTLE_SECONDS = 0.7

KINDS: dict[str, Callable[[Job], Read]] = {
    "trainer_host": reader_kinds.trainer,
    "trainer_device": lambda job: reader_kinds.trainer(job, "device"),
    "keras_raw": reader_kinds.keras_raw,
    "tfds_skip_decoding": reader_kinds.tfds_skip_decoding,
    "tfds_default": reader_kinds.tfds_default,
    "limit_by_picture": reader_limits.by_picture,
    "limit_by_batch": reader_limits.by_batch,
    "limit_with_flip": lambda job: reader_limits.by_batch(job, flipped=True),
    "turbo_threads": reader_limits.turbo_threads,
    "turbo_processes": reader_limits.turbo_processes,
}


def window(read: Read, seconds: float, settle_seconds: float) -> dict[str, float]:
    """One measurement: images, seconds and CPU seconds."""
    read(settle_seconds)
    cpu, begun = _cpu_seconds(), time.perf_counter()
    images = read(seconds)
    passed = time.perf_counter() - begun
    return {"images": images, "seconds": passed, "cpu_seconds": _cpu_seconds() - cpu}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures whenever a line comes; ends with stdin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--raw", default="")
    parser.add_argument("--warm_up", type=float, default=WARM_UP_SECONDS)
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS)
    args = parser.parse_args(argv)
    read = KINDS[args.kind](Job(args.data, args.raw))
    read(args.warm_up)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(window(read, float(line), args.settle)), flush=True)
    return 0


def _cpu_seconds() -> float:
    """User and system time of this process and its children so far."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


if __name__ == "__main__":
    raise SystemExit(main())
