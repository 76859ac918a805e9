"""Submission to Dataflow and its graph, verified with stand-ins on this machine.

Nothing here runs on Dataflow: jobs are taken by `tests/support/dataflow_stand_in.py`, packages and
graph are staged into the Cloud Storage emulator, and the graph is run from what was staged.
"""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import sys
import time
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.dataflow import dataflow_runner
from apache_beam.utils.plugin import BeamPlugin

from beam_pipeline.__main__ import main
from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.runners.dataflow import DataflowRunner
from beam_pipeline.runners.runner import job_name
from imageshards import storage
from imageshards.errors import UserError
from tests.conftest import REPOSITORY
from tests.support import builds
from tests.support.dataflow_stand_in import PROJECT, REGION, StandIn
from tests.support.errors import refused
from tests.support.store_servers import StoreServer, store_server

pytestmark = pytest.mark.process

BUILD = ("--image_size", "32", "--num_shards", "train=3,validation=1", "--no_report")
REAL = ("--runner", "DataflowRunner", "--project", PROJECT, "--region", REGION)


def run(*arguments: str) -> tuple[int, str]:
    """Exit code of a build in this process, and what it said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = main(list(arguments))
    return code, said.getvalue()


@pytest.fixture(scope="module", autouse=True)
def impatient_client() -> Iterator[None]:
    """Beam's client looks at a job every five seconds, and names plugins that other tests made."""
    plugins = BeamPlugin.get_all_plugin_paths
    quick = types.SimpleNamespace(time=time.time, sleep=lambda sec: time.sleep(min(sec, 0.1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataflow_runner, "time", quick)
        ours = [path for path in plugins() if not path.startswith("tests.")]
        patch.setattr(BeamPlugin, "get_all_plugin_paths", lambda: ours)
        yield


@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    with store_server("gs") as server, server.environment():
        yield server


@pytest.fixture(scope="module")
def bucket(store: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bucket with pictures in `photos`."""
    images = tmp_path_factory.mktemp("images") / "photos"
    builds.class_folders(images, {"cat": 30, "dog": 20})
    name = store.bucket()
    storage.copy_folder(str(images), f"{name}/photos")
    return name


@pytest.fixture
def service(store: StoreServer, tmp_path: pathlib.Path) -> Iterator[StandIn]:
    with StandIn(tmp_path / "jobs", store.environ) as stand_in:
        yield stand_in


def flags(bucket: str, output: str) -> list[str]:
    """A build of the pictures in a bucket."""
    where = ["--input", f"{bucket}/photos", "--output", f"{bucket}/{output}"]
    # Beam takes the first for the second at Google's endpoint only.
    return [*where, *(f"--{flag}_location={bucket}/temp" for flag in ("temp", "staging")), *BUILD]


class Submitted(NamedTuple):
    """A job that was submitted and run."""

    code: int
    said: str
    job: dict[str, Any]
    bucket: str
    jobs: pathlib.Path

    @property
    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = self.job["environment"]["sdkPipelineOptions"]["options"]
        return found


@pytest.fixture(scope="module")
def submitted(store, bucket, tmp_path_factory) -> Submitted:
    """The whole way: flags, package, staging, submission, run, commit."""
    jobs = tmp_path_factory.mktemp("jobs")
    with StandIn(jobs, store.environ) as stand_in:
        code, said = run(*flags(bucket, "sets/pets"), *stand_in.flags)
        (job,) = stand_in.jobs.values()
    return Submitted(code, said, job, bucket, jobs)


@pytest.mark.slow
class TestTheStagedJob:
    def test_gives_the_shards_and_the_manifest_of_a_local_run(self, submitted, tmp_path):
        assert submitted.code == 0, submitted.said
        bucket = submitted.bucket
        assert (
            builds.build("--input", f"{bucket}/photos", "--output", tmp_path / "here", *BUILD) == 0
        )
        expected = builds.shard_bytes(tmp_path / "here")
        found = {name: storage.read(f"{bucket}/sets/pets/{name}") for name in expected}
        assert len(found) == 4
        assert found == expected
        names = [entry.name for entry in storage.list_folder(f"{bucket}/sets/pets")]
        assert "manifest.json" in names and ".staging" not in names
        found_there = json.loads(storage.read(f"{bucket}/sets/pets/manifest.json"))
        found_here = builds.manifest(tmp_path / "here")
        for each in (found_there, found_here):  # croissant.json holds the name of the folder
            del each["files"]["croissant.json"], each["digest"]
        assert found_there == found_here

    def test_ran_from_what_was_staged_for_it_alone(self, submitted):
        (used,) = [json.loads(path.read_text()) for path in submitted.jobs.rglob("used.json")]
        assert "workflow.tar.gz" in used["staged"]
        assert "requirements.txt" not in used["staged"], "labels alone need no TensorFlow"
        assert used["package"].startswith(str(submitted.jobs))
        assert not used["keras"]
        name = submitted.job["name"]
        assert name == job_name(f"{submitted.bucket}/sets/pets")
        prefix = f"{submitted.bucket}/temp/{name}."
        assert submitted.options["pipelineUrl"].startswith(prefix)
        files = storage.files_below(prefix.rpartition("/")[0])
        staged = {storage.name_of(file.path) for file in files}
        assert {"pipeline.pb", "workflow.tar.gz"} <= staged
        assert "pickled_main_session" not in staged
        graph = storage.read(submitted.options["pipelineUrl"])
        assert str(REPOSITORY).encode() not in graph

    def test_is_a_batch_of_one_process_per_core_and_its_flags_were_said(self, submitted):
        assert submitted.job["type"] in (1, "JOB_TYPE_BATCH")
        (pool,) = submitted.job["environment"]["workerPools"]
        (image,) = pool["sdkHarnessContainerImages"]
        assert image["useSingleCorePerContainer"]
        assert f"python{sys.version_info[0]}.{sys.version_info[1]}" in image["containerImage"]
        assert f"--setup_file={REPOSITORY / 'setup.py'}: workers install" in submitted.said


@pytest.mark.long
@pytest.mark.slow
def test_a_staged_job_with_extra_columns_gives_the_shards_and_the_transform_of_a_local_run(
    bucket, service, tmp_path
):
    """tensorflow-transform analyses them in the job, from an image table in the bucket.

    Its files are in a folder that client and worker see: TensorFlow knows of no emulator.
    """
    table = ["image,label,weight"]
    for at, found in enumerate(storage.files_below(f"{bucket}/photos")):
        label = storage.name_of(storage.parent_of(found.path))
        table.append(f"{found.path},{label},{at * 0.37:.2f}")
    storage.write(f"{bucket}/photos.csv", "\n".join([*table, ""]))
    asked = ["--input", f"{bucket}/photos.csv", "--columns", "weight:float:zscore", *BUILD]
    there, here = f"{bucket}/sets/weighed", tmp_path / "here"
    code, said = run(
        *asked, "--output", there, *service.flags,
        "--temp_location", f"{bucket}/temp", "--staging_location", f"{bucket}/temp",
        "--transform_temp_dir", str(tmp_path / "tft"),
    )  # fmt: skip
    assert code == 0, said
    assert len(service.jobs) == 1
    assert builds.build(*asked, "--output", here) == 0
    expected = builds.shard_bytes(here)
    assert len(expected) == 4
    assert {name: storage.read(f"{there}/{name}") for name in expected} == expected
    found_there = json.loads(storage.read(f"{there}/manifest.json"))
    # TensorFlow's graphs and the name in croissant.json differ.
    assert found_there["fingerprint"] == builds.manifest(here)["fingerprint"]
    schema = "transform/transformed_metadata/schema.pbtxt"
    assert "weight" in storage.read(f"{there}/{schema}").decode()
    assert storage.read(f"{there}/{schema}") == (here / schema).read_bytes()
    assert not list((tmp_path / "tft").glob("*"))
    assert "every machine downloads TensorFlow" in said
    (used,) = [json.loads(path.read_text()) for path in (tmp_path / "jobs").rglob("used.json")]
    assert "requirements.txt" in used["staged"]
    assert not [name for name in used["staged"] if "tensorflow" in name]


@pytest.fixture
def package(tmp_path: pathlib.Path) -> list[str]:
    """A package for workers that needs no building."""
    path = tmp_path / "imageshards-0.tar.gz"
    path.write_bytes(b"never unpacked")
    return ["--extra_package", str(path)]


class TestASubmission:
    def test_that_only_tries_leaves_nothing_anywhere(self, bucket, package):
        """On Google's own endpoint, which is not asked for anything."""
        before = set(storage.files_below(bucket))
        code, said = run(*flags(bucket, "dry"), *REAL, *package, "--dry_run=True")
        assert code == 0, said
        assert "nothing was submitted: the flags and the graph are in order" in said
        assert set(storage.files_below(bucket)) == before

    def test_that_fails_is_one_sentence_with_its_page(self, bucket, service, package):
        service.end_jobs("FAILED", "Startup failed: no quota for CPUS")
        code, said = run(*flags(bucket, "x"), *service.flags, *package)
        assert code == 2
        assert "ended as FAILED (Startup failed: no quota for CPUS)" in said
        assert f"/jobs/{REGION}/" in said and "Traceback" not in said

    def test_for_an_output_whose_job_runs_is_refused_by_the_service(self, bucket, service, package):
        name = job_name(f"{bucket}/x")
        running = {"id": "7", "name": name, "currentState": "JOB_STATE_RUNNING"}
        service.jobs["7"] = running | {"clientRequestId": "of another"}
        code, said = run(*flags(bucket, "x"), *service.flags, *package)
        assert code == 2 and list(service.jobs) == ["7"]
        assert f"active job named {name} with id: 7" in said and "Traceback" not in said

    def test_into_a_bucket_that_is_not_there_is_refused(self, bucket, service, package):
        nowhere = "--temp_location=gs://nowhere-9/temp"
        code, said = run(*flags(bucket, "x"), *service.flags, *package, nowhere)
        assert code == 2 and service.jobs == {}
        assert "temp_location " in said and "'gs://nowhere-9/temp'" in said


def options(*arguments: str, **given: str | None) -> PipelineOptions:
    """Flags of a sound job for Google's endpoint, some of them replaced or left out."""
    sound = {"temp_location": "gs://my-bucket/temp", "sdk_container_image": "registry/image"}
    sound |= {"project": PROJECT, "region": REGION}
    named = [f"--{name}={value}" for name, value in (sound | given).items() if value is not None]
    return PipelineOptions(["--runner=DataflowRunner", *named, *arguments])


def check(
    asked: PipelineOptions, source: str = "gs://photos/raw", output: str = "gs://sets/pets"
) -> None:
    """Makes the checks that come before a job is submitted, Beam's own among them."""
    runner = DataflowRunner(asked, BuildOptions(InputOptions(source), output))
    runner.check()
    runner.new_pipeline()


class TestPreflight:
    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ({"project": None}, "Missing required option: project"),
            ({"project": "12345"}, r"Invalid Project ID \(12345\)"),
            ({"region": None}, "Missing required option: region"),
            ({"temp_location": None}, "Missing GCS path option: temp_location"),
            ({"temp_location": "/x"}, r"Invalid GCS path \(/x\), given for .* temp_location"),
            ({"job_name": "Pets_1"}, r"Invalid job_name \(Pets_1\)"),
            ({"s3_secret_access_key": "x"}, "--s3_secret_access_key received a secret"),
            ({"sdk_container_image": None}, "workers would have no imageshards"),
        ],
    )
    def test_a_wrong_flag_is_one_sentence(self, given, sentence):
        with pytest.raises(UserError, match=sentence):
            check(options("--dry_run=True", **given))

    def test_a_stream_is_refused_and_so_is_a_path_of_this_machine(self):
        with refused("streaming"):
            check(options("--streaming"))
        with refused("input", "'/data'"):
            check(options(), source="/data")
        with refused("output", "'/out'"):
            check(options(), output="/out")
