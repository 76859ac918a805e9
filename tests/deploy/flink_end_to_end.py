"""The whole thing on a real Flink cluster on this host: `make test-flink`.

Not a part of `make test`: it downloads Flink (320 MB) and Beam's job server (150 MB), and takes
minutes. What cannot be had is said in one line and skipped; everything before it runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline.runners import flink, job_server
from beam_pipeline.runners.runner import job_name
from deploy.flink import cluster as clusters
from deploy.flink import flink_home
from imageshards.errors import UserError
from scripts import background
from scripts.background import Program
from tests.deploy.test_flink_cluster import task_manager
from tests.support import builds, portable_servers

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB_TIMEOUT_SEC = 900
SLOTS = 2
SHARDS = ("--num_shards", "train=24,validation=8")
FILES = ("manifest.json", "features.json", "dataset_info.json")

# Large enough that a TaskManager can be killed while they are written.
WIDTH, HEIGHT, PICTURES, NAMES = 2400, 1800, 8, 400
COLUMN_ROWS = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One JobManager, two TaskManagers, two pools, at free ports."""
    ports = [portable_servers.free_port() for _ in range(3)]
    found = clusters.Cluster(
        os.environ.get("FLINK_HOME"),
        tmp_path_factory.mktemp("cluster"),
        slots=SLOTS,
        rest_port=ports[0],
        rpc_port=ports[1],
        pool_port=ports[2],
    )
    try:
        clusters.start(found)
    except UserError as e:
        pytest.skip(str(e))
    yield found
    clusters.stop(found)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> pathlib.Path:
    """Two classes of large JPEGs; a few pictures under many names."""
    root = tmp_path_factory.mktemp("in")
    for i in range(PICTURES):
        (root / f"{i}.jpg").write_bytes(builds.jpeg(i, WIDTH, HEIGHT, quality=92))
    for i in range(NAMES):
        folder = root / "classes" / ("cat", "dog")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        os.link(root / f"{i % PICTURES}.jpg", folder / f"{i}.jpg")
    return root / "classes"


@pytest.fixture(scope="module")
def local(images, tmp_path_factory) -> pathlib.Path:
    """What a build on this machine makes of them."""
    output = tmp_path_factory.mktemp("local") / "out"
    assert builds.build("--input", images, "--output", output, *SHARDS) == 0
    return output


@pytest.fixture(scope="module")
def jar(cluster) -> str:
    """Beam's job server: named by FLINK_JOB_SERVER_JAR, in the cache, or downloaded."""
    version = flink.overview(cluster.master).version
    given = os.environ.get("FLINK_JOB_SERVER_JAR")
    flags = [f"--flink_job_server_jar={given}"] if given else []
    try:
        return job_server.find_jar(PipelineOptions([f"--flink_version={version}", *flags]))
    except UserError as e:
        pytest.skip(str(e))


def command(cluster, images, output, *flags) -> list[str]:
    """A build on the cluster, as a user would give it."""
    parts = [
        sys.executable, "-m", "beam_pipeline", "--input", images, "--output", output, *SHARDS,
        "--runner", "FlinkRunner", "--flink_master", cluster.master,
        "--environment_config", f"localhost:{cluster.pool_port}", *flags,
    ]  # fmt: skip
    return [str(part) for part in parts]


def run(parts: list[str], timeout_sec: float = JOB_TIMEOUT_SEC) -> subprocess.CompletedProcess:
    """Runs a build to its end."""
    return subprocess.run(parts, cwd=ROOT, capture_output=True, text=True, timeout=timeout_sec)


def same(output: pathlib.Path, local: pathlib.Path) -> bool:
    """Whether two data sets are the same to the byte."""
    files = all((output / name).read_bytes() == (local / name).read_bytes() for name in FILES)
    return files and builds.shard_bytes(output) == builds.shard_bytes(local)


def test_the_cluster_has_two_task_managers_and_all_their_slots(cluster):
    found = flink.overview(cluster.master)
    assert found == flink.Overview(found.version, 2, 2 * SLOTS, 2 * SLOTS)
    with urllib.request.urlopen(f"http://{cluster.master}/taskmanagers", timeout=10) as reply:
        names = {each["id"] for each in json.load(reply)["taskmanagers"]}
    assert names == {"taskmanager-0", "taskmanager-1"}


def test_starting_it_again_changes_nothing(cluster):
    before = _processes(cluster)
    clusters.start(cluster)
    assert _processes(cluster) == before


def _processes(cluster):
    return {each.name: each.process() for each in background.programs(cluster.folder)}


def test_each_pool_starts_a_worker_for_its_task_manager(cluster):
    for i in range(2):
        with task_manager(f"{cluster.pool_host(i)}:{cluster.pool_port}") as manager:
            manager.start("1-1")
            manager.stop("1-1")


@pytest.mark.skipif(shutil.which("javac") is None, reason="no Java compiler to ask Java with")
def test_the_java_of_each_task_manager_finds_its_own_pool_at_localhost(cluster, tmp_path):
    source = tmp_path / "Where.java"
    source.write_text(
        "public class Where { public static void main(String[] a) throws Exception { "
        'System.out.print(java.net.InetAddress.getByName("localhost").getHostAddress()); } }'
    )
    for i in range(2):
        hosts = cluster.folder / f"taskmanager-{i}.hosts"
        done = run(["java", f"-Djdk.net.hosts.file={hosts}", str(source)], 60)
        assert done.stdout == cluster.pool_host(i), done.stderr


# As much as Beam's job server sends with a job.
PADDING_BYTES = 180_000_000


@pytest.mark.skipif(shutil.which("javac") is None, reason="no Java compiler to make a job with")
def test_a_job_that_a_client_left_behind_is_seen_and_cancelled(cluster, tmp_path):
    home = flink_home.flink_home(cluster.home)
    source = ROOT / "tests" / "Sleeper.java"
    done = run(["javac", "-cp", f"{home}/lib/*", "-d", str(tmp_path), str(source)], 120)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "sleeper.jar", "w") as archive:
        for part in tmp_path.glob("*.class"):
            archive.write(part, part.name)
        archive.writestr("padding", os.urandom(PADDING_BYTES))
    submit = [
        "-m",
        cluster.master,
        "-d",
        "-p",
        str(2 * SLOTS),
        "-c",
        "Sleeper",
        str(tmp_path / "sleeper.jar"),
    ]
    name = job_name("gs://bucket/shards")
    done = run(["bash", str(home / "bin" / "flink"), "run", *submit, name], 300)
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = flink.running_jobs(cluster.master, name)
    _wait_for_tasks(cluster, job, 2 * SLOTS)
    options = PipelineOptions(
        ["--runner=FlinkRunner", "--job_endpoint=localhost:1", f"--flink_master={cluster.master}"]
    )
    with pytest.raises(UserError, match=f"still runs the job {job}"):
        with flink.job_service(options, "gs://bucket/shards"):
            raise AssertionError
    assert flink.cancel_jobs(cluster.master, name) == [job]
    assert flink.running_jobs(cluster.master, name) == []


def _wait_for_tasks(cluster, job: str, count: int) -> None:
    """Until every step of a job has so many tasks, on all TaskManagers, that exchange records."""
    deadline = time.monotonic() + 300
    while True:
        with urllib.request.urlopen(f"http://{cluster.master}/jobs/{job}", timeout=10) as reply:
            steps = json.load(reply)["vertices"]
        running = [step["tasks"]["RUNNING"] for step in steps]
        received = max(step["metrics"]["read-records"] for step in steps)
        if running == [count] * len(steps) and len(steps) > 1 and received > 0:
            return
        assert time.monotonic() < deadline, steps
        time.sleep(0.3)


def test_the_client_goes_through_a_job_service_with_the_same_bytes(
    cluster, images, local, tmp_path
):
    output = tmp_path / "out"
    with portable_servers.job_service(tmp_path) as service:
        done = run(command(cluster, images, output, "--job_endpoint", service.address))
    assert done.returncode == 0, done.stderr
    assert f"--parallelism={2 * SLOTS}: " in done.stderr
    assert same(output, local)


@pytest.mark.parametrize("translator", ["of the version", "as a stream"])
def test_flink_makes_the_same_bytes(translator, cluster, images, local, jar, tmp_path):
    """Flink 1.x can be told to run a job by the translator that 2.x has for every job."""
    flags = ["--flink_job_server_jar", jar]
    if translator == "as a stream":
        if not flink.overview(cluster.master).version.startswith("1."):
            pytest.skip("Flink 2.x runs every job as a stream")
        flags.append("--streaming")
    done = run(command(cluster, images, tmp_path / "out", *flags))
    assert done.returncode == 0, done.stderr
    assert same(tmp_path / "out", local)


def test_extra_columns_make_the_same_bytes(cluster, images, jar, tmp_path):
    """tensorflow-transform's own steps, and its temporary files."""
    paths = sorted(images.rglob("*.jpg"))[:: NAMES // COLUMN_ROWS]
    rows = [{"path": str(p), "label": p.parent.name, "age": i / 7} for i, p in enumerate(paths)]
    table = tmp_path / "photos.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--columns", "age:float:zscore", "--key_column", "path", "--image_size", "64"]
    local, output = tmp_path / "local", tmp_path / "out"
    assert builds.build("--input", table, "--output", local, *SHARDS, *flags) == 0
    done = run(command(cluster, table, output, *flags, "--flink_job_server_jar", jar))
    assert done.returncode == 0, done.stderr
    assert same(output, local)


def test_a_machine_is_lost_and_the_same_command_goes_on(cluster, images, local, jar, tmp_path):
    output = tmp_path / "out"
    parts = command(cluster, images, output, "--flink_job_server_jar", jar)
    _lose_a_task_manager(cluster, parts, output, tmp_path / "said")
    finished = _written(output)
    done = run(parts)  # on the slots that are left
    assert done.returncode == 0, done.stderr
    assert f"--parallelism={SLOTS}: " in done.stderr
    assert same(output, local)
    assert finished
    again = [name for name, mtime in _written(output).items() if finished.get(name) != mtime]
    assert sorted(again) == sorted(set(builds.shard_bytes(local)) - set(finished))


def _lose_a_task_manager(cluster, parts, output, said) -> None:
    """Runs a build, and loses a machine when two shards are finished."""
    with said.open("w") as file:
        job = subprocess.Popen(parts, cwd=ROOT, stdout=file, stderr=file)
    _wait_for_shards(job, output, 2)
    # All that a machine has: the TaskManager, its pool, and the pool's workers.
    for name in ("taskmanager-1", "pool-1"):
        Program(name, cluster.folder).signal(signal.SIGKILL)
    assert job.wait(JOB_TIMEOUT_SEC) != 0, said.read_text()
    assert "Traceback" not in said.read_text(), said.read_text()
    assert not (output / "manifest.json").exists()
    deadline = time.monotonic() + 120
    while flink.overview(cluster.master).task_managers > 1:  # until its heartbeat is missed
        assert time.monotonic() < deadline
        time.sleep(1)


def _wait_for_shards(job: subprocess.Popen, output: pathlib.Path, count: int) -> set[str]:
    deadline = time.monotonic() + JOB_TIMEOUT_SEC
    while len(found := _finished(output)) < count:
        assert job.poll() is None, "the job ended before a TaskManager could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def _finished(output: pathlib.Path) -> set[str]:
    return {path.stem for path in (output / ".staging").glob("*-of-*.json")}


def _written(output: pathlib.Path) -> dict[str, int]:
    """Finished shard → when it was written, committed or not."""
    done = {path.name for path in output.glob("*.tfrecord")}
    done |= {f"{stem}.tfrecord" for stem in _finished(output)}
    return {
        path.name: path.stat().st_mtime_ns
        for folder in (output / ".staging", output)
        for path in folder.glob("*.tfrecord")
        if path.name in done
    }


def test_it_is_stopped_with_everything_that_it_started(tmp_path):
    ports = [portable_servers.free_port() for _ in range(3)]
    mine = dataclasses.replace(
        clusters.Cluster(os.environ.get("FLINK_HOME"), tmp_path / "cluster"),
        task_managers=1, rest_port=ports[0], rpc_port=ports[1], pool_port=ports[2],
    )  # fmt: skip
    try:
        clusters.start(mine)
    except UserError as e:
        pytest.skip(str(e))
    begun = background.programs(mine.folder)
    assert clusters.stop(mine) == len(begun) == 3
    assert not any(each.process() for each in begun)
    assert clusters.status(mine) == "not ready: it was not started"
