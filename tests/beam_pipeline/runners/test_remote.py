"""A job elsewhere: its name, how it fails, and how it is cancelled."""

from __future__ import annotations

import threading

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import StandardOptions
from apache_beam.runners.portability import portable_runner

from beam_pipeline.runners import remote
from beam_pipeline.runners.choice import choose
from beam_pipeline.runners.runner import Build, Runner, job_name
from imageshards.errors import UserError

pytestmark = pytest.mark.process


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


def flags_chosen(staging: object, *flags: str) -> Runner:
    build = Build(("in",), "out", str(staging))
    return choose(["--runner", "PortableRunner", *flags], build)


def fails(monkeypatch, tmp_path, error: Exception) -> BaseException:
    """What `run` makes of a job that ends with an error."""
    monkeypatch.setattr(beam.Pipeline, "run", lambda pipeline: Result(error))
    runner = flags_chosen(tmp_path)
    with pytest.raises((UserError, RuntimeError)) as caught:
        runner.run(runner.new_pipeline())
    return caught.value


def test_an_error_nobody_foresaw_is_one_sentence_and_a_file(monkeypatch, tmp_path):
    text = "bundle failed:\nTraceback (most recent call last):\n  File x\nKeyError: 'q'\n\n"
    error = fails(monkeypatch, tmp_path, RuntimeError(text))
    assert isinstance(error, UserError)
    said = str(error)
    assert "the job failed (KeyError: 'q')" in said and "\n" not in said
    path = tmp_path / remote.FAILURE_NAME
    assert str(path) in said
    assert "Traceback" in path.read_text()


def test_what_a_worker_says_to_a_person_is_left_as_it_is(monkeypatch, tmp_path):
    text = "…\nbeam_pipeline.errors.UserError: --quality is wrong. [while running 'Write']\n"
    error = fails(monkeypatch, tmp_path, RuntimeError(text))
    assert type(error) is RuntimeError and str(error) == text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "error", "is_shown"),
    [
        ("wait_until_finish_read", grpc.RpcError(), False),
        ("read_grpc_client_inputs", grpc.RpcError(), False),
        ("run_worker_7-1", grpc.RpcError(), False),
        ("run_worker_7-1", ValueError(), True),
        ("another", grpc.RpcError(), True),
    ],
)
def test_threads_of_beam_that_lost_their_server_say_nothing(name, error, is_shown):
    shown: list[object] = []
    thread = threading.Thread(name=name)
    remote._hook(threading.ExceptHookArgs((type(error), error, None, thread)), shown.append)
    assert bool(shown) == is_shown


def test_the_runner_and_the_name_stay_in_the_options_for_the_next_run(monkeypatch, tmp_path):
    runner = flags_chosen(tmp_path, "--job_name", "mine")
    seen = []

    def run(pipeline):
        assert isinstance(pipeline.runner, portable_runner.PortableRunner)
        seen.append(pipeline.options.get_all_options()["job_name"])
        pipeline.options.view_as(StandardOptions).runner = None
        return Result(RuntimeError("UserError: it is asked twice."))

    monkeypatch.setattr(beam.Pipeline, "run", run)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            runner.run(runner.new_pipeline())
    assert seen == ["mine", "mine"]


def test_ctrl_c_cancels_the_job_and_waits_for_its_end(monkeypatch, tmp_path, capsys):
    result = Result(KeyboardInterrupt(), running_for=3)
    monkeypatch.setattr(beam.Pipeline, "run", lambda pipeline: result)
    monkeypatch.setattr(remote, "_POLL_SEC", 0.0)
    runner = flags_chosen(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        runner.run(runner.new_pipeline())
    assert result.states == ["RUNNING"] * 3 + ["CANCELLED"]
    said = capsys.readouterr().err
    assert "cancelling the job" in said and "may still write" not in said


@pytest.mark.parametrize("mishap", ["it goes on", "its service is gone"])
def test_a_job_that_cannot_be_cancelled_may_still_write(mishap, monkeypatch, tmp_path, capsys):
    result = Result(KeyboardInterrupt(), running_for=10**9)
    if mishap == "its service is gone":
        monkeypatch.setattr(result, "cancel", lambda: (_ for _ in ()).throw(grpc.RpcError("gone")))
    monkeypatch.setattr(beam.Pipeline, "run", lambda pipeline: result)
    monkeypatch.setattr(remote, "_POLL_SEC", 0.0)
    monkeypatch.setattr(remote, "CANCEL_TIMEOUT_SEC", 0.0)
    runner = flags_chosen(tmp_path, "--job_name=mine")
    with pytest.raises(KeyboardInterrupt):
        runner.run(runner.new_pipeline())
    assert "the job mine may still write to the output: " in capsys.readouterr().err


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
