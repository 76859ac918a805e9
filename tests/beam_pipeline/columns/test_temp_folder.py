"""Where tensorflow-transform's files go: TensorFlow on every worker must see the place."""

from __future__ import annotations

import os

import pytest

from beam_pipeline.columns.transforms import transform_temp_folder
from beam_pipeline.options import BuildOptions, ColumnSpec, InputOptions
from imageshards.errors import UserError

COLUMNS = (ColumnSpec("age", "float"),)


def folder_for(output, columns=(), is_local_run=False, **more):
    options = BuildOptions(InputOptions("in.csv"), output, **more)
    return transform_temp_folder(options, columns, is_local_run, f"{output}/.staging")


@pytest.mark.parametrize("is_local_run", [True, False])
@pytest.mark.parametrize("columns", [(), COLUMNS])
def test_a_local_output_holds_the_temp_folder(tmp_path, columns, is_local_run):
    with folder_for(str(tmp_path), columns, is_local_run) as folder:
        assert folder == f"{tmp_path}/.staging/tft_temp"


@pytest.mark.parametrize("output", ["gs://b/set", "s3://b/set", "hdfs://b/set"])
def test_a_local_run_uses_a_local_temp_folder(output):
    with folder_for(output, COLUMNS, is_local_run=True) as folder:
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)


def test_gs_is_read_by_tensorflow_itself_but_an_emulator_is_not(monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    with folder_for("gs://b/set", COLUMNS) as folder:
        assert folder == "gs://b/set/.staging/tft_temp"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://localhost:1")
    with pytest.raises(UserError, match="--transform_temp_dir"):
        folder_for("gs://b/set", COLUMNS).__enter__()


@pytest.mark.parametrize(
    ("columns", "module", "is_refused"),
    [((), None, False), (COLUMNS, None, True), ((), "m.py", True)],
)
def test_a_remote_run_with_an_s3_output_needs_a_given_temp_folder(columns, module, is_refused):
    wanted = folder_for("s3://b/set", columns, transform_module=module)
    if is_refused:
        with pytest.raises(UserError, match="'s3://b/set' .* shared mount or gs://.*temp_dir"):
            wanted.__enter__()
    else:
        with wanted as folder:
            assert folder == "s3://b/set/.staging/tft_temp"  # nothing is put there


def test_a_given_temp_folder_is_kept_and_emptied(tmp_path):
    with folder_for("s3://b/set", COLUMNS, transform_temp_dir=str(tmp_path)) as folder:
        assert os.path.dirname(folder) == str(tmp_path)
        os.makedirs(f"{folder}/graph")
        with folder_for("s3://b/set", COLUMNS, transform_temp_dir=str(tmp_path)) as other:
            assert other != folder
    assert os.listdir(tmp_path) == []
