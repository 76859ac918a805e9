"""What a single reader does, by its own account: how fast it skips, what memory it takes, and what
reading the order costs it where it decodes only a share.

    python -m benchmarks.reader_probe skip|memory|hosts --data SHARDS --copies N --records N

Prints one JSON object. The data set counts as `copies` times as long: every shard is listed
so often.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.reader_kinds import BATCH, Job, cores, opened

# Of a run whose reader is measured on one of them.
HOSTS = (1, 8, 64)
_STATUS = pathlib.Path("/proc/self/status")
# Writing 5 sets the peak of the resident set back to what it is now.
_CLEAR = pathlib.Path("/proc/self/clear_refs")


def skip(job: Job, copies: int, records: int) -> dict[str, float]:
    """Seconds until the first record, from the beginning and after `records` of them."""
    from trainer.dataset.spec import ReadOptions
    from trainer.reader.order import training_records

    subset, _, _ = opened(job, "host")
    longer = _longer(subset, copies)

    def first(start: int) -> float:
        begun = time.perf_counter()
        next(iter(training_records(longer, ReadOptions(cores()), 1, start)))
        return time.perf_counter() - begun

    first(0)  # whatever TensorFlow does once
    return {"begin_seconds": first(0), "resume_seconds": first(records), "skipped": records}


def memory(job: Job, copies: int, records: int) -> dict[str, float]:
    """Peak of the resident set while `records` are read, what it was before, the estimate."""
    from trainer.dataset.spec import ReadOptions
    from trainer.reader import pipeline

    subset, inputs, augmentation = opened(job, "host")
    longer = _longer(subset, copies)
    read_options = ReadOptions(cores())
    estimate = pipeline.memory_bytes(longer, read_options, BATCH, inputs)
    stream = pipeline.training_batches(
        longer, read_options, 1, BATCH, inputs, augmentation.pictures
    )
    _CLEAR.write_text("5")
    before = _status_bytes("VmRSS")
    iterator = iter(stream)
    for _ in range(-(-records // BATCH)):
        next(iterator)
    return {
        "before_bytes": before,
        "peak_bytes": _status_bytes("VmHWM"),
        "estimated_bytes": sum(estimate.values()),
        "records": longer.num_records,
    }


def hosts(job: Job, copies: int, records: int) -> dict[str, float]:
    """CPU microseconds per record of the global batch, on a host that decodes so many of them."""
    from trainer.dataset.spec import ReadOptions, Shares
    from trainer.reader import pipeline

    subset, inputs, augmentation = opened(job, "host")
    longer = _longer(subset, copies)
    found = {}
    for count in HOSTS:
        stream = iter(
            pipeline.training_batches(
                longer, ReadOptions(cores()), 1, BATCH * count, inputs, augmentation.pictures,
                shares=Shares(1, count, 0),
            )
        )  # fmt: skip
        next(stream)
        begun, steps = time.process_time(), max(4, records // (BATCH * count))
        for _ in range(steps):
            next(stream)
        found[f"{count}"] = (time.process_time() - begun) * 1e6 / (steps * BATCH * count)
    return found


PROBES = {"skip": skip, "memory": memory, "hosts": hosts}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=PROBES)
    parser.add_argument("--data", required=True)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--records", type=int, required=True)
    args = parser.parse_args(argv)
    print(json.dumps(PROBES[args.what](Job(args.data, ""), args.copies, args.records)))
    return 0


def _longer(subset: Any, copies: int) -> Any:
    split = dataclasses.replace(subset.split, shards=subset.split.shards * copies)
    return dataclasses.replace(subset, split=split, num_records=copies * subset.num_records)


def _status_bytes(name: str) -> int:
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


if __name__ == "__main__":
    raise SystemExit(main())
