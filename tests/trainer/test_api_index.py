"""`ims.open(…).index()`, and a record by its key, on this machine and in buckets."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

import imageshards as ims
from imageshards import storage
from imageshards.errors import UserError
from imageshards.example import decode_example
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
    keys = {split: data.index(split)["key"].to_pylist() for split in data.splits}
    payloads = [payload for of_shard in dataset.payloads.values() for payload in of_shard]
    for key, payload in zip(KEYS, payloads, strict=True):
        split = "train" if key in keys["train"] else "validation"
        record, features = data.source(split)[keys[split].index(key)], decode_example(payload)
        assert {name: [value] for name, value in record.items()} == features


def test_in_a_bucket_a_record_costs_one_request_of_its_own_bytes(made, store):
    folder = f"{store.bucket()}/sets/photos"
    storage.copy_folder(str(made), folder)
    data = ims.open(folder)
    source, expected = data.source("validation"), ims.open(made).source("validation")
    assert source[0] == expected[0]
    places, before = data.index("validation").to_pylist(), storage.counts()
    store.clear()
    assert source[7] == expected[7]
    spent = storage.counts()
    assert len(store.requests()) == spent.requests - before.requests == 1
    assert spent.bytes_read - before.bytes_read == places[7]["num_bytes"]
