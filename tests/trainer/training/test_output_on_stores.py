from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import imageshards as ims
from imageshards import storage
from imageshards.errors import UserError
from tests.support.errors import refused
from tests.support.pictures import saved as encoded
from tests.support.pictures import scene
from tests.support.runs import train_flags
from tests.support.store_servers import StoreServer, store_server
from trainer.__main__ import main
from trainer.training import output_folder
from trainer.training.checkpoint import Checkpoints, RunState
from trainer.training.output_folder import check_no_model, hold_output, remove_run

pytestmark = pytest.mark.process


# What is below these calls is tried with each store where it is: here one is enough.
@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    with store_server("s3") as server, server.environment():
        yield server


@pytest.fixture
def output(store: StoreServer) -> Iterator[str]:
    yield store.bucket() + "/runs/first"
    store.heal()


def _state(step: int) -> RunState:
    return RunState({}, step, variables=[("dense/kernel", np.ones((2, 3), np.float32))])


def _files(folder: str) -> set[str]:
    return {file.path.removeprefix(folder + "/") for file in storage.files_below(folder)}


@pytest.mark.long
@pytest.mark.slow
def test_a_model_in_a_bucket_is_read_there_by_the_other_commands(shapes, output, tmp_path, capsys):
    assert main(train_flags(shapes, output, "--steps", 2)) == 0
    assert f"model    {output}/model.keras" in capsys.readouterr().out
    near = str(tmp_path / "near")
    storage.copy_folder(output, near)
    picture = tmp_path / "a.jpg"
    picture.write_bytes(encoded(scene(60, 50)))
    here, there = (
        (ims.evaluate(model, shapes, report=f"{output}/evaluated"), ims.predict(model, picture))
        for model in (near, output)
    )
    assert here[0] | {"model": "", "seconds": 0} == there[0] | {"model": "", "seconds": 0}
    assert here[1] == there[1] and storage.exists(f"{output}/evaluated/index.html")
    ims.export(output, f"{output}/served")
    assert _files(f"{output}/served") >= {"saved_model.pb", "variables/variables.index"}
    with refused("output"):
        ims.export(output, f"{output}/served")
    flags = train_flags(shapes, tmp_path / "to", "--dry_run", "--weights", f"{output}/model.keras")
    assert main(flags) == 0
    assert f"weights  {output}/model.keras: " in capsys.readouterr().out


def test_a_run_is_replaced_or_left_alone(output, monkeypatch):
    monkeypatch.setattr(output_folder, "LEASE_ENDS_SEC", 0.0)
    with hold_output(output), pytest.raises(UserError, match="is in use by another job"):
        with hold_output(output):
            raise AssertionError("not reached")
    assert _files(output) == set()
    for name in ("model.keras", "notes.txt", "report/index.html", "report-2/index.html"):
        storage.write(f"{output}/{name}", b"")
    Checkpoints(output, 1).save(_state(4))
    with refused("output", f"'{output}'", "model.keras"):
        check_no_model(output)
    remove_run(output)
    assert _files(output) == {"notes.txt", "report-2/index.html"}


def test_a_bucket_that_cannot_be_used_is_one_sentence(shapes, store, output, capsys):
    missing = "s3://no-such-bucket/run"
    for folder, status, expected in (
        (missing, 0, f"--output received '{missing}', which names a bucket"),
        ("s3:///run", 0, "s3://BUCKET/FOLDER"),
        (output, 403, "cannot be written (access to the obj"),
    ):
        store.fail(status, times=1 if status else 0, method="PUT")
        assert main(train_flags(shapes, folder)) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and expected in said, said


def test_a_lost_store_ends_the_run_with_a_clear_error(store, output, monkeypatch):
    checkpoints = Checkpoints(output, 1)
    checkpoints.save(_state(4))
    store.fail(503, times=2, method="PUT")
    checkpoints.save(_state(5))  # It passed.
    store.fail(403, method="PUT")
    resume = "then run the same command again"
    with refused("output", "step 6", "403", resume):
        checkpoints.save(_state(6))
    assert checkpoints.steps() == [5]
    # Nobody waits for many retries here.
    client: Any = storage.backend(output)
    monkeypatch.setattr(client, "_client", client._hasty_client)
    store.fail("reset", times=1000)
    with refused("output", "step 6", resume):
        checkpoints.save(_state(6))
    store.heal()
    assert checkpoints.steps() == [5]


def test_the_remedy_for_a_failed_read_does_not_delete_the_checkpoint(store, output):
    path = Checkpoints(output, 1).save(_state(4))
    store.fail(403, times=3, matching="step-")
    with refused("output", "403", "run the same command again"):
        Checkpoints(output, 1).load_latest()
    store.heal()
    storage.write(path, b"PK")
    with refused("output", "step-00000004.npz", "delete"):
        Checkpoints(output, 1).load_latest()
