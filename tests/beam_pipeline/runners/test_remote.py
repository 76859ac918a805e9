"""A job elsewhere: what it needs, its name, how it fails, and how it is cancelled."""

from __future__ import annotations

import apache_beam as beam
import grpc
import pytest

from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.runners import remote
from beam_pipeline.runners.choice import choose
from beam_pipeline.runners.runner import Runner, job_name
from imageshards.errors import UserError
from tests.support import portable_servers, tasks
from tests.support.cluster import free_addresses

pytestmark = pytest.mark.process

BUILD = BuildOptions(InputOptions("in"), "out")


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


def test_an_error_nobody_foresaw_is_one_sentence_and_a_file(monkeypatch, tmp_path):
    text = "bundle failed:\nTraceback (most recent call last):\n  File x\nKeyError: 'q'\n\n"
    error = fails(monkeypatch, tmp_path, RuntimeError(text))
    said = str(error)
    assert "the job failed (KeyError: 'q')" in said and "\n" not in said
    path = tmp_path / ".staging" / remote.FAILURE_NAME
    assert str(path) in said and "Traceback" in path.read_text()


def test_a_job_service_that_went_away_is_one_sentence(monkeypatch, tmp_path):
    error = fails(monkeypatch, tmp_path, grpc.RpcError("socket closed"))
    assert "does not answer any more (socket closed); start it again" in str(error)


def test_what_a_worker_says_to_a_person_is_left_as_it_is(monkeypatch, tmp_path):
    text = "…\nbeam_pipeline.errors.UserError: --quality is wrong. [while running 'Write']\n"
    error = fails(monkeypatch, tmp_path, RuntimeError(text))
    assert type(error) is RuntimeError and str(error) == text
    assert not list(tmp_path.iterdir())


def test_ctrl_c_cancels_the_job_and_waits_for_its_end(monkeypatch, tmp_path, capsys):
    result = Result(KeyboardInterrupt(), running_for=3)
    monkeypatch.setattr(beam.Pipeline, "run", lambda pipeline: result)
    monkeypatch.setattr(remote, "_POLL_SEC", 0.0)
    runner = runner_for(tmp_path)
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
    runner = runner_for(tmp_path, "--job_name=mine")
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


HERE = "--runner PortableRunner --job_endpoint"
EXTERNAL = "--environment_type EXTERNAL --environment_config"
# Flags, and the sentence; servers are named by what they are.
REFUSED = [
    ("--runner PortableRunner", "--job_endpoint is missing; .* make job-service."),
    *((f"{HERE} {address}", f"received '{address}'; expected host:port of a job service")
      for address in ("8073", "localhost:x", "localhost:0")),
    (f"{HERE} NOBODY", "where no job service of Beam's answers .unavailable.; .*make job-service"),
    (f"{HERE} SILENT", "where no job service of Beam's answers .*make job-service"),
    (f"{HERE} POOL", "where no job service of Beam's answers .unimplemented."),
    (f"{HERE} SERVICE {EXTERNAL} x", "--environment_config received 'x'; expected host:port of a"),
    (f"{HERE} SERVICE {EXTERNAL} NOBODY", "no worker pool .*unavailable.; .*make worker-pool"),
    (f"{HERE} SERVICE {EXTERNAL} SERVICE", "where no worker pool of Beam's .*unimplemented"),
]  # fmt: skip


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with portable_servers.running(tmp_path_factory.mktemp("servers")) as both:
        yield both


@pytest.fixture
def addresses(servers, silent):
    """host:port by the words of `REFUSED`."""
    return {
        "NOBODY": free_addresses(1)[0],
        "SILENT": silent,
        "SERVICE": servers.job_service.address,
        "POOL": servers.pool.address,
    }


@pytest.mark.parametrize(("flags", "sentence"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_a_server_that_does_not_answer_is_one_sentence(flags, sentence, addresses, monkeypatch):
    if "SILENT" in flags:
        monkeypatch.setattr(remote, "CONNECT_TIMEOUT_SEC", 0.5)
    given = [addresses.get(word, word) for word in flags.split()]
    with pytest.raises(UserError, match=sentence) as error:
        remote.check_servers(choose(given, BUILD).options)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize(
    "flags",
    [
        f"{HERE} SERVICE {EXTERNAL} POOL",
        # A pool of another host is left to its runner.
        f"{HERE} SERVICE {EXTERNAL} worker.invalid:50000",
        f"--runner FlinkRunner --flink_master [local] {EXTERNAL} worker.invalid:50000",
    ],
)
def test_servers_that_answer_or_cannot_be_asked_are_no_mistake(flags, addresses):
    given = [addresses.get(word, word) for word in flags.split()]
    remote.check_servers(choose(given, BUILD).options)


def test_a_job_of_the_same_name_keeps_a_second_one_from_starting(servers, tmp_path):
    build = BuildOptions(InputOptions("in"), str(tmp_path / "set"))
    chosen = choose(servers.flags, build)
    chosen.check()
    pipeline = chosen.new_pipeline()
    gate = tmp_path / "gate"
    pipeline | beam.Create([str(gate)]) | beam.Map(tasks.wait_for_file)
    result = pipeline.run()
    try:
        with pytest.raises(UserError, match=r"still runs the job \S+ \(\w+\) for --output '.*set'"):
            chosen.check()
        choose(servers.flags, BuildOptions(InputOptions("in"), str(tmp_path / "other"))).check()
    finally:
        gate.touch()
        result.wait_until_finish()
    chosen.check()
