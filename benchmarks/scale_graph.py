"""Synthetic references through the pipeline's own graph, up to the units of work.

    python -m benchmarks.scale_graph --images 1000000

Beam's flags are taken, too; its local runner holds every collection in memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence

import apache_beam as beam

from beam_pipeline import runners
from beam_pipeline.inputs.duplicate_keys import RefuseDuplicateKeys
from beam_pipeline.options import ImageOptions, PlanOptions
from beam_pipeline.planning.refs import RefBatch
from beam_pipeline.planning.transforms import AssignSplits, PlanShards
from benchmarks.plan_with_transform import size_of, write_total
from benchmarks.scale_refs import BATCH_SIZE, Synthetic
from benchmarks.scale_simulation import shards_of

_BATCHES_A_PIECE = 100


def batches_of(piece: range, source: Synthetic) -> Iterator[RefBatch]:
    """Some batches of a synthetic input."""
    for number in piece:
        yield source.batch(number)


def construct(pipeline: beam.Pipeline, source: Synthetic, shards: int, total: str) -> None:
    """The graph of a build from its references to its units."""
    count = -(-source.images // BATCH_SIZE)
    pieces = [range(i, min(i + _BATCHES_A_PIECE, count)) for i in range(0, count, _BATCHES_A_PIECE)]
    options = PlanOptions(splits={"train": 1.0}, num_shards={"*": shards})
    batches = (
        pipeline
        | "Pieces" >> beam.Create(pieces)
        | "SpreadPieces" >> beam.Reshuffle()
        | "List" >> beam.FlatMap(batches_of, source).with_output_types(RefBatch)
        | "Spread" >> beam.Reshuffle()
        | "Split" >> AssignSplits(options)
    )
    if source.shuffled:  # keys of folders are unique by themselves
        batches | "UniqueKeys" >> RefuseDuplicateKeys()
    planned = batches | "Plan" >> PlanShards(options, ImageOptions())
    (
        planned.units
        | "SpreadUnits" >> beam.Reshuffle()
        | "Sizes" >> beam.Map(size_of)
        | "Total" >> beam.CombineGlobally(lambda sizes: tuple(map(sum, zip(*sizes, strict=True))))
        | "Leave" >> beam.Map(write_total, total)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the graph; prints the number of units and images."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_graph")
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shuffled", action="store_true")
    args, beam_args = parser.parse_known_args(argv)
    gc.set_threshold(100_000)  # as a build does
    source = Synthetic(args.images, args.classes, args.shuffled)
    with tempfile.TemporaryDirectory() as folder:
        total = pathlib.Path(folder, "total.json")
        runner = runners.choose(beam_args)
        pipeline = runner.new_pipeline()
        construct(pipeline, source, shards_of(args.images), str(total))
        runner.run(pipeline)
        units, images = json.loads(total.read_text(encoding="utf-8"))
    print(f"{units} units, {images} images")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
