"""Runs `AnalyseColumns` on the real local runner, for the tests that need what it returns."""

import pickle
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.testing.util import assert_that, equal_to

from beam_pipeline.columns.export import exported_features
from beam_pipeline.columns.transforms import AnalyseColumns
from beam_pipeline.options import PlanOptions, ShardOptions
from beam_pipeline.planning.refs import ImageRef, RefBatch

ODD_LABELS = ("tabby cat", "crème, brûlée", "日本", 'a "b"', "-1")


def analyse(tmp: Path, batches: list[RefBatch], **given: Any) -> tuple[list[list[ImageRef]], str]:
    """Runs `AnalyseColumns`; returns the references of each batch and the export."""
    of_plan = {name: given.pop(name) for name in ("class_names", "pinned_classes") if name in given}
    options = ShardOptions(plan=PlanOptions(**of_plan))
    out, exported = tmp / "out", str(tmp / "transform")
    out.mkdir(parents=True)
    step = AnalyseColumns(exported, options=options, temp_dir=str(tmp / "tmp"), **given)
    with beam.Pipeline(runner=fn_runner.FnApiRunner()) as pipeline:
        analysed = pipeline | beam.Create(batches, reshuffle=False) | step
        _ = analysed.batches | beam.Map(_save, str(out))
        is_there = analysed.features | beam.Map(lambda found: found == exported_features(exported))
        assert_that(is_there, equal_to([True]))
    return [pickle.loads(path.read_bytes()) for path in out.iterdir()], exported


def _save(batch: RefBatch, directory: str) -> None:
    path = Path(directory, batch.refs[0].key if batch.refs else "empty")
    path.write_bytes(pickle.dumps(batch.refs))
