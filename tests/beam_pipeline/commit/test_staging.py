"""What an output folder may hold when a build begins."""

import dataclasses
import json

import pytest
from hypothesis import given, settings

from beam_pipeline.commit.staging import (
    check_output,
    mark_committed,
    prepare_staging,
    read_output_state,
    remove_empty,
    set_aside,
)
from imageshards import storage
from tests.support.commands import write_and_die
from tests.support.commit_steps import everything, fingerprint_if_whole
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused
from tests.support.strangers import changed

STOPPED = ".staging/job.json"
SHARD = "train-00000-of-00001.tfrecord"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("files", "strangers"),
    [
        ({}, ""),
        ({".gitkeep": "", "lost+found/x": "", "log.txt": "", ".staging/lock": ""}, ""),
        # A build was stopped there.
        ({STOPPED: "{}", SHARD: "", "index/a": "", "features.json": "{}"}, ""),
        ({"report/thesis.txt": ""}, "('report')"),
        ({"quarantine/mine.txt": ""}, "('quarantine')"),
        ({"features.json": "{}"}, "('features.json')"),
        ({SHARD: ""}, f"('{SHARD}')"),
        ({"manifest.json": '{"name": "of another program"}'}, "('manifest.json')"),
        ({"manifest.json": "torn", "report/a": ""}, "holds 2 files or folders"),
    ],
)
def test_files_that_no_build_accounts_for_are_refused(tmp_path, files, strangers, overwrite):
    for name, text in files.items():
        storage.write(f"{tmp_path}/{name}", text.encode())
    state = read_output_state(str(tmp_path), str(tmp_path / ".staging"))
    if not strangers:
        assert not check_output(state, overwrite)
        return
    with refused("output", strangers) as caught:
        check_output(state, overwrite)
    assert "overwrite" not in str(caught.value)


@given(changed({"pinned_classes": ["cat"], "digest": "d", "job": None}))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_any_json_in_the_notes_of_a_job_is_either_used_or_ignored(tmp_path_factory, notes):
    output = tmp_path_factory.mktemp("output")
    for name in (STOPPED, ".staging/committed.json"):
        storage.write(f"{output}/{name}", json.dumps(notes))
    state = read_output_state(str(output), str(output / ".staging"))
    assert all(isinstance(name, str) for name in state.pinned_classes)
    assert not check_output(state, False)
    prepare_staging(state)


def test_a_dataset_that_was_set_aside_stays_until_there_is_another(tmp_path):
    """Also where the command after it is refused, or goes on from there."""
    made = Dataset(tmp_path / "set")
    output, staging = str(made.directory), str(made.directory / ".staging")
    before = everything(output)
    set_aside(output, staging)
    assert fingerprint_if_whole(output) is None
    for _ in range(2):
        set_aside(output, staging)
        remove_empty(output, staging, fresh=False)
        prepare_staging(read_output_state(output, staging))
        assert everything(f"{staging}/replaced") == before
    made.save()
    prepare_staging(read_output_state(output, staging))
    assert not (made.directory / ".staging" / "replaced").exists()


@pytest.mark.process
def test_the_next_build_removes_what_a_killed_one_had_not_finished(tmp_path):
    made = Dataset(tmp_path / "set")
    output, staging = str(made.directory), str(made.directory / ".staging")
    mine = ("notes.txt", "x.tmp-1", "photos/a.json")
    shards = (SHARD, "index/train.parquet", "transform/transform_fn/saved_model.pb")
    ours = (*shards, "features.json", "report/index.html", ".staging/replaced/a", ".staging/a")
    for name in (*mine, *(f"{name}.tmp-863179ee" for name in ours)):  # as `storage.link` writes
        storage.write(storage.join(output, name), b"")
    write_and_die(*(made.directory / name for name in (*mine, *ours)))
    left = {path.relative_to(tmp_path) for path in made.directory.rglob("*.tmp-*")}
    assert len(left) == 1 + len(mine) + 2 * len(ours)
    prepare_staging(dataclasses.replace(read_output_state(output, staging), manifest=None))
    left = {path.relative_to(made.directory) for path in made.directory.rglob("*.tmp-*")}
    assert sorted(map(str, left))[0].startswith("notes.txt.tmp-") and len(left) == 1 + len(mine)
    assert {made.directory / name for name in mine} <= {*made.directory.rglob("*")}


def test_a_finished_build_is_known_by_the_digest_of_its_options(tmp_path):
    made = Dataset(tmp_path / "set")
    output, staging = str(made.directory), str(made.directory / ".staging")
    prepare_staging(dataclasses.replace(read_output_state(output, staging), manifest=None), "mine")
    fingerprint = json.loads((made.directory / "manifest.json").read_text())["fingerprint"]
    mark_committed(staging, fingerprint)
    state = read_output_state(output, staging)
    assert check_output(state, overwrite=False, digest="mine")
    with refused("output"):
        check_output(state, overwrite=False, digest="of other options")
    assert not check_output(state, overwrite=True, digest="of other options")
