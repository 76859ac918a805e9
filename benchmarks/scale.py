"""How the plan grows with the number of images: measured, fitted, and said for 100 million.

    python -m benchmarks.scale --paper 100000,1000000,10000000 --graph 250000,1000000

Prints the tables of docs/scale.md. What was measured is kept in a file and not measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from apache_beam.coders import FastPrimitivesCoder

from beam_pipeline.options import PlanOptions
from beam_pipeline.planning import plan
from benchmarks import scale_simulation
from benchmarks.cases import Settings
from benchmarks.measure import REPOSITORY, run_module
from benchmarks.outcome import Figure, Outcome, aligned
from benchmarks.scale_plan import RECORD_BYTES

MB = 1e6
TARGETS = (10_000_000, 100_000_000)
# Collections that every image crosses, in the order of the graph.
CROSSED = ("Spread", "GroupBuckets", "sorted buckets", "GroupShards", "Spread of units")
OF_MANIFESTS = "manifests only"


@dataclasses.dataclass(frozen=True)
class Law:
    """`fixed + per_image * images`, through some measured points.

    Attributes:
        exponent: Of a power law through the points with the fixed part taken off: 1 is linear.
    """

    fixed: float
    per_image: float
    exponent: float

    def at(self, images: int) -> float:
        """The value for so many images."""
        return self.fixed + self.per_image * images


def fit(points: Sequence[tuple[int, float]]) -> Law:
    """A line through points, with relative errors weighed alike.

    Least squares of `(fixed + per_image * x - y) / y`: the smallest point counts as the
    largest does. The exponent is that of the last two points.
    """
    if len(points) == 1:
        ((images, value),) = points
        return Law(0.0, value / images, 1.0)
    a = b = c = d = e = 0.0
    for x, y in points:
        weight = 1 / (y * y)
        a, b, c = a + weight, b + weight * x, c + weight * x * x
        d, e = d + weight * y, e + weight * x * y
    per_image = (a * e - b * d) / (a * c - b * b)
    fixed = (d - b * per_image) / a
    (x0, y0), (x1, y1) = sorted(points)[-2:]
    over = [max(y - max(fixed, 0.0), 1e-12) for y in (y0, y1)]
    return Law(fixed, per_image, math.log(over[1] / over[0]) / math.log(x1 / x0))


def side_inputs(images: int, classes: int) -> dict[str, int]:
    """Encoded bytes of what every worker is given, exactly: they depend on counts alone."""
    draw = random.Random(0)
    counts = {}
    for label in range(classes):
        of_class = images * (label + 1) // classes - images * label // classes
        train = round(of_class * 0.9 + draw.gauss(0, math.sqrt(of_class * 0.09)))
        counts["train", f"n{label:08d}"] = train
        counts["validation", f"n{label:08d}"] = of_class - train
    layout = plan.make_plan(counts, PlanOptions(), RECORD_BYTES)
    sizes = {
        (split, label, bucket): count // layout.num_buckets(split, label)
        for (split, label), count in layout.counts.items()
        for bucket in range(layout.num_buckets(split, label))
    }
    encode = FastPrimitivesCoder().encode
    return {
        "layout": len(encode(layout)),
        "ranks": len(encode(plan.bucket_ranks(sizes))),
        "shards": sum(layout.num_shards.values()),
        "largest bucket": max(sizes.values()),
        "refs of a shard": -(-images // sum(layout.num_shards.values())),
    }


def measure_plan(images: int, work: pathlib.Path, *flags: str) -> dict[str, Any]:
    """`benchmarks.scale_plan` in a process of its own."""
    usage = run_module(
        "benchmarks.scale_plan", "--images", images, "--work", work, *flags,
        log=work / "command.log",
    )  # fmt: skip
    found: dict[str, Any] = json.loads(usage.output.splitlines()[-1])
    return found | {"seconds": usage.seconds}


def measure_graph(images: int, work: pathlib.Path, *flags: str) -> dict[str, Any]:
    """`benchmarks.scale_graph` on Beam's local runner."""
    usage = run_module(
        "benchmarks.scale_graph", "--images", images, *flags, log=work / "command.log", memory=True
    )
    return {
        "images": images,
        "seconds": usage.seconds,
        "cpu_sec": usage.cpu_seconds,
        "peak_rss_bytes": usage.peak_rss_bytes,
    }


def cpu_usec(found: dict[str, Any]) -> float:
    """CPU time of the plan per image, without the check that only manifests need."""
    steps = found["cpu_sec"].items()
    total = sum(seconds for step, seconds in steps if OF_MANIFESTS not in step)
    return float(total / found["images"] * 1e6)


def crossed_bytes(found: dict[str, Any]) -> float:
    """Bytes that cross shuffles, per image."""
    return float(sum(found["traffic"][name]["size_bytes"] for name in CROSSED) / found["images"])


def plan_at_scale(s: Settings) -> Outcome:
    """The plan for a data set and for one eight times as large."""
    s.work.mkdir(parents=True, exist_ok=True)
    small, large = (measure_plan(n, s.work, "--shuffled") for n in (s.listed // 8, s.listed))
    rows: dict[str, tuple[float, ...]] = {
        f"{found['images']:,} images": (
            cpu_usec(found), crossed_bytes(found), found["traffic"]["GroupBuckets"]["largest_refs"],
            found["traffic"]["Spread of units"]["largest_refs"],
            found["side_bytes"]["ranks"] / 1000, found["peak_rss_bytes"] / MB,
        )
        for found in (small, large)
    }  # fmt: skip
    grouped = max(t["largest_refs"] for name, t in large["traffic"].items() if name in CROSSED)
    unit = max(plan.MIN_BUCKET_SIZE, large["traffic"]["Spread of units"]["largest_refs"])
    return Outcome(
        "plan_at_scale", f"{large['source']}, planned step by step by one process",
        ("CPU us an image", "shuffled bytes an image", "refs of a bucket", "refs of a shard",
         "ranks kB", "peak RSS MB"), rows,
        (
            Figure("CPU time an image, 8 times the images, as a ratio",
                   (cpu_usec(large) / cpu_usec(small),), 1.25, at_least=False),
            Figure("bytes shuffled an image", (crossed_bytes(large),), 500, at_least=False),
            Figure("largest grouped value against a shard's references", (grouped / unit,), 1.1,
                   at_least=False),
        ),
        ("docs/scale.md has the same for 10 million images, and what follows for 100 million",),
    )  # fmt: skip


SCALE_BENCHMARKS = {"plan_at_scale": plan_at_scale}


def tables(paper: list[dict[str, Any]], graph: list[dict[str, Any]]) -> str:
    """What docs/scale.md shows of the measured plans."""
    parts = [_steps(paper), _traffic(paper), _sides(), _laws(paper, "paper", _PAPER)]
    if graph:
        parts.append(_laws(graph, "graph", _GRAPH))
    return "\n\n".join(parts)


def _steps(paper: list[dict[str, Any]]) -> str:
    lines = [("CPU us an image", *(f"{found['images']:,}" for found in paper))]
    for step in paper[-1]["cpu_sec"]:
        each = (found["cpu_sec"][step] / found["images"] * 1e6 for found in paper)
        lines.append((step, *(f"{value:.2f}" for value in each)))
    lines.append(("all, of folders", *(f"{cpu_usec(found):.1f}" for found in paper)))
    peaks = (f"{found['peak_rss_bytes'] / MB:.0f}" for found in paper)
    lines.append(("peak RSS of the process, MB", *peaks))
    return "\n".join(aligned(lines))


def _traffic(paper: list[dict[str, Any]]) -> str:
    images = paper[-1]["images"]
    columns = ("bytes an image", "elements", "images an element", "keys", "largest: refs", "MB")
    lines: list[tuple[str, ...]] = [(f"{images:,} images", *columns)]
    for name, t in paper[-1]["traffic"].items():
        lines.append((
            name, f"{t['size_bytes'] / images:.1f}", f"{t['elements']:,}",
            f"{images / t['elements']:,.0f}", f"{t['keys']:,}" if t["keys"] else "",
            f"{t['largest_refs']:,}", f"{t['largest_bytes'] / MB:.2f}",
        ))  # fmt: skip
    lines.append(("all, of folders", f"{crossed_bytes(paper[-1]):.0f}", *[""] * 5))
    return "\n".join(aligned(lines))


def _sides() -> str:
    lines = [("side inputs, kB", "shards", "layout", "ranks", "refs: bucket", "shard")]
    for classes in (2, 1000, 21_841):
        for images in (1_000_000, *TARGETS):
            found = side_inputs(images, classes)
            lines.append((
                f"{images:,} images, {classes:,} classes", f"{found['shards']:,}",
                f"{found['layout'] / 1000:,.0f}", f"{found['ranks'] / 1000:,.0f}",
                f"{found['largest bucket']:,}", f"{found['refs of a shard']:,}",
            ))  # fmt: skip
    return "\n".join(aligned(lines))


_Values = dict[str, Callable[[dict[str, Any]], float]]
_PAPER: _Values = {
    "CPU s of all steps": lambda found: cpu_usec(found) * found["images"] / 1e6,
    "GB through shuffles": lambda found: crossed_bytes(found) * found["images"] / 1e9,
}
_GRAPH: _Values = {
    "CPU s": lambda found: found["cpu_sec"],
    "peak RSS, GB": lambda found: found["peak_rss_bytes"] / 1e9,
}


def _laws(found: list[dict[str, Any]], name: str, values: _Values) -> str:
    lines = [(name, *(f"{each['images']:,}" for each in found), "fixed", "per million",
              "exponent", *(f"law: {target:,}" for target in TARGETS))]  # fmt: skip
    for what, value in values.items():
        law = fit([(each["images"], value(each)) for each in found])
        figures = [*(value(each) for each in found), law.fixed, law.per_image * 1e6, law.exponent]
        lines.append((what, *(f"{v:,.3g}" for v in (*figures, *map(law.at, TARGETS)))))
    return "\n".join(aligned(lines))


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what was not measured before, and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--paper", type=_numbers, default=[100_000, 1_000_000], metavar="N,...",
                        help="images whose plan is made step by step")  # fmt: skip
    parser.add_argument("--graph", type=_numbers, default=[], metavar="N,...",
                        help="images that go through Beam's local runner")  # fmt: skip
    parser.add_argument("--work", type=pathlib.Path, default=REPOSITORY / "bench_output")
    args = parser.parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    kept = args.work / "scale.json"
    known: dict[str, Any] = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    for kind, sizes, measure in (
        ("paper", args.paper, measure_plan), ("graph", args.graph, measure_graph),
    ):  # fmt: skip
        for images in sizes:
            if f"{kind} {images}" not in known:
                known[f"{kind} {images}"] = measure(images, args.work)
                kept.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    paper, graph = ([known[f"{kind} {n}"] for n in sizes]
                    for kind, sizes in (("paper", args.paper), ("graph", args.graph)))  # fmt: skip
    print(tables(paper, graph))
    print("\n" + scale_simulation.tables(TARGETS, (100, 1000), scale_simulation.Assumptions()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
