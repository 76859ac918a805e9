import pytest

from imageshards.storage.direct import DirectReader, needs_no_proxy
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


def test_a_place_behind_a_proxy_is_left_to_the_library(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert not needs_no_proxy("http://example.org:9000")
