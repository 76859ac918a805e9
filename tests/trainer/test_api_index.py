"""`ims.open(…).index()` and `.record(key)`, on this machine and in buckets."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

import imageshards as ims
from imageshards import storage
from imageshards.errors import UserError
from imageshards.example import decode_example
from imageshards.index import read_record
from tests.support.dataset_factory import Dataset
from tests.support.store_servers import StoreServer, store_server

pytestmark = pytest.mark.process

KEYS = [f"{('cat', 'dog')[i % 2]}/{i}.jpg" for i in range(30)]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> pathlib.Path:
    return Dataset(tmp_path_factory.mktemp("data") / "set").directory


@pytest.fixture(scope="module", params=["s3", "gs"])
def store(request) -> Iterator[StoreServer]:
    with store_server(request.param) as server, server.environment():
        yield server


def test_the_index_is_a_table_of_all_or_one_split(made):
    data = ims.open(made)
    assert data.index()["key"].to_pylist() == KEYS
    some = data.index("validation", columns=["key", "label"])
    assert some.to_pydict() == {"key": KEYS[18:], "label": [0, 1] * 6}
    with pytest.raises(UserError, match="split received 'test'; expected one of train, valid"):
        data.index("test")


def test_any_record_is_found_by_its_key(tmp_path):
    dataset = Dataset(tmp_path)
    data = ims.open(tmp_path)
    payloads = [payload for of_shard in dataset.payloads.values() for payload in of_shard]
    for key, payload in zip(KEYS, payloads, strict=True):
        assert data.record(key) == decode_example(payload)


def test_in_a_bucket_a_record_costs_one_request_of_its_own_bytes(made, store):
    folder = f"{store.bucket()}/sets/photos"
    storage.copy_folder(str(made), folder)
    data = ims.open(folder)
    assert data.record(KEYS[0]) == ims.open(made).record(KEYS[0])
    before, places = storage.counts(), data.index().to_pylist()
    before = storage.counts()
    store.clear()
    assert data.record(KEYS[25]) == ims.open(made).record(KEYS[25])
    spent = storage.counts()
    assert len(store.requests()) == spent.requests - before.requests == 1
    assert spent.bytes_read - before.bytes_read == places[25]["num_bytes"]


def test_an_unknown_key_is_named_with_the_nearest_one(made):
    with pytest.raises(UserError, match=r"key received 'cat/0.jpeg', .* \(did you mean cat/0.jpg"):
        ims.open(made).record("cat/0.jpeg")


def test_a_damaged_record_is_named_by_its_place(tmp_path):
    Dataset(tmp_path)
    shard = tmp_path / "train-00001-of-00003.tfrecord"
    row = ims.open(tmp_path).index("train").slice(8, 1).to_pylist()[0]
    data = bytearray(shard.read_bytes())
    data[row["offset"] + 50] ^= 1
    shard.write_bytes(data)
    said = f"{shard}, record 2 at byte {row['offset']}: the payload's checksum is wrong"
    with pytest.raises(ims.RecordError, match=said):
        ims.open(tmp_path).record(row["key"])
    shard.write_bytes(data[: row["offset"]])
    with pytest.raises(ims.RecordError, match="record 2 .* the file ends before it"):
        ims.open(tmp_path).record(row["key"])


def test_a_record_of_another_build_is_noticed(made):
    row = ims.open(made).index().slice(0, 1).to_pylist()[0]
    with pytest.raises(UserError, match=r"holds at record 0 not 'a.jpg', as its index says"):
        read_record(str(made), row | {"key": "a.jpg"})
