"""How the plan grows with the number of images: measured, fitted, and said for 100 million.

    python -m benchmarks.scale 250000,1000000

Synthetic references go through the pipeline's own graph on Beam's local runner, up to the units of
work, each size in a process of its own. Prints the tables of docs/design/scale.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import math
import pathlib
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.metrics import monitoring_infos
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.transforms import environments

from beam_pipeline.inputs.duplicate_keys import RefuseDuplicateKeys
from beam_pipeline.options import ImageOptions, PlanOptions
from beam_pipeline.planning import plan
from beam_pipeline.planning.refs import ImageRef, RefBatch, ShardUnit
from beam_pipeline.planning.transforms import AssignSplits, PlanShards
from benchmarks.cases import Settings
from benchmarks.measure import run_module
from benchmarks.outcome import Figure, Outcome, aligned

TARGETS = (10_000_000, 100_000_000)
BATCH_SIZE = 1000
# What a picture of 256 px and quality 90 becomes, and as many of them as make --shard_mb 128.
RECORD_BYTES = 20_000.0
SHARD_REFS = 6400
ROOT = "gs://photos-of-somebody/imagenet/train/"
OF_TABLES = "UniqueKeys"
_BATCHES_A_PIECE = 100
_NANOSECONDS_2025 = 1_735_700_000_000_000_000


def size_of(unit: ShardUnit) -> tuple[int, int]:
    """(units, images) of one unit."""
    return 1, len(unit.refs)


def write_total(total: tuple[int, int], path: str) -> None:
    """Leaves the sums for the process that waits for the pipeline."""
    pathlib.Path(path).write_text(json.dumps(total), encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Synthetic:
    """An input that exists on paper only.

    Attributes:
        images: How many.
        classes: Of as many images each.
        shuffled: Rows of a table in random order, instead of folder after folder.
    """

    images: int
    classes: int = 1000
    shuffled: bool = False

    def __str__(self) -> str:
        order = "a shuffled table" if self.shuffled else "folders"
        return f"{self.images:,} images in {self.classes:,} classes, {order}"

    @property
    def batches(self) -> int:
        """Number of batches of references."""
        return -(-self.images // BATCH_SIZE)

    def batch(self, number: int) -> RefBatch:
        """The `number`-th batch of references, always the same."""
        draw = random.Random(number)
        refs = []
        for image in range(number * BATCH_SIZE, min((number + 1) * BATCH_SIZE, self.images)):
            drawn, inside = draw.randrange(self.classes), image * self.classes // self.images
            label = f"n{drawn if self.shuffled else inside:08d}"
            key = f"{label}/{label}_{image:09d}.JPEG"
            size_bytes = 20_000 + int(draw.random() * 180_000)
            mtime_ns = _NANOSECONDS_2025 + int(draw.random() * 1e15)
            refs.append(ImageRef(key, ROOT + key, label, None, None, size_bytes, mtime_ns))
        return RefBatch(refs)


def list_batches(piece: range, source: Synthetic) -> Iterator[RefBatch]:
    """Some batches of a synthetic input."""
    for number in piece:
        yield source.batch(number)


def construct(pipeline: beam.Pipeline, source: Synthetic, shards: int, total: str) -> None:
    """The graph of a build from its references to its units."""
    starts = range(0, source.batches, _BATCHES_A_PIECE)
    pieces = [range(i, min(i + _BATCHES_A_PIECE, source.batches)) for i in starts]
    options = PlanOptions(splits={"train": 1.0}, num_shards={"*": shards})
    batches = (
        pipeline
        | "Pieces" >> beam.Create(pieces)
        | "SpreadPieces" >> beam.Reshuffle()
        | "List" >> beam.FlatMap(list_batches, source).with_output_types(RefBatch)
        | "SpreadBatches" >> beam.Reshuffle()
        | "Split" >> AssignSplits(options)
    )
    if source.shuffled:  # keys of folders are unique by themselves
        batches | OF_TABLES >> RefuseDuplicateKeys()
    planned = batches | "Plan" >> PlanShards(options, ImageOptions())
    (
        planned.units
        | "Sizes" >> beam.Map(size_of)
        | "Total" >> beam.CombineGlobally(lambda sizes: tuple(map(sum, zip(*sizes, strict=True))))
        | "Leave" >> beam.Map(write_total, total)
    )


def run_graph(source: Synthetic, shards: int) -> dict[str, Any]:
    """Plans a synthetic input; what it took, and what crossed each shuffle by Beam's metrics."""
    gc.set_threshold(100_000)  # as a build does
    with tempfile.TemporaryDirectory() as folder:
        total = pathlib.Path(folder, "total.json")
        built = beam.Pipeline(options=PipelineOptions([]))
        construct(built, source, shards, str(total))
        here = environments.EmbeddedPythonEnvironment.default()
        graph = built.to_runner_api(default_environment=here)
        begun = time.process_time()
        result = fn_runner.FnApiRunner().run_via_runner_api(graph, PipelineOptions([]))
        cpu_sec = time.process_time() - begun
        units, images = json.loads(total.read_text(encoding="utf-8"))
    return {
        "source": str(source),
        "images": images,
        "units": units,
        "cpu_sec": cpu_sec,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "shuffles": _shuffles(graph, result.monitoring_infos()),
    }


def _shuffles(graph: Any, infos: Any) -> dict[str, dict[str, float]]:
    """Shuffle → its elements and their bytes, whose mean Beam has sampled."""
    elements: dict[str, float] = {}
    mean_bytes: dict[str, float] = {}
    for info in infos:
        collection = info.labels.get("PCOLLECTION", "")
        if info.urn == monitoring_infos.ELEMENT_COUNT_URN:
            elements[collection] = monitoring_infos.extract_counter_value(info)
        elif info.urn == monitoring_infos.SAMPLED_BYTE_SIZE_URN:
            count, size_bytes, *_ = monitoring_infos.extract_distribution(info)
            mean_bytes[collection] = size_bytes / max(1, count)
    kinds = (common_urns.primitives.GROUP_BY_KEY.urn, common_urns.composites.RESHUFFLE.urn)
    found = {}
    for transform in graph.components.transforms.values():
        collection = next(iter(transform.inputs.values()), "")
        inside = "Reshuffle" in transform.unique_name.rpartition("/")[0]
        if transform.spec.urn in kinds and not inside and elements.get(collection):
            count = elements[collection]
            found[transform.unique_name] = {
                "elements": count, "size_bytes": count * mean_bytes.get(collection, 0.0)
            }  # fmt: skip
    return found


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
        "shards": sum(layout.num_shards.values()),
        "layout": len(encode(layout)),
        "ranks": len(encode(plan.bucket_ranks(sizes))),
        "largest bucket": max(sizes.values()),
        "refs of a shard": -(-images // sum(layout.num_shards.values())),
    }


def fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(fixed, per image): a line through points, with relative errors weighed alike.

    Least squares of `(fixed + per_image * x - y) / y`: the smallest point counts as the largest.
    """
    if len(points) == 1:
        ((images, value),) = points
        return 0.0, value / images
    a = b = c = d = e = 0.0
    for x, y in points:
        weight = 1 / (y * y)
        a, b, c = a + weight, b + weight * x, c + weight * x * x
        d, e = d + weight * y, e + weight * x * y
    per_image = (a * e - b * d) / (a * c - b * b)
    return (d - b * per_image) / a, per_image


def measure(images: int, log: pathlib.Path, *flags: str) -> dict[str, Any]:
    """`run_graph` in a process of its own."""
    usage = run_module("benchmarks.scale", "--one", images, *flags, log=log)
    found: dict[str, Any] = json.loads(usage.output.splitlines()[-1])
    return found


def shuffled_bytes(found: dict[str, Any]) -> float:
    """Bytes that cross shuffles, per image, without the check that only tables need."""
    shuffles = found["shuffles"].items()
    total = sum(each["size_bytes"] for name, each in shuffles if OF_TABLES not in name)
    return float(total / found["images"])


def plan_at_scale(s: Settings) -> Outcome:
    """The plan for a data set and for one eight times as large."""
    s.work.mkdir(parents=True, exist_ok=True)
    log = s.work / "command.log"
    small, large = (measure(n, log, "--shuffled") for n in (s.listed // 8, s.listed))
    usec = [found["cpu_sec"] / found["images"] * 1e6 for found in (small, large)]
    rows: dict[str, tuple[float, ...]] = {
        f"{found['images']:,} images": (cpu, shuffled_bytes(found), found["peak_rss_bytes"] / 1e6)
        for cpu, found in zip(usec, (small, large), strict=True)
    }
    return Outcome(
        "plan_at_scale", f"{large['source']}, planned by the local runner",
        ("CPU us an image", "shuffled bytes an image", "peak RSS MB"), rows,
        (
            Figure("CPU time an image, 8 times the images, as a ratio", (usec[1] / usec[0],), 1.25,
                   at_least=False),
            Figure("bytes shuffled an image", (shuffled_bytes(large),), 500, at_least=False),
        ),
        ("docs/design/scale.md says what follows for 10 and 100 million images",),
    )  # fmt: skip


SCALE_BENCHMARKS = {"plan_at_scale": plan_at_scale}


def tables(measured: list[dict[str, Any]]) -> str:
    """What docs/design/scale.md shows."""
    largest = measured[-1]
    lines: list[tuple[str, ...]] = [(f"{largest['images']:,} images", "bytes an image", "elements")]
    for name, each in largest["shuffles"].items():
        size_bytes = each["size_bytes"] / largest["images"]
        lines.append((name, f"{size_bytes:.1f}", f"{each['elements']:,}"))
    lines.append(("all", f"{shuffled_bytes(largest):.0f}", ""))
    parts = ["\n".join(aligned(lines))]
    lines = [("", *(f"{each['images']:,}" for each in measured), "fixed", "per million",
              *(f"law: {target:,}" for target in TARGETS))]  # fmt: skip
    for what, key, unit in (("CPU s", "cpu_sec", 1.0), ("peak RSS, GB", "peak_rss_bytes", 1e9)):
        values = [each[key] / unit for each in measured]
        sizes = [each["images"] for each in measured]
        fixed, slope = fit(list(zip(sizes, values, strict=True)))
        laws = [fixed + slope * target for target in TARGETS]
        lines.append((what, *(f"{v:,.3g}" for v in (*values, fixed, slope * 1e6, *laws))))
    parts.append("\n".join(aligned(lines)))
    keys = list(side_inputs(1000, 2))
    lines = [("side inputs", *keys)]
    for classes in (2, 1000, 21_841):
        for images in (1_000_000, *TARGETS):
            found = side_inputs(images, classes)
            name = f"{images:,} images, {classes:,} classes"
            lines.append((name, *(f"{found[key]:,}" for key in keys)))
    return "\n\n".join([*parts, "\n".join(aligned(lines))])


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints the tables; with --one, plans one input and prints a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("sizes", nargs="?", default="100000,1000000", metavar="N,...")
    parser.add_argument("--one", type=int, metavar="N", help=argparse.SUPPRESS)
    parser.add_argument("--shuffled", action="store_true", help="rows of a table, not folders")
    args = parser.parse_args(argv)
    if args.one:
        source = Synthetic(args.one, shuffled=args.shuffled)
        print(json.dumps(run_graph(source, max(1, args.one // SHARD_REFS))))
        return 0
    flags = ["--shuffled"] if args.shuffled else []
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "log")
        print(tables([measure(int(n), log, *flags) for n in args.sizes.split(",")]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
