"""What a hundred or a thousand workers would do: a simulation with its assumptions in one place.

    python -m benchmarks.scale_simulation --images 10000000 --workers 100,1000

A worker is one core that takes the next shard when it is free. Nothing here was measured on a
cluster: rates of one core are this machine's, the rest is assumed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
from collections.abc import Sequence

import numpy as np

from benchmarks.outcome import aligned

SEEDS = 5
RECORD_BYTES = 20_000


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """What the simulation believes.

    Attributes:
        image_cpu_msec: CPU time of one image: `build_vs_loop`, 114 CPU s for 24,000 images.
        get_cpu_msec: What fetching it from a store adds, with one client per process.
        core_speed: A worker's core against the one that was measured.
        start_sec: A worker is there after a time between these.
        slow_fraction, slow_speed: Stragglers: so many workers have so much of the speed.
        shard_spread: Deviation of a shard's time (of its logarithm): pictures differ.
        losses_per_hour: How often a worker is lost; its shard is begun anew by another.
        plan_cpu_usec: CPU time of planning one reference: `benchmarks.scale_plan`.
        plan_steps, step_sec: Steps with a barrier before the first shard, and what each costs.
        page_keys, page_sec: A page of a store's listing; pages of one class follow each other.
        classes: Folders that are listed side by side.
        commit_shard_msec: What the last step takes for a shard: its line in the manifest.
        reads_per_sec: What the store allows at first; it doubles every `doubling_sec`.
    """

    image_cpu_msec: float = 4.7
    get_cpu_msec: float = 1.0
    core_speed: float = 1.0
    start_sec: tuple[float, float] = (60.0, 180.0)
    slow_fraction: float = 0.02
    slow_speed: float = 0.5
    shard_spread: float = 0.1
    losses_per_hour: float = 0.02
    plan_cpu_usec: float = 25.0
    plan_steps: int = 8
    step_sec: float = 5.0
    page_keys: int = 1000
    page_sec: float = 0.1
    classes: int = 1000
    commit_shard_msec: float = 4.0
    reads_per_sec: float = math.inf
    doubling_sec: float = 1200.0

    @property
    def images_per_sec(self) -> float:
        """Of one worker that waits for nothing."""
        return 1000 * self.core_speed / (self.image_cpu_msec + self.get_cpu_msec)


@dataclasses.dataclass(frozen=True)
class Run:
    """One simulated job, in seconds since it was submitted.

    Attributes:
        planned: The first shard begins.
        written: The last one ends.
        total: The manifest is there.
        busy: Share of the workers' time, until then, that went into images that count.
        redone: Images that were encoded again because their worker was lost.
        peak_reads_per_sec: Images fetched per second at most.
    """

    planned: float
    written: float
    total: float
    busy: float
    redone: float
    peak_reads_per_sec: float


def simulate(images: int, shards: int, workers: int, a: Assumptions, seed: int) -> Run:
    """One job."""
    draw = np.random.default_rng(seed)
    ready = draw.uniform(*a.start_sec, workers)
    speed = np.where(draw.random(workers) < a.slow_fraction, a.slow_speed, 1.0)
    planned = _planned_at(images, workers, a, float(np.sort(ready)[min(workers - 1, workers // 2)]))
    rate = a.images_per_sec
    sizes = images / shards * np.exp(draw.normal(-(a.shard_spread**2) / 2, a.shard_spread, shards))
    step_sec = max(0.2, images / rate / workers / 2000)
    queue = list(range(shards))[::-1]
    current = np.full(workers, -1)
    left = np.zeros(workers)  # images of its shard
    now, redone, peak = planned, 0.0, 0.0
    while queue or (current >= 0).any():
        for worker in np.flatnonzero((current < 0) & (ready <= now)):
            if not queue:
                break
            current[worker] = queue.pop()
            left[worker] += sizes[current[worker]]  # what it was ahead of the last step's end
        active = current >= 0
        wanted = float(speed[active].sum()) * rate
        allowed = a.reads_per_sec * 2 ** ((now - planned) / a.doubling_sec)
        share = min(1.0, allowed / wanted) if wanted else 1.0
        peak = max(peak, wanted * share)
        left[active] -= speed[active] * rate * share * step_sec
        now += step_sec
        current[active & (left <= 0)] = -1
        lost = (current >= 0) & (draw.random(workers) < a.losses_per_hour * step_sec / 3600)
        for worker in np.flatnonzero(lost):
            redone += float(sizes[current[worker]] - left[worker])
            queue.append(int(current[worker]))
            current[worker], left[worker] = -1, 0.0
            ready[worker] = now + draw.uniform(*a.start_sec)
    total = now + 2 * a.step_sec + shards * a.commit_shard_msec / 1000
    busy = images / rate / (workers * total)
    return Run(planned, now, total, busy, redone, peak)


def _planned_at(images: int, workers: int, a: Assumptions, begun: float) -> float:
    pages = -(-images // a.classes) / a.page_keys  # of a class, one after the other
    listed = pages * a.page_sec * max(1.0, a.classes / workers)
    return begun + listed + images * a.plan_cpu_usec / 1e6 / workers + a.plan_steps * a.step_sec


def median_run(images: int, shards: int, workers: int, a: Assumptions) -> Run:
    """Median of some seeds, figure by figure."""
    runs = [simulate(images, shards, workers, a, seed) for seed in range(SEEDS)]
    names = [field.name for field in dataclasses.fields(Run)]
    return Run(**{name: statistics.median(getattr(run, name) for run in runs) for name in names})


def shards_of(images: int, shard_mb: float = 128) -> int:
    """As `--shard_mb` makes them."""
    return max(1, round(images * RECORD_BYTES / (shard_mb * 1e6)))


COLUMNS = ("shards", "a worker", "planned s", "written s", "total s", "images/s", "GET/s",
           "busy %", "redone %")  # fmt: skip


def row(images: int, shards: int, workers: int, a: Assumptions) -> tuple[str, ...]:
    """A line of the table."""
    run = median_run(images, shards, workers, a)
    figures = (shards, shards / workers, run.planned, run.written, run.total, images / run.total,
               run.peak_reads_per_sec, 100 * run.busy, 100 * run.redone / images)  # fmt: skip
    digits = (0, 1, 0, 0, 0, 0, 0, 0, 2)
    return tuple(f"{value:,.{n}f}" for value, n in zip(figures, digits, strict=True))


def tables(images: Sequence[int], workers: Sequence[int], a: Assumptions) -> str:
    """All combinations, with stores that keep up and stores that begin cold."""
    cold = dataclasses.replace(a, reads_per_sec=5000.0)
    lines: list[tuple[str, ...]] = [("", *COLUMNS)]
    for count in images:
        for number in workers:
            name = f"{count:,} images, {number:,} workers"
            few = shards_of(count)
            lines.append((f"{name}, 128 MB", *row(count, few, number, a)))
            if few < 8 * number:
                lines.append((f"{name}, 8 shards each", *row(count, 8 * number, number, a)))
            lines.append((f"{name}, cold bucket", *row(count, max(few, 8 * number), number, cold)))
    return "\n".join(aligned(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_simulation")
    parser.add_argument("--images", default="1281167,10000000,100000000", metavar="N,...")
    parser.add_argument("--workers", default="100,1000", metavar="N,...")
    for field in dataclasses.fields(Assumptions):
        if field.type in ("float", "int"):
            parser.add_argument(f"--{field.name}", type=float, default=field.default)
    args = parser.parse_args(argv)
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(Assumptions)
             if hasattr(args, f.name)}  # fmt: skip
    given |= {name: int(given[name]) for name in ("plan_steps", "page_keys", "classes")}
    counts, workers = (list(map(int, each.split(","))) for each in (args.images, args.workers))
    print(tables(counts, workers, Assumptions(**given)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
