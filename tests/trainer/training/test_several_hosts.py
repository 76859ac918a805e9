"""Several hosts train as one process does: real processes on loopback, killed by real signals."""

import json
import pathlib
import shutil
from typing import Any

import pytest

from tests.support.cluster import run_hosts
from tests.support.commands import run_forked
from tests.support.external_sets import flip_byte
from tests.support.html_page import Page
from tests.support.runs import digest, metrics
from tests.support.store_servers import store_server
from tests.support.trainer_data import make_dataset
from trainer.training.checkpoint import Checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.process]

# Its graph takes half a second of each process: one test has it.
PLAIN = ["--augment", "none"]
MODELS = "tests.support.tiny_models"
PAGE = "report/index.html"


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    counts = {"train": 40, "validation": 13}
    return make_dataset(tmp_path_factory.mktemp("set"), counts, size_px=((24, 24),))


def _flags(data: pathlib.Path, output: object, *more: object) -> list[object]:
    """Of a model that has batch statistics and dropout, and is built in a moment."""
    model = [] if "--model" in more else ["--model", f"{MODELS}:dense"]
    return ["--data", data, "--output", output, "--batch_size", 12, "--seed", 3, *model, *more]


@pytest.fixture(scope="module")
def two_replicas(shapes: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("one")
    ran = run_forked("trainer", *_flags(shapes, output, "--steps", 5, "--replicas", 2))
    assert ran.returncode == 0, ran.stderr
    return output


@pytest.mark.long
def test_two_hosts_train_to_the_bits_of_two_replicas(shapes, tmp_path, two_replicas):
    flags = _flags(shapes, tmp_path / "run", "--steps", 5)
    chief, other = run_hosts(2, *flags, more={1: {"--output": tmp_path / "none"}})
    assert (chief.returncode, other.returncode) == (0, 0), chief.stderr + other.stderr
    assert digest(tmp_path / "run") == digest(two_replicas)
    assert metrics(tmp_path / "run") == metrics(two_replicas)
    assert "2 replicas on CPU of 2 hosts" in chief.stdout and "report" in chief.stdout
    assert other.stdout == "" and not (tmp_path / "none").exists()
    written = {path.name for path in two_replicas.iterdir()}
    assert {path.name for path in (tmp_path / "run").iterdir()} == written
    pages = [Page((run / PAGE).read_text("utf-8")) for run in (tmp_path / "run", two_replicas)]
    found, expected = ([*page.all("td"), *page.all("img")] for page in pages)
    assert found == expected and {"img", "td"} <= {tag for tag, _ in pages[0].tags}


def test_a_run_survives_the_loss_of_either_host(shapes, two_replicas):
    with store_server("s3") as store, store.environment():
        output = store.bucket() + "/run"
        flags = _flags(shapes, output, "--steps", 5, "--checkpoint_steps", 1)
        given: dict[str, Any] = {"environment": store.environ}
        chief, other = run_hosts(2, *flags, killed={1: ("SIGKILL", 2)}, **given)
        assert (chief.returncode, other.returncode) == (1, -9)
        assert "is lost: its process was killed" in chief.stderr
        assert "run the same command on all hosts again" in chief.stderr
        assert "Traceback" not in chief.stderr
        chief, other = run_hosts(2, *flags, killed={0: ("SIGKILL", 3)}, **given)
        assert (chief.returncode, other.returncode) == (-9, 1)
        assert "is lost" in other.stderr and "Traceback" not in other.stderr
        last = Checkpoints(output, 1).steps()[-1]
        assert last in (2, 3)  # That of step 3 may have been on its way.
        ran = run_forked("trainer", *flags, "--replicas", 2, **store.environ)
        assert ran.returncode == 0 and f"resumes after step {last} of 5" in ran.stdout, ran.stderr
        assert digest(output) == digest(two_replicas)
        assert metrics(output) == metrics(two_replicas)


@pytest.mark.long
def test_sigterm_on_one_host_stops_all_at_the_same_step_and_fewer_hosts_resume(shapes, tmp_path):
    # Replicas draw dropout differently, so there is none.
    more = ["--steps", 5, "--model", "tests.support.replica_run:no_dropout", *PLAIN]
    flags = _flags(shapes, tmp_path / "hosts", *more)
    ran = run_hosts(3, *flags, killed={1: ("SIGTERM", 2)})
    assert [one.returncode for one in ran] == [143] * 3, ran[0].stderr
    assert all("SIGTERM: saved; run the same command again" in one.stderr for one in ran)
    # They agree on it after the step in which it came.
    assert Checkpoints(str(tmp_path / "hosts"), 1).steps()[-1] == 2
    ran = run_hosts(2, *flags)
    assert [one.returncode for one in ran] == [0, 0], ran[0].stderr
    assert "resumes after step 2 of 5" in ran[0].stdout
    alone = run_forked("trainer", *_flags(shapes, tmp_path / "one", *more))
    assert alone.returncode == 0, alone.stderr
    found, expected = metrics(tmp_path / "hosts"), metrics(tmp_path / "one")
    assert [r["step"] for r in found] == [r["step"] for r in expected]
    # Sums of three and two shares are rounded otherwise than one sum over the batch.
    for name in ("loss", "val_loss"):
        assert [r[name] for r in found] == pytest.approx([r[name] for r in expected], abs=2e-3)


@pytest.mark.long
def test_hosts_leave_out_broken_records_and_train_a_compiled_model_like_one_host(shapes, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(shapes, broken)
    for split in ("train", "validation"):
        flip_byte(broken / f"{split}-00000-of-00003.tfrecord", 200)
    hosts, one = tmp_path / "hosts", tmp_path / "one"
    more = ["--steps", 3, "--skip_broken", 2, *PLAIN, "--model", f"{MODELS}:contrastive"]
    ran = run_hosts(2, *_flags(broken, hosts, *more))
    ran.append(run_forked("trainer", *_flags(broken, one, *more, "--replicas", 2)))
    assert [each.returncode for each in ran] == [0, 0, 0], ran[0].stderr + ran[2].stderr
    assert (digest(hosts), metrics(hosts)) == (digest(one), metrics(one))
    # Its own figure, of both splits; those of a classifier are there, and empty.
    (found,) = metrics(hosts)
    assert found["distance"] > 0 and found["val_distance"] > 0
    assert found["accuracy"] is found["val_loss"] is None
    listed = (hosts / "broken.json").read_text()
    assert listed == (one / "broken.json").read_text() and len(json.loads(listed)) == 2
    more = ["--steps", 3, "--skip_broken", 0, *PLAIN]
    ran = run_hosts(2, *_flags(broken, tmp_path / "strict", *more))
    assert [one.returncode for one in ran] == [2, 2]
    for one in ran:
        assert "leave broken records out by --skip_broken 1" in one.stderr
        assert "Traceback" not in one.stderr


def test_hosts_that_differ_are_refused_before_the_first_step(shapes, tmp_path):
    flags = _flags(shapes, tmp_path, "--steps", 1, *PLAIN)
    ran = run_hosts(2, *flags, more={1: {"--batch_size": 24}})
    assert [one.returncode for one in ran] == [2, 2]
    for one in ran:
        assert "--batch_size is 24 on localhost:" in one.stderr
        assert "expected the same on all hosts" in one.stderr
    assert not list(tmp_path.iterdir())
