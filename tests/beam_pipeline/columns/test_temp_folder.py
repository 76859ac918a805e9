"""Where tensorflow-transform's files go: TensorFlow on every worker must see the place."""

import contextlib
import os

import pytest

from beam_pipeline.columns.transforms import transform_temp_folder
from beam_pipeline.options import BuildOptions, ColumnSpec, InputOptions
from tests.support.errors import refused

COLUMNS = (ColumnSpec("age", "float"),)


def folder_for(output, columns=(), is_local_run=False, **more):
    options = BuildOptions(InputOptions("in.csv"), output, **more)
    return transform_temp_folder(options, columns, is_local_run, f"{output}/.staging")


@pytest.mark.parametrize(
    ("output", "columns", "more", "emulator", "is_there"),
    [
        ("gs://b/set", COLUMNS, {}, "", True),
        ("gs://b/set", COLUMNS, {}, "http://localhost:1", False),  # TensorFlow does not know it
        ("s3://b/set", COLUMNS, {}, "", False),
        ("s3://b/set", (), {"transform_module": "m.py"}, "", False),
        ("s3://b/set", (), {}, "", True),  # nothing is put there
    ],
)
def test_an_output_may_hold_the_folder(monkeypatch, output, columns, more, emulator, is_there):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    if emulator:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
    expected = contextlib.nullcontext() if is_there else refused("output", output)
    with expected, folder_for(output, columns, **more) as folder:
        assert folder == ""


def test_a_local_run_uses_a_local_temp_folder():
    with folder_for("gs://b/set", COLUMNS, is_local_run=True) as folder:
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)


def test_a_given_temp_folder_is_kept_and_emptied(tmp_path):
    with folder_for("s3://b/set", COLUMNS, transform_temp_dir=str(tmp_path)) as folder:
        assert os.path.dirname(folder) == str(tmp_path)
        os.makedirs(f"{folder}/graph")
    assert os.listdir(tmp_path) == []
