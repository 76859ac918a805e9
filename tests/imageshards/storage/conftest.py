"""A stand-in for each store, for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.store_servers import StoreServer, store_server


@pytest.fixture(scope="module", params=["gs", "s3"])
def server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with store_server(request.param) as running, running.environment():
        yield running
