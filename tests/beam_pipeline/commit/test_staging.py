"""What an output folder may hold when a build begins."""

from __future__ import annotations

import pathlib

import pytest

from beam_pipeline.commit.staging import check_output, read_output_state
from imageshards.errors import UserError

STOPPED = ".staging/job.json"
SHARD = "train-00000-of-00001.tfrecord"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ({}, ""),
        ({".gitkeep": "", "lost+found/x": "", "log.txt": "", "build.log": ""}, ""),
        ({".staging/lock": ""}, ""),
        # A build or a removal was stopped there.
        ({STOPPED: '{"in_place": true}', SHARD: "", "index/a": "", "features.json": "{}"}, ""),
        ({"report/thesis.txt": ""}, "('report')"),
        ({"quarantine/mine.txt": ""}, "('quarantine')"),
        ({"index/a": "", "transform/b": ""}, "holds 2 files or folders"),
        ({"features.json": "{}"}, "('features.json')"),
        ({SHARD: ""}, f"('{SHARD}')"),
        ({"manifest.json": '{"name": "of another program"}'}, "('manifest.json')"),
        ({"manifest.json": "torn", "report/a": ""}, "holds 2 files or folders"),
    ],
)
def test_files_that_no_build_accounts_for_are_refused_whatever_the_flags(
    tmp_path: pathlib.Path, files: dict[str, str], refused: str, overwrite: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    state = read_output_state(str(tmp_path), str(tmp_path / ".staging"))
    if not refused:
        assert not check_output(state, overwrite)
        return
    with pytest.raises(UserError) as caught:
        check_output(state, overwrite)
    assert refused in str(caught.value) and "--overwrite" not in str(caught.value)


@pytest.mark.parametrize(
    "files",
    [
        {"manifest.json": '{\n "format_version": 1, "spl', "report/index.html": ""},  # damaged
        {".staging/removal.json": "{}", SHARD: ""},
    ],
)
def test_what_is_left_of_a_data_set_is_replaced_on_demand(
    tmp_path: pathlib.Path, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    state = read_output_state(str(tmp_path), str(tmp_path / ".staging"))
    assert not check_output(state, overwrite=True)
    with pytest.raises(UserError):
        check_output(state, overwrite=False)
