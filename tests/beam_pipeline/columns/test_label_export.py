"""The transform of labels, exported beside a build."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from beam_pipeline.columns import label_export
from beam_pipeline.columns import transforms as columns
from beam_pipeline.columns.label_export import LabelExporter


@pytest.mark.slow
def test_it_is_exported_by_a_process_of_its_own(tmp_path):
    with LabelExporter() as exporter:
        label_export.begin_export(["b", "a", "ž"], str(tmp_path))
        label_export.await_export()
        assert exporter._process.returncode == 0
    assert columns.exported_classes(str(tmp_path)) == ["b", "a", "ž"]


@pytest.mark.slow
def test_a_killed_exporter_costs_time_only(tmp_path):
    with LabelExporter() as exporter:
        exporter._process.kill()
        exporter._process.wait()
        label_export.begin_export(["x", "y"], str(tmp_path))
        label_export.await_export()
    assert columns.exported_classes(str(tmp_path)) == ["x", "y"]


def test_without_an_exporter_it_is_done_at_once(tmp_path):
    assert label_export.begin_export(["x", "y"], str(tmp_path)) == str(tmp_path)
    assert columns.exported_classes(str(tmp_path)) == ["x", "y"]


def test_the_exporter_ends_when_nobody_asks():
    code = (
        "import sys; from beam_pipeline.columns import label_export; sys.exit(label_export.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], input="", text=True, check=False)
    assert done.returncode == 0


def test_the_exporter_does_not_import_beam():
    code = "import sys, beam_pipeline.columns.label_export; print('apache_beam' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.strip().lower()) is False
