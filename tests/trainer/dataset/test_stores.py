"""TFRecords in stores, as the trainer looks at them before it trains."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from imageshards import storage
from imageshards.tfrecord import read_records, write_records
from tests.support.store_servers import StoreServer, store_server

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", params=["s3", "gs"])
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with store_server(request.param) as server, server.environment():
        yield server


def test_records_are_scanned_with_few_requests(store: StoreServer, tmp_path: pathlib.Path) -> None:
    payloads = [bytes([i % 256]) * (10 * (i % 97)) for i in range(9000)]
    local = str(tmp_path / "records")
    write_records(local, payloads)
    uri = store.bucket() + "/records"
    storage.upload(local, uri)
    store.clear()
    assert [record.payload for record in read_records(uri)] == payloads
    of_file = [asked for asked in store.requests() if "records" in asked.target]
    assert len(of_file) == 2  # its size, and one range
