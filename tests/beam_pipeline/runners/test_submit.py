"""A job elsewhere: what is shown of it, how it fails, and when it is given up."""

from __future__ import annotations

import re
import sys
import threading

import apache_beam as beam
import grpc
import pytest

from beam_pipeline import cancel, runners
from beam_pipeline.commit import staging as staging_folder
from beam_pipeline.runners import jobs, preflight, submit
from beam_pipeline.runners.jobs import RemoteJob, RemoteProgress
from imageshards.errors import UserError, last_line
from tests.support.builds import build, class_folders
from tests.support.portable_servers import free_port

pytestmark = pytest.mark.process

JOB = RemoteJob("localhost:1", "job-003", "imageshards-abc")


class Result:
    """What Beam gives for a job that was submitted; it ends when it is told to."""

    def __init__(self, error: Exception | None = None, stubborn: bool = False):
        self.ended = threading.Event()
        self.cancelled = False
        self._error = error
        self._stubborn = stubborn
        if error is not None:
            self.ended.set()

    def wait_until_finish(self) -> None:
        self.ended.wait(60)
        if self._error is not None or self.cancelled:
            raise self._error or RuntimeError("Pipeline job-003 failed in state CANCELLED")

    def cancel(self) -> None:
        self.cancelled = True
        if not self._stubborn:
            self.ended.set()


@pytest.fixture(autouse=True)
def no_servers(monkeypatch):
    """Jobs are given to nobody here."""
    monkeypatch.setattr(preflight, "check_servers", lambda options: None)


def flags_chosen(staging: object, *flags: str) -> runners.Runner:
    build = runners.Build(("in",), "out", str(staging))
    return runners.choose(["--runner", "PortableRunner", *flags], build)


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
    path = tmp_path / submit.FAILURE_NAME
    assert str(path) in said
    assert "Traceback" in path.read_text()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("bundle failed:\nTraceback …\nKeyError: 'q'\n\n", "KeyError: 'q'"),
        (
            "pipeline panicked: nil map\nStacktrace:\ngoroutine 7:\nx.go:3",
            "pipeline panicked: nil map",
        ),
        (" \n", "no reason given"),
        ("x" * 999, "x" * 300),
    ],
)
def test_the_line_that_says_what_happened(text, line):
    assert last_line(text) == line


def test_what_a_worker_says_to_a_person_is_left_as_it_is(monkeypatch, tmp_path):
    text = "…\nbeam_pipeline.errors.UserError: --quality is wrong. [while running 'Write']\n"
    error = fails(monkeypatch, tmp_path, RuntimeError(text))
    assert type(error) is RuntimeError and str(error) == text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("SDK worker disconnected: worker[job-001_env], 1 active instructions", True),
        ("Channel closed prematurely.", True),
        ("SDK worker 3 exited with code -9", True),
        ("panic in stage.Execute bundle: send on closed channel\n\ngoroutine 1:\nf.go:3", True),
        ("KeyError: 'worker'", False),
    ],
)
def test_a_lost_worker_is_told_from_a_failure(monkeypatch, tmp_path, text, lost):
    error = fails(monkeypatch, tmp_path, RuntimeError(text))
    assert isinstance(error, UserError) != lost


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
    submit._hook(threading.ExceptHookArgs((type(error), error, None, thread)), shown.append)
    assert bool(shown) == is_shown


def test_the_runner_and_the_name_stay_in_the_options_for_the_next_run(monkeypatch, tmp_path):
    runner = flags_chosen(tmp_path, "--job_name", "mine")
    seen = []

    def run(pipeline):
        seen.append(pipeline.options.get_all_options()["job_name"])
        pipeline.options.view_as(beam.options.pipeline_options.StandardOptions).runner = None
        return Result(RuntimeError("SDK worker disconnected"))

    monkeypatch.setattr(beam.Pipeline, "run", run)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            runner.run(runner.new_pipeline())
    assert seen == ["mine", "mine"]
    options = runner.options.get_all_options()
    assert (options["runner"], options["job_name"]) == ("PortableRunner", "mine")


def test_a_job_that_is_interrupted_while_it_is_given_away_is_cancelled(monkeypatch, tmp_path):
    """Its id is not known yet, but its name is."""
    runner = flags_chosen(tmp_path, "--job_endpoint", "localhost:1", "--job_name", "mine")
    cancelled = []

    def run(pipeline):
        raise KeyboardInterrupt

    monkeypatch.setattr(beam.Pipeline, "run", run)
    monkeypatch.setattr(jobs, "cancel_named", lambda *job: cancelled.append(job))
    with pytest.raises(KeyboardInterrupt):
        runner.run(runner.new_pipeline())
    assert cancelled == [("localhost:1", "mine")]


def test_a_dry_run_is_no_run(monkeypatch, tmp_path):
    monkeypatch.setattr(beam.Pipeline, "run", lambda pipeline: None)
    runner = flags_chosen(tmp_path, "--dry_run=True")
    assert not runner.run(runner.new_pipeline())


def test_a_job_service_that_fell_silent_is_given_up(monkeypatch, silent):
    monkeypatch.setattr(submit, "_ASK_SEC", 0.1)
    monkeypatch.setattr(submit, "SILENCE_SEC", 0.2)
    monkeypatch.setattr(jobs, "CALL_TIMEOUT_SEC", 0.1)
    result = Result()
    running = submit.Running(result, RemoteJob(silent, "job-1", "x"), "")
    with pytest.raises(UserError, match=f"job service at {silent} has not answered"):
        running.wait(lambda sentence: None)
    assert result.cancelled


def test_a_pool_that_is_gone_ends_the_job(monkeypatch):
    monkeypatch.setattr(submit, "_ASK_SEC", 0.1)
    address = f"localhost:{free_port()}"
    result = Result()
    with pytest.raises(UserError, match=f"worker pool at {address} is gone"):
        submit.Running(result, None, address).wait(lambda sentence: None)
    assert result.cancelled


def test_a_job_that_does_not_end_when_it_is_cancelled_is_told_of(monkeypatch):
    monkeypatch.setattr(submit, "CANCEL_TIMEOUT_SEC", 0.2)
    said: list[str] = []
    result = Result(stubborn=True)
    with pytest.raises(TimeoutError):
        submit.Running(result, None, "").wait(said.append, timeout_sec=0.1)
    result.ended.set()
    assert said[0].startswith("cancelling") and "may still write" in said[1]


def test_a_job_that_is_done_while_it_is_cancelled_is_done():
    class Quick(Result):
        def cancel(self) -> None:
            self.ended.set()

    submit.Running(Quick(), None, "").wait(lambda sentence: None, timeout_sec=0.0)


COUNTERS = {
    ("plan", "images"): 1000,
    ("write", "images"): 300,
    ("write", "reused"): 100,
    ("write", "bytes_read"): 6_000_000,
    ("write", "rejects"): 2,
}


def test_progress_comes_from_metrics(monkeypatch, tmp_path):
    monkeypatch.setattr(jobs, "_PROGRESS_SEC", 0.0)
    counters: dict = {}
    progress = RemoteProgress(str(tmp_path), lambda: counters)
    assert progress.line() == ""
    counters.update(COUNTERS)
    assert progress.line().startswith("400/1,000 images  2 rejects")
    counters["write", "images"] += 100
    line = progress.line()
    assert line.startswith("500/1,000 images  ") and " images/s" in line and "ETA" in line


def test_progress_comes_from_finished_shards_where_a_runner_has_no_metrics(monkeypatch, tmp_path):
    monkeypatch.setattr(jobs, "_PROGRESS_SEC", 0.0)
    progress = RemoteProgress(str(tmp_path), dict)
    assert progress.line() == ""
    for name in ("train-00000-of-00012", "train-00007-of-00012", "validation-00001-of-00002"):
        (tmp_path / f"{name}.json").write_text("{}")
    (tmp_path / "job.json").write_text("{}")
    assert progress.line() == "3/14 shards"


def test_a_runner_is_not_asked_more_often_than_needed(tmp_path):
    calls = []

    def counters() -> dict:
        calls.append(1)
        return {}

    progress = RemoteProgress(str(tmp_path), counters)
    for _ in range(5):
        progress.line()
    assert len(calls) == 1


@pytest.mark.parametrize("state", ["STARTING", "RUNNING", "CANCELLING"])
def test_a_job_that_still_writes_is_not_disturbed(tmp_path, state):
    jobs.note(str(tmp_path), JOB)
    with pytest.raises(UserError, match=f"'OUT' .* job job-003 at localhost:1, which is {state}"):
        jobs.refuse_running("OUT", str(tmp_path), lambda job: state)


@pytest.mark.parametrize("state", ["DONE", "FAILED", "CANCELLED", None])
def test_a_job_that_has_ended_is_none(tmp_path, state):
    jobs.refuse_running("OUT", str(tmp_path), lambda job: state)
    jobs.note(str(tmp_path), JOB)
    assert jobs.noted(str(tmp_path)) == JOB
    jobs.refuse_running("OUT", str(tmp_path), lambda job: state)


@pytest.mark.parametrize("endpoint", ["silent", "nowhere.invalid:1", "no address"])
def test_a_job_that_cannot_be_asked_for_keeps_a_second_one_from_starting(
    tmp_path, silent, monkeypatch, endpoint, capsys
):
    monkeypatch.setattr(jobs, "CALL_TIMEOUT_SEC", 0.3)
    endpoint = silent if endpoint == "silent" else endpoint
    staging = str(tmp_path / ".staging")
    jobs.note(staging, RemoteJob(endpoint, "job-1", "x"))
    with pytest.raises(UserError, match=f"job-1 at {endpoint}, .* could not be found out .*--forg"):
        jobs.refuse_running(str(tmp_path), staging)
    assert cancel.main(["--forget", str(tmp_path)]) == 0
    assert "job" in capsys.readouterr().out
    jobs.refuse_running(str(tmp_path), staging)


def test_a_note_that_cannot_be_read_keeps_a_second_job_from_starting(tmp_path):
    staging_folder.add_job_notes(str(tmp_path / ".staging"), remote_job={"id": 7})
    with pytest.raises(UserError, match=r"whose note \{'id': 7\} is another release's; .*--forget"):
        jobs.refuse_running(str(tmp_path), str(tmp_path / ".staging"))


def test_a_look_for_a_running_job_that_breaks_down_keeps_a_second_one_from_starting(
    tmp_path, monkeypatch, capsys
):
    """It is made by a process, which may end in any way."""
    photos = class_folders(tmp_path / "in", {"cat": 4, "dog": 4})
    staging = tmp_path / "out" / ".staging"
    jobs.note(str(staging), RemoteJob("localhost:1", "job-1", "x"))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    before = sorted(staging.iterdir())
    assert build("--input", photos, "--output", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "could not be found out (exit code 1); fix that" in said and "--forget" in said
    assert sorted(path for path in staging.iterdir() if path.name != "lock") == before


def test_a_job_service_that_is_gone_has_no_job(tmp_path):
    jobs.note(str(tmp_path), RemoteJob(f"localhost:{free_port()}", "job-1", "x"))
    jobs.refuse_running("OUT", str(tmp_path))


def test_cancelling_where_there_is_no_job(tmp_path, capsys):
    assert cancel.main([str(tmp_path)]) == 0
    assert "no job of a job service writes to" in capsys.readouterr().out


def test_cancelling_at_a_job_service_that_is_gone(tmp_path, capsys):
    endpoint = f"localhost:{free_port()}"
    jobs.note(str(tmp_path / ".staging"), RemoteJob(endpoint, "job-1", "x"))
    assert cancel.main([str(tmp_path)]) == 2
    assert re.search(f"job service at {endpoint} does not answer", capsys.readouterr().err)


@pytest.mark.slow
def test_a_plan_is_made_here_whatever_the_runner(tmp_path, capfd):
    photos = class_folders(tmp_path / "in", {"cat": 12, "dog": 12})
    flags = ["--runner", "PortableRunner", "--job_endpoint", f"localhost:{free_port()}"]
    output = tmp_path / "out"
    assert build("--input", photos, "--output", output, "--plan_only", *flags) == 0
    assert "nothing was written" in capfd.readouterr().out
    assert not output.exists()
