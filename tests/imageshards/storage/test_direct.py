import pytest

from imageshards.storage.direct import DirectReader
from tests.support.web_server import WebServer

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("target", "max_bytes", "expected"),
    [
        ("/ten", None, b"0123456789"),
        ("/ten", 4, b"0123"),
        ("/endless", 3000, b"x" * 3000),  # in chunks, which say no length
        ("/short", None, None),  # 10 bytes, where 20 are told
        ("/status/500", 4, None),
    ],
)
def test_a_direct_read_stops_at_its_limit(target, max_bytes, expected):
    with WebServer({"/ten": b"0123456789"}) as server:
        reader = DirectReader(server.url)
        assert reader.get(target, {}, max_bytes) == expected
        before = server.connections
        for _ in range(3):  # a connection that is left is whole, and one is kept
            assert reader.get("/ten", {}, 100) == b"0123456789"
        assert server.connections - before <= 1
