"""Submission to Dataflow and its graph, verified with stand-ins on this machine.

Nothing here runs on Dataflow: jobs are taken by `tests/support/dataflow_stand_in.py`, packages and
graph are staged into the Cloud Storage emulator, and the graph is run from what was staged.
"""

import json
import time
import types
from typing import Any, NamedTuple

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.dataflow import dataflow_runner
from apache_beam.utils import retry
from apache_beam.utils.plugin import BeamPlugin

from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.runners.dataflow import DataflowRunner
from beam_pipeline.runners.runner import job_name
from imageshards import storage
from tests.conftest import REPOSITORY
from tests.support import builds
from tests.support.dataflow_stand_in import PROJECT, REGION, StandIn
from tests.support.errors import refused
from tests.support.portable_servers import run_here
from tests.support.store_servers import store_server

pytestmark = pytest.mark.process

BUILD = ("--image_size", "32", "--num_shards", "train=3,validation=1", "--no_report")


@pytest.fixture(scope="module", autouse=True)
def impatient_client():
    """Beam's client looks at a job every five seconds, and names plugins that other tests made.

    Where there are no credentials, the client looks for them four times, with pauses of seconds.
    """
    plugins = BeamPlugin.get_all_plugin_paths
    quick = types.SimpleNamespace(time=time.time, sleep=lambda sec: time.sleep(min(sec, 0.1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataflow_runner, "time", quick)
        patch.setattr(retry.Clock, "sleep", lambda *given: None)
        ours = [path for path in plugins() if not path.startswith("tests.")]
        patch.setattr(BeamPlugin, "get_all_plugin_paths", lambda: ours)
        yield


@pytest.fixture(scope="module")
def store():
    with store_server("gs") as server, server.environment():
        yield server


@pytest.fixture(scope="module")
def bucket(store, tmp_path_factory):
    images = tmp_path_factory.mktemp("images") / "photos"
    builds.class_folders(images, {"cat": 30, "dog": 20})
    name = store.bucket()
    storage.copy_folder(str(images), f"{name}/photos")
    return name


@pytest.fixture
def service(store, tmp_path):
    with StandIn(tmp_path / "jobs", store.environ) as stand_in:
        yield stand_in


def staged_in(bucket: str) -> list[str]:
    # Beam takes the first for the second at Google's endpoint only.
    return [f"--{flag}_location={bucket}/temp" for flag in ("temp", "staging")]


def flags(bucket: str, output: str) -> list[str]:
    where = ["--input", f"{bucket}/photos", "--output", f"{bucket}/{output}"]
    return [*where, *staged_in(bucket), *BUILD]


class Submitted(NamedTuple):
    said: str
    job: dict[str, Any]
    asked: list[str]
    output: str
    used: dict[str, Any]

    @property
    def has_columns(self) -> bool:
        return "--columns" in self.asked


@pytest.fixture(scope="module", params=["labels", "columns"])
def submitted(store, bucket, request, tmp_path_factory) -> Submitted:
    """The whole way: flags, package, staging, submission, run, commit."""
    jobs, output = tmp_path_factory.mktemp("jobs"), f"{bucket}/sets/{request.param}"
    asked, temp = ["--input", f"{bucket}/photos", *BUILD], []
    if request.param == "columns":
        rows = ["image,label,weight"]
        for at, found in enumerate(storage.files_below(f"{bucket}/photos")):
            label = storage.name_of(storage.parent_of(found.path))
            rows.append(f"{found.path},{label},{at * 0.37:.2f}")
        storage.write(f"{bucket}/photos.csv", "\n".join([*rows, ""]))
        asked = ["--input", f"{bucket}/photos.csv", "--columns", "weight:float:zscore", *BUILD]
        # TensorFlow knows of no emulator: client and worker see a folder of this machine.
        temp = ["--transform_temp_dir", str(jobs / "tft"), "--requirements_cache", "skip"]
        temp += ["--requirements_file", str(REPOSITORY / "deploy/dataflow/requirements.txt")]
    with StandIn(jobs, store.environ) as stand_in:
        where = ["--output", output, *staged_in(bucket)]
        code, said = run_here(*asked, *temp, *where, *stand_in.flags)
        (job,) = stand_in.jobs.values()
    assert code == 0, said
    (used,) = [json.loads(path.read_text()) for path in jobs.rglob("used.json")]
    assert used["package"].startswith(str(jobs))
    assert not list(jobs.glob("tft/*"))
    return Submitted(said, job, asked, output, used)


@pytest.mark.slow
@pytest.mark.long
class TestTheStagedJob:
    def test_gives_the_shards_and_the_transform_of_a_local_run(self, submitted, tmp_path):
        here, there = tmp_path / "here", submitted.output
        assert builds.build(*submitted.asked, "--output", here) == 0
        expected = builds.shard_bytes(here)
        assert len(expected) == 4
        assert {name: storage.read(f"{there}/{name}") for name in expected} == expected
        manifest = json.loads(storage.read(f"{there}/manifest.json"))
        assert manifest["fingerprint"] == builds.manifest(here)["fingerprint"]
        assert ".staging" not in [entry.name for entry in storage.list_folder(there)]
        schema = "transform/transformed_metadata/schema.pbtxt"
        assert storage.read(f"{there}/{schema}") == (here / schema).read_bytes()
        assert (b"weight" in (here / schema).read_bytes()) == submitted.has_columns

    def test_uses_only_the_packages_that_were_staged(self, submitted, bucket):
        staged = submitted.used["staged"]
        assert "workflow.tar.gz" in staged and not submitted.used["keras"]
        # Labels alone need no TensorFlow, and nobody stages its packages.
        assert ("requirements.txt" in staged) == submitted.has_columns
        assert not [name for name in staged if "tensorflow" in name]
        name = submitted.job["name"]
        assert name == job_name(submitted.output)
        url = submitted.job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
        assert url.startswith(f"{bucket}/temp/{name}.")
        files = {storage.name_of(file.path) for file in storage.files_below(f"{bucket}/temp")}
        assert {"pipeline.pb", "workflow.tar.gz"} <= files
        assert "pickled_main_session" not in files
        assert str(REPOSITORY).encode() not in storage.read(url)

    def test_is_a_batch_and_its_flags_were_said(self, submitted):
        assert submitted.job["type"] in (1, "JOB_TYPE_BATCH")
        assert f"--setup_file={REPOSITORY / 'setup.py'}: workers install" in submitted.said


@pytest.fixture
def package(tmp_path):
    path = tmp_path / "imageshards-0.tar.gz"
    path.write_bytes(b"never unpacked")
    return ["--extra_package", str(path)]


class TestASubmission:
    def test_that_fails_ends_with_one_sentence_and_its_page(self, bucket, service, package):
        service.end_jobs("FAILED", "Startup failed: no quota for CPUS")
        code, said = run_here(*flags(bucket, "x"), *service.flags, *package)
        assert code == 2
        assert "ended as FAILED (Startup failed: no quota for CPUS)" in said
        assert f"/jobs/{REGION}/" in said and "Traceback" not in said

    def test_into_a_bucket_that_is_not_there_is_refused(self, bucket, service, package):
        nowhere = [
            one.replace(f"{bucket}/temp", "gs://nowhere-9/temp") for one in flags(bucket, "x")
        ]
        code, said = run_here(*nowhere, *service.flags, *package)
        assert code == 2 and service.jobs == {}
        assert "temp_location " in said and "'gs://nowhere-9/temp'" in said


@pytest.mark.parametrize(
    ("changed", "argument", "word"),
    [
        ({"project": None}, "", "project"),
        ({"temp_location": None}, "", "temp_location"),
        ({"temp_location": "/x"}, "", "/x"),
        ({"s3_secret_access_key": "x"}, "s3_secret_access_key", "a secret"),
        ({"sdk_container_image": None}, "", "workers would have no imageshards"),
        ({"streaming": True}, "streaming", "True"),
        ({"source": "/data"}, "input", "'/data'"),
        ({"output": "/out"}, "output", "'/out'"),
    ],
)
def test_flags_that_dataflow_cannot_use_are_refused_before_submission(
    changed, argument, word, monkeypatch
):
    monkeypatch.setattr(storage, "check_bucket", lambda *given: None)  # of Google's
    given = {"temp_location": "gs://my-bucket/temp", "sdk_container_image": "registry/image"}
    given |= {"project": PROJECT, "region": REGION, "runner": "DataflowRunner"}
    given |= {"source": "gs://photos/raw", "output": "gs://sets/pets"} | changed
    build = BuildOptions(InputOptions(given.pop("source")), given.pop("output"))
    given = {name: value for name, value in given.items() if value is not None}
    runner = DataflowRunner(PipelineOptions.from_dictionary(given), build)
    with refused(argument, word):
        runner.check()
        runner.new_pipeline()
