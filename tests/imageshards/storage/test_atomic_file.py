"""A file that is sent while it is written, to stores that really take parts."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beam_pipeline.commit import staging
from beam_pipeline.images.pool_worker import Watch
from beam_pipeline.options import ImageOptions
from beam_pipeline.planning.refs import ImageRef, ShardUnit
from beam_pipeline.shards.places import WriteOptions
from beam_pipeline.shards.writer import write_shard
from imageshards import storage
from imageshards.storage import AtomicFile
from imageshards.storage.objects import ObjectStore
from tests.beam_pipeline.commit.test_store_output import places_of
from tests.support.commands import ROOT
from tests.support.store_servers import StoreServer, store_server
from tests.support.stores import store_uri

pytestmark = pytest.mark.process

PART = ObjectStore.part_bytes
WAIT_SEC = 60
# Sends the first part of a file, and is still writing it.
SENDER = """
import sys, time
from imageshards.storage import AtomicFile
from tests.imageshards.storage.test_atomic_file import PART, data_of, fill
with AtomicFile(sys.argv[1]) as file:
    fill(file, data_of(PART + 5))
    time.sleep(600)
"""


@pytest.fixture(scope="module", params=["gs", "s3"])
def server(request) -> Iterator[StoreServer]:
    with store_server(request.param) as running, running.environment():
        yield running


def data_of(size_bytes: int) -> bytes:
    return np.random.default_rng(size_bytes).bytes(size_bytes)


def fill(file: AtomicFile, data: bytes, piece: int = 1 << 20) -> None:
    """Writes a file as a shard is written: in pieces, told about each."""
    with open(file.local_path, "wb", buffering=0) as out:
        for start in range(0, len(data), piece):
            out.write(data[start : start + piece])
            file.note_size(start + len(data[start : start + piece]))


def sent_parts(server: StoreServer) -> int:
    """How many parts of unfinished objects have arrived."""
    return sum(
        asked.status in (200, 308)
        and ("upload_id=" in asked.target or "partNumber=" in asked.target)
        for asked in server.requests()
        if asked.method == "PUT"
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SEC
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("size_bytes", [0, PART - 1, PART, 2 * PART + 12345], ids=str)
def test_what_was_written_is_there_when_it_is_committed_and_not_before(server, size_bytes):
    """Whole parts go before the file is finished."""
    path, data = f"{server.bucket()}/deep/shard", data_of(size_bytes)
    server.clear()
    with AtomicFile(path) as file:
        fill(file, data)
        wait_for(lambda: sent_parts(server) == size_bytes // PART)
        assert storage.stat(path) is None
        version = file.commit()
        found = storage.stat(path)
        assert found is not None
        assert (found.version, found.size_bytes) == (version, size_bytes)
    assert storage.read(path) == data
    assert not os.path.exists(file.local_path)


def test_a_file_on_a_network_disk_of_beams_is_sent_whole(tmp_path):
    with AtomicFile(store_uri(tmp_path / "set" / "shard")) as file:
        fill(file, data_of(2 * PART))
        file.commit()
    assert (tmp_path / "set" / "shard").read_bytes() == data_of(2 * PART)


@pytest.mark.parametrize("place", ["in a store", "here"])
def test_what_is_not_committed_leaves_nothing(server, place, tmp_path):
    path = f"{server.bucket()}/shard" if place == "in a store" else str(tmp_path / "shard")
    with pytest.raises(KeyError), AtomicFile(path) as file:
        fill(file, data_of(2 * PART))
        raise KeyError
    assert not storage.exists(path)
    assert not os.path.exists(file.local_path)
    assert not list(tmp_path.iterdir())
    if server.scheme == "s3" and place == "in a store":
        backend: Any = storage.backend(path)
        bucket = path.split("/")[2]  # a store asks money for parts of nothing
        assert not backend._client.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_what_a_killed_process_has_sent_is_dropped_by_the_next_job(server):
    """And nothing else: neither objects, nor what another job sends elsewhere."""
    output = f"{server.bucket()}/set"
    other = f"{output}/below"
    storage.write(f"{output}/train-00000-of-00002.tfrecord", b"finished")
    server.clear()
    with subprocess.Popen(
        [sys.executable, "-c", SENDER, f"{output}/train-00001-of-00002.tfrecord"],
        env=os.environ | server.environ, cwd=ROOT,
    ) as sender:  # fmt: skip
        try:
            wait_for(lambda: sent_parts(server) == 1)
        finally:
            sender.kill()
    with AtomicFile(f"{other}/shard") as file:
        fill(file, data_of(PART + 5))
        wait_for(lambda: sent_parts(server) == 2)
        staging.prepare_staging(staging.read_output_state(output, f"{output}/.staging"))
        file.commit()
    assert storage.read(f"{other}/shard") == data_of(PART + 5)
    assert storage.read(f"{output}/train-00000-of-00002.tfrecord") == b"finished"
    if server.scheme == "s3":
        backend: Any = storage.backend(output)
        bucket = output.split("/")[2]
        assert not backend._client.list_multipart_uploads(Bucket=bucket).get("Uploads")
        ended = [a for a in server.requests() if a.method == "POST" and "uploadId=" in a.target]
        assert [("below/" in a.target, a.status) for a in ended] == [(True, 200)]


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_without_the_right_to_list_them_a_job_goes_on(server):
    output = f"{server.bucket()}/set"
    server.fail(403, times=1, matching="uploads", method="GET")
    staging.prepare_staging(staging.read_output_state(output, f"{output}/.staging"))
    assert storage.exists(f"{output}/.staging/job.json")


@pytest.mark.parametrize("kind", [503, "reset", "drop_answer", 403])
def test_a_part_that_fails_is_sent_again_and_where_parts_are_refused_the_whole_file(server, kind):
    """Also where the store has it: the emulator refuses it then, and is sent the whole file."""
    path, data = f"{server.bucket()}/shard", data_of(2 * PART + 5)
    before = storage.counts().retries
    server.clear()
    with AtomicFile(path) as file:
        server.fail(kind, times=1, matching=part_of(server), method="PUT")
        fill(file, data)
        wait_for(lambda: any(asked.status in (kind, 0) for asked in server.requests()))
        version = file.commit()
    found = storage.stat(path)
    assert found is not None and found.version == version
    assert storage.read(path) == data
    assert kind == 403 or storage.counts().retries > before
    server.fail(403, times=10**6, matching="shard")  # and now everything
    with pytest.raises(PermissionError, match="refused"), AtomicFile(path + "2") as file:
        fill(file, data)
        file.commit()
    server.heal()


def part_of(server: StoreServer) -> str:
    """What the targets of requests for parts have."""
    return "upload_id=" if server.scheme == "gs" else "partNumber="


@pytest.mark.slow
@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_a_large_shard_is_the_same_in_a_store_and_most_of_it_there_before_its_end(server, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (1200, 1600, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0.jpg", quality=90)
    refs = [ImageRef(f"{i}.jpg", str(tmp_path / "0.jpg"), "cat", "train") for i in range(16)]
    unit = ShardUnit("train", 0, 1, "", {"cat": 0}, refs)
    options = WriteOptions(image=ImageOptions(height_px=1200, width_px=1600, quality=95))
    here, there = (
        places_of(folder, True) for folder in (str(tmp_path / "set"), f"{server.bucket()}/set")
    )
    os.makedirs(here.staging)
    server.clear()
    done: list[int] = []

    class Parts(Watch):
        def add(self, *amounts: int) -> None:
            done.append(sent_parts(server) if len(done) == len(refs) - 1 else 0)

    local = write_shard(unit, here, options)
    stored = write_shard(unit, there, options, Parts())
    assert stored.sha256 == local.sha256 and stored.num_records == len(refs)
    data = storage.read(there.finished_path("train-00000-of-00001"))
    assert data == pathlib.Path(here.finished_path("train-00000-of-00001")).read_bytes()
    assert len(data) > 3 * PART and done[-1] >= 2
    assert write_shard(unit, there, options).reused
