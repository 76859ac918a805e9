"""What is known of a Flink cluster before a job is submitted, and its job there."""

from __future__ import annotations

import contextlib

import apache_beam as beam
import pytest

from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.runners import flink, flink_rest, remote
from beam_pipeline.runners.choice import choose
from beam_pipeline.runners.runner import job_name
from imageshards.errors import UserError
from tests.support.flink_stand_in import Jobs, flags, overview, serving

pytestmark = pytest.mark.process

OUTPUT = "gs://bucket/shards"
NAME = job_name(OUTPUT)


@pytest.fixture(autouse=True)
def no_servers(monkeypatch):
    """What a job service and a pool answer is looked at elsewhere."""
    monkeypatch.setattr(remote, "check_servers", lambda options: None)
    monkeypatch.setattr(remote, "refuse_second", lambda options, output: None)


def runner(*given: str) -> flink.FlinkRunner:
    """A runner for a build; what it needs is not looked at yet."""
    chosen = choose(given, BuildOptions(InputOptions("in"), OUTPUT))
    assert isinstance(chosen, flink.FlinkRunner)
    return chosen


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ({"/overview": b"<html>"}, "Expecting value"),
        ({"/overview": b'{"version": 1}'}, "the reply is not Flink's"),
        ({"/": b"{}"}, "404"),
        ({"/overview": None}, "timed out"),
        (None, "Connection refused"),
    ],
    ids=["page", "json", "absent", "silent", "nobody"],
)
def test_what_is_no_flink_is_one_sentence(replies, words, monkeypatch):
    if replies == {"/overview": None}:
        monkeypatch.setattr(flink_rest, "REST_TIMEOUT_SEC", 0.3)
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(serving(replies or {}))
        if replies is None:
            stack.close()  # its port is free again
        with pytest.raises(
            flink_rest.NoFlinkError, match="--flink_master received .*JobManager"
        ) as e:
            runner("--runner=FlinkRunner", f"--flink_master={master}")
    assert words in str(e.value) and repr(master) in str(e.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--flink_version=2.0", r"--flink_version received 2.0, .* runs Flink 2.2"),
        ("--job_server_java_launcher=/no/java", r"'/no/java', which is not here; .*Java 11 or"),
    ],
    ids=["version", "java"],
)
def test_what_a_job_needs_is_asked_for_before_it_is_submitted(given, words):
    with serving(Jobs().replies) as master:
        with pytest.raises(UserError, match=words):
            runner(*flags(master), given).check()
        # With a job server of its own nothing of that is looked for.
        runner(*flags(master), given, "--job_endpoint=localhost:1").check()


def test_a_second_job_for_one_output_is_refused_and_another_output_is_not():
    jobs = Jobs(abc=NAME, other="another job")
    with serving(jobs.replies) as master:
        chosen = runner(*flags(master))
        with pytest.raises(UserError, match=r"still runs the job abc for --output 'gs://bucket"):
            chosen.check()
        jobs.states["abc"] = "FAILED"
        chosen.check()
        assert chosen.options.get_all_options()["job_name"] == NAME
    assert jobs.cancelled == []


def test_a_cluster_that_does_not_list_its_jobs_keeps_a_second_one_from_starting():
    with serving({"/overview": overview()}) as master:
        with pytest.raises(UserError, match="no Flink answers .*404"):
            runner(*flags(master)).check()


def test_a_job_that_is_left_is_cancelled_at_the_cluster_and_no_other(monkeypatch):
    jobs = Jobs(abc=NAME, other="another job")

    def run(pipeline):
        raise KeyboardInterrupt

    monkeypatch.setattr(beam.Pipeline, "run", run)
    with serving(jobs.replies) as master:
        chosen = runner(*flags(master))
        with pytest.raises(KeyboardInterrupt):
            chosen.run(chosen.new_pipeline())
    assert jobs.cancelled == ["abc"]


def test_a_job_that_does_not_end_is_one_sentence(monkeypatch):
    monkeypatch.setattr(flink_rest, "CANCEL_TIMEOUT_SEC", 0.3)
    jobs = Jobs(abc=NAME)
    replies = jobs.replies | {"PATCH /jobs/abc?mode=cancel": b"{}"}
    with serving(replies) as master, pytest.raises(UserError, match=r"abc at .* still runs after"):
        flink_rest.cancel_jobs(master, NAME)
