"""Measures how long an accelerator waits for the trainer's reader.

    python -m benchmarks.waits DATA OPTIONS SECONDS ACCELERATOR_MS

The command reads `ims.open(DATA).train(**OPTIONS)`; OPTIONS is a JSON object. A simulated
accelerator needs ACCELERATOR_MS for each batch and uses no core. The command prints a JSON object:

- `startup_msec`: the time until the first batch, which the other figures exclude.
- `utilization`: computing time divided by running time, as MLPerf Storage defines utilization.
- `wait_msec`: the median, p99 and p99.9 of the wait for a batch.
- `pass_end_msec`: the longest wait at the end of an epoch; null if no epoch ended.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

PERCENTILES = {"median": 50, "p99": 99, "p99.9": 99.9}


def measure(data: str, options: dict[str, Any], seconds: float, accelerator_ms: float) -> Any:
    """Reads for `seconds` and returns the figures as JSON values."""
    import numpy as np
    import tensorflow  # noqa: F401  # The time of this import does not count.

    import imageshards as ims

    train = ims.open(data).train(augment_on="host", **options)
    # The measurement begins so late in an epoch that the epoch ends in the middle.
    steps = int(seconds * 1e3 / accelerator_ms)
    begin = max(0, train.steps_per_epoch - 2 - steps // 2)
    begun_sec = time.perf_counter()
    batches = iter(train.batches(begin))
    next(batches)
    startup_sec = time.perf_counter() - begun_sec
    waits_sec: list[float] = []
    begun_sec = time.perf_counter()
    while (passed_sec := time.perf_counter() - begun_sec) < seconds:
        # Like a step on a GPU, `sleep` uses neither a core nor Python's lock.
        time.sleep(accelerator_ms / 1e3)
        asked_sec = time.perf_counter()
        next(batches)
        waits_sec.append(time.perf_counter() - asked_sec)
    waits_msec = 1e3 * np.array(waits_sec)
    numbers = begin + 1 + np.arange(len(waits_sec) + 1)
    ends = np.flatnonzero(np.diff(numbers * train.batch_size // train.subset.num_records))
    # Waits for the batch in which an epoch ends, and for the next batch.
    at_ends = waits_msec[np.minimum([ends, ends + 1], len(waits_sec) - 1)]
    return {
        "startup_msec": 1e3 * startup_sec,
        "utilization": len(waits_sec) * accelerator_ms / 1e3 / passed_sec,
        "wait_msec": {
            name: float(np.percentile(waits_msec, at)) for name, at in PERCENTILES.items()
        },
        "pass_end_msec": float(at_ends.max()) if len(ends) else None,
    }


if __name__ == "__main__":
    data, options, seconds, accelerator_ms = sys.argv[1:]
    print(json.dumps(measure(data, json.loads(options), float(seconds), float(accelerator_ms))))
