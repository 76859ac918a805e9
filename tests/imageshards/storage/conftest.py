"""A stand-in for each store, for all tests of a file."""

import pytest

from tests.support.store_servers import store_server


@pytest.fixture(scope="module", params=["gs", "s3"])
def server(request):
    with store_server(request.param) as running, running.environment():
        yield running
