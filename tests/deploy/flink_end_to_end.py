"""A build on a real Flink cluster, which somebody started: `make test-flink`.

Not a part of `make test`: it needs a cluster with a worker pool beside each TaskManager
(docs/guides/clusters.md), and Beam downloads its job server (150 MB).
"""

import os
import subprocess
import sys

import pytest

from tests.support import builds, portable_servers

MASTER = os.environ.get("FLINK_MASTER")
TIMEOUT_SEC = 900

pytestmark = pytest.mark.skipif(not MASTER, reason="no Flink: FLINK_MASTER names no JobManager")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return portable_servers.photos_in(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def table(photos, tmp_path_factory):
    """An image table of the same photos with an extra column."""
    rows = [f"{p},{p.parent.name},{i * 0.37}" for i, p in enumerate(sorted(photos.rglob("*.jpg")))]
    path = tmp_path_factory.mktemp("table") / "rows.csv"
    path.write_text("\n".join(["image,label,weight", *rows, ""]))
    return path


@pytest.mark.parametrize("kind", ["folders", "columns"])
def test_the_bytes_are_those_of_a_local_build(kind, photos, table, tmp_path):
    asked = portable_servers.flags(photos if kind == "folders" else table, tmp_path / "here")
    if kind == "columns":
        asked += ["--columns", "weight:float:zscore", "--allow_any_path"]
    assert builds.build(*asked) == 0
    there = [str(tmp_path / "there") if a == str(tmp_path / "here") else a for a in asked]
    where = ["--runner", "FlinkRunner", "--flink_master", str(MASTER), "--parallelism", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "imageshards", "build", *there, *where],
        capture_output=True, text=True, timeout=TIMEOUT_SEC, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert builds.shard_bytes(tmp_path / "there") == builds.shard_bytes(tmp_path / "here")
    assert builds.manifest(tmp_path / "there") == builds.manifest(tmp_path / "here")
