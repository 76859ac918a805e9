"""A job elsewhere: what it needs, its name, how it fails, and how it is cancelled."""

from __future__ import annotations

import apache_beam as beam
import grpc
import pytest

from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.runners import runner as runner_module
from beam_pipeline.runners.choice import choose
from beam_pipeline.runners.runner import Runner, job_name
from imageshards.errors import UserError
from tests.support import builds, portable_builds
from tests.support.cluster import free_addresses

pytestmark = pytest.mark.process

BUILD = BuildOptions(InputOptions("in"), "out")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("photos") / "in"
    builds.class_folders(folder, {"cat": 2, "dog": 2})
    return str(folder)


class Result:
    """What Beam gives for a job that was submitted."""

    def __init__(self, error: BaseException, running_for: int = 0):
        self.states: list[str] = []
        self._error = error
        self._running_for = running_for

    def wait_until_finish(self) -> None:
        raise self._error

    def cancel(self) -> None:
        pass

    @property
    def state(self) -> str:
        is_over = len(self.states) >= self._running_for
        self.states.append("CANCELLED" if is_over else "RUNNING")
        return self.states[-1]


def runner_for(output: object, *flags: str) -> Runner:
    build = BuildOptions(InputOptions("in"), str(output))
    return choose(["--runner", "PortableRunner", *flags], build)


def fails(monkeypatch, tmp_path, error: Exception) -> BaseException:
    """What `run` makes of a job that ends with an error."""
    monkeypatch.setattr(beam.Pipeline, "run", lambda pipeline: Result(error))
    runner = runner_for(tmp_path)
    with pytest.raises((UserError, RuntimeError)) as caught:
        runner.run(runner.new_pipeline())
    return caught.value


def test_an_unexpected_error_becomes_one_sentence(monkeypatch, tmp_path):
    text = "bundle failed:\nTraceback (most recent call last):\n  File x\nKeyError: 'q'\n\n"
    error = fails(monkeypatch, tmp_path, RuntimeError(text))
    assert "the job failed (KeyError: 'q')" in str(error) and "\n" not in str(error)
    assert not list(tmp_path.iterdir())


def test_a_job_service_that_went_away_is_named_in_one_sentence(monkeypatch, tmp_path):
    error = fails(monkeypatch, tmp_path, grpc.RpcError("socket closed"))
    assert "no job service answers there (socket closed)" in str(error)


def test_the_sentence_of_a_worker_is_passed_on(monkeypatch, tmp_path):
    text = "…\nbeam_pipeline.errors.UserError: --quality is wrong. [while running 'Write']\n"
    error = fails(monkeypatch, tmp_path, RuntimeError(text))
    assert type(error) is RuntimeError and str(error) == text
    assert not list(tmp_path.iterdir())


def test_ctrl_c_cancels_the_job_and_waits_for_its_end(monkeypatch, tmp_path, capsys):
    result = Result(KeyboardInterrupt(), running_for=3)
    monkeypatch.setattr(beam.Pipeline, "run", lambda pipeline: result)
    monkeypatch.setattr(runner_module, "_POLL_SEC", 0.0)
    runner = runner_for(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        runner.run(runner.new_pipeline())
    assert result.states == ["RUNNING"] * 3 + ["CANCELLED"]
    said = capsys.readouterr().err
    assert "cancelling the job" in said and "may still run" not in said


@pytest.mark.parametrize("mishap", ["it goes on", "its service is gone"])
def test_a_job_that_cannot_be_cancelled_may_still_run(mishap, monkeypatch, tmp_path, capsys):
    result = Result(KeyboardInterrupt(), running_for=10**9)
    if mishap == "its service is gone":
        monkeypatch.setattr(result, "cancel", lambda: (_ for _ in ()).throw(grpc.RpcError("gone")))
    monkeypatch.setattr(beam.Pipeline, "run", lambda pipeline: result)
    monkeypatch.setattr(runner_module, "_POLL_SEC", 0.0)
    monkeypatch.setattr(runner_module, "CANCEL_TIMEOUT_SEC", 0.0)
    runner = runner_for(tmp_path, "--job_name=mine")
    with pytest.raises(KeyboardInterrupt):
        runner.run(runner.new_pipeline())
    assert "the job mine may still run (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "stem"),
    [
        ("gs://bucket/My Shards/", "my-shards"),
        ("s3://bucket", "bucket"),
        ("/data/ims.2026", "ims-2026"),
        ("/data/写真", "build"),
        ("gs://b/" + "long" * 40, "long" * 7 + "lo"),
    ],
)
def test_a_job_is_named_after_its_output(output, stem, tmp_path, monkeypatch):
    name = job_name(output)
    assert name.startswith(f"imageshards-{stem}-")
    assert name == job_name(output.rstrip("/")) != job_name(output.rstrip("/") + "2")
    monkeypatch.chdir(tmp_path)  # a folder has one name however it is written
    assert job_name("out") == job_name(f"{tmp_path}/x/../out/")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("", "You must specify a --job_endpoint"),
        ("--job_endpoint NOBODY --job_server_timeout 1", "no job service answers there"),
        ("--job_endpoint SILENT --job_server_timeout 1", "no job service answers there"),
    ],
)
def test_a_missing_job_service_is_one_sentence_and_nothing_is_left(
    flags, sentence, silent, tmp_path, photos
):
    addresses = {"NOBODY": free_addresses(1)[0], "SILENT": silent}
    given = [addresses.get(word, word) for word in flags.split()]
    output = tmp_path / "set"
    code, said = portable_builds.run_here(
        "--input", photos, "--output", str(output), "--runner", "PortableRunner", *given
    )
    assert code == 2 and sentence in said, said
    assert "Traceback" not in said and not output.exists()
