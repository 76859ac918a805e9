"""What a Beam worker imports before its first image stays little."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import environments

from beam_pipeline import pipeline
from beam_pipeline.inputs.listing import schema_of
from beam_pipeline.options import BuildOptions, ColumnSpec, InputOptions
from tests.conftest import REPOSITORY
from tests.support.builds import class_folders

pytestmark = pytest.mark.process

WORKER = REPOSITORY / "tests" / "support" / "worker_imports.py"


def packages_of(folder: pathlib.Path, columns: tuple[ColumnSpec, ...]) -> dict[str, Any]:
    """Phase → package → modules, of a worker of a build from an image table with extra columns."""
    images = class_folders(folder / "images", {"cat": 2, "dog": 2})
    rows = [
        {"image": str(path.relative_to(folder)), "label": path.parent.name}
        | {spec.name: 1.5 for spec in columns}
        for path in sorted(images.rglob("*.jpg"))
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = InputOptions(str(folder / "rows.jsonl"), columns=columns)
    staging = folder / "out" / ".staging"
    staging.mkdir(parents=True)
    built = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    options = BuildOptions(source, str(folder / "out"), report=False)
    pipeline.construct(built, options, (schema_of(source),), str(staging))
    here = environments.EmbeddedPythonEnvironment.default()
    graph = built.to_runner_api(default_environment=here)
    (folder / "graph.pb").write_bytes(graph.SerializeToString())
    worker = subprocess.run(
        [sys.executable, str(WORKER), str(folder / "graph.pb")],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(worker.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_with_columns_a_worker_imports_tensorflow_without_keras_3_or_matplotlib(
    tmp_path: pathlib.Path,
) -> None:
    phases = packages_of(tmp_path, (ColumnSpec("age", "float", (), "zscore"),))
    packages = set().union(*phases.values())
    assert "tensorflow" in packages
    assert not packages & {"keras", "matplotlib", "trainer"}
