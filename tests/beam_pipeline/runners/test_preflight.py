"""What is wrong with a remote runner is said before anything is submitted."""

from __future__ import annotations

import shutil

import apache_beam as beam
import pytest

from beam_pipeline.runners import preflight
from beam_pipeline.runners.choice import choose
from beam_pipeline.runners.runner import Build
from imageshards.errors import UserError
from tests.support import portable_servers, tasks

pytestmark = pytest.mark.process

HERE = "--runner PortableRunner --job_endpoint"
EXTERNAL = "--environment_type EXTERNAL --environment_config"
# Flags, and the sentence; servers are named by what they are.
REFUSED = [
    ("--runner PortableRunner", "--job_endpoint is missing; .* make job-service."),
    *((f"{HERE} {address}", f"received '{address}'; expected host:port of a job service")
      for address in ("8073", "localhost:", "localhost:x", "localhost:0")),
    (f"{HERE} NOBODY", "where no job service of Beam's answers .unavailable.; .*make job-service"),
    (f"{HERE} SILENT", "where no job service of Beam's answers .*make job-service"),
    (f"{HERE} POOL", "where no job service of Beam's answers .unimplemented."),
    (f"{HERE} SERVICE {EXTERNAL} x", "--environment_config received 'x'; expected host:port of a"),
    (f"{HERE} SERVICE {EXTERNAL} NOBODY", "where no worker pool of Beam's answers .unavailable"),
    (f"{HERE} SERVICE {EXTERNAL} SILENT", "where no worker pool of Beam's .*make worker-pool"),
    (f"{HERE} SERVICE {EXTERNAL} SERVICE", "where no worker pool of Beam's .*unimplemented"),
    (f"{HERE} SERVICE --environment_type DOCKER", "DOCKER, .* no docker on this host"),
]  # fmt: skip


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with portable_servers.running(tmp_path_factory.mktemp("servers")) as both:
        yield both


@pytest.fixture
def addresses(servers, silent):
    """host:port by the words of `REFUSED`."""
    return {
        "NOBODY": f"localhost:{portable_servers.free_port()}",
        "SILENT": silent,
        "SERVICE": servers.job_service.address,
        "POOL": servers.pool.address,
    }


@pytest.mark.parametrize(("flags", "sentence"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_a_server_that_does_not_answer_is_one_sentence(flags, sentence, addresses, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    if "SILENT" in flags:
        monkeypatch.setattr(preflight, "CONNECT_TIMEOUT_SEC", 0.5)
    given = [addresses.get(word, word) for word in flags.split()]
    with pytest.raises(UserError, match=sentence) as error:
        preflight.check_servers(choose(given).options)
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
    preflight.check_servers(choose(given).options)
    given[-1] = f'{{"url": "{given[-1]}"}}'
    preflight.check_servers(choose(given).options)


def test_a_job_of_the_same_name_keeps_a_second_one_from_starting(servers, tmp_path):
    build = Build((), str(tmp_path / "set"))
    chosen = choose(servers.flags, build)
    chosen.check()
    pipeline = chosen.new_pipeline()
    gate = tmp_path / "gate"
    pipeline | beam.Create([str(gate)]) | beam.Map(tasks.wait_for_file)
    result = pipeline.run()
    try:
        with pytest.raises(UserError, match=r"still runs the job \S+ \(\w+\) for --output '.*set'"):
            chosen.check()
        choose(servers.flags, Build((), str(tmp_path / "other"))).check()
    finally:
        gate.touch()
        result.wait_until_finish()
    chosen.check()
