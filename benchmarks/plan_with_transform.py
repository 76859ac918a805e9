"""Everything of a build up to its units of work: listed, analysed by tensorflow-transform, planned.

    python -m benchmarks.plan_with_transform --input photos/ --output new_folder/

The flags are those of `imageshards build`. Prints the number of units and images.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Sequence

import apache_beam as beam

from beam_pipeline import cli, runners
from beam_pipeline.columns.transforms import AnalyseColumns
from beam_pipeline.inputs.transforms import ListImages
from beam_pipeline.options import BuildOptions
from beam_pipeline.planning.refs import ShardUnit
from beam_pipeline.planning.transforms import AssignSplits, PlanShards


def size_of(unit: ShardUnit) -> tuple[int, int]:
    """(units, images) of one unit."""
    return 1, len(unit.refs)


def write_total(total: tuple[int, int], path: str) -> None:
    """Leaves the sums for the process that waits for the pipeline."""
    pathlib.Path(path).write_text(json.dumps(total), encoding="utf-8")


def construct(pipeline: beam.Pipeline, options: BuildOptions, total: str) -> None:
    """The graph of a build without its write."""
    listed = pipeline | "List" >> ListImages(options.source, None)
    batches = listed.batches | "Split" >> AssignSplits(options.plan)
    columns = batches | "Analyse" >> AnalyseColumns(
        os.path.join(options.output, "transform"),
        class_names=options.plan.class_names,
        pinned_classes=options.plan.pinned_classes,
        transform_module=options.transform_module,
        temp_dir=os.path.join(options.output, "tft_temp"),
    )
    planned = columns.batches | "Plan" >> PlanShards(options.plan, options.image)
    (
        planned.units
        | "Sizes" >> beam.Map(size_of)
        | "Total" >> beam.CombineGlobally(lambda sizes: tuple(map(sum, zip(*sizes, strict=True))))
        | "Leave" >> beam.Map(write_total, total)
    )


def main(argv: Sequence[str]) -> int:
    """Runs the pipeline."""
    options, beam_args = cli.parse(argv)
    os.makedirs(options.output)
    total = os.path.join(options.output, "total.json")
    runner = runners.choose(beam_args)
    pipeline = runner.new_pipeline()
    construct(pipeline, options, total)
    runner.run(pipeline)
    units, images = json.loads(pathlib.Path(total).read_text(encoding="utf-8"))
    print(f"{units} units, {images} images")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
