"""A file appears whole or not at all, here and in stores."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest

from imageshards import storage
from imageshards.storage import AtomicFile
from tests.support.store_servers import StoreServer, store_server
from tests.support.stores import store_uri

pytestmark = pytest.mark.process

# Above 8 MiB Google's library begins an upload by a request of its own.
LARGE = (8 << 20) + 12345


@pytest.fixture(scope="module", params=["gs", "s3"])
def server(request) -> Iterator[StoreServer]:
    with store_server(request.param) as running, running.environment():
        yield running


def fill(file: AtomicFile, size_bytes: int) -> bytes:
    data = np.random.default_rng(size_bytes).bytes(size_bytes)
    pathlib.Path(file.local_path).write_bytes(data)
    return data


@pytest.mark.parametrize("size_bytes", [0, 1000, LARGE], ids=str)
def test_what_was_written_is_there_when_it_is_committed_and_not_before(server, size_bytes):
    path = f"{server.bucket()}/deep/shard"
    with AtomicFile(path) as file:
        data = fill(file, size_bytes)
        assert storage.stat(path) is None
        version = file.commit()
    found = storage.stat(path)
    assert found is not None and (found.version, found.size_bytes) == (version, size_bytes)
    assert storage.read(path) == data
    assert not os.path.exists(file.local_path)


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_what_is_too_large_for_one_request_is_sent_in_parts(server, monkeypatch):
    monkeypatch.setattr("imageshards.storage.s3._MAX_PUT_BYTES", 8 << 20)
    path = f"{server.bucket()}/model"
    with AtomicFile(path) as file:
        data = fill(file, LARGE)
        version = file.commit()
    found = storage.stat(path)
    assert found is not None and found.version == version
    assert storage.read(path) == data
    assert any("partNumber=2" in asked.target for asked in server.requests())


def test_a_file_on_a_network_disk_of_beams_is_sent_whole(tmp_path):
    with AtomicFile(store_uri(tmp_path / "set" / "shard")) as file:
        data = fill(file, 1000)
        file.commit()
    assert (tmp_path / "set" / "shard").read_bytes() == data


@pytest.mark.parametrize("place", ["in a store", "here"])
def test_what_is_not_committed_leaves_nothing(server, place, tmp_path):
    path = f"{server.bucket()}/shard" if place == "in a store" else str(tmp_path / "shard")
    with pytest.raises(KeyError), AtomicFile(path) as file:
        fill(file, 1000)
        raise KeyError
    assert not storage.exists(path)
    assert not os.path.exists(file.local_path)
    assert not list(tmp_path.iterdir())
