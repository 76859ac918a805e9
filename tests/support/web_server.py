"""An HTTP server on loopback that answers as its paths say, mostly wrongly."""

import urllib.parse
from collections.abc import Mapping
from typing import Any

from tests.support.http_stand_in import HttpStandIn, Reply, Request

HTML = b"<!doctype html><title>Sorry</title><p>This picture has moved."
_ODD = {
    # Without this word the next request might be sent just as the connection is closed.
    "html": Reply(200, HTML, {"Connection": "close"}),
    "short": Reply(200, b"x" * 10, {"Content-Length": "20"}),
    "long": Reply(200, b"x" * 20, {"Content-Length": "10"}),
    "digits": Reply(200, b"x", {"Content-Length": "9" * 5000}),
    "drip": Reply(200, headers={"Content-Length": "999"}),
    "endless": Reply(200, headers={"Transfer-Encoding": "chunked", "Content-Length": ""}),
}


class WebServer(HttpStandIn):
    """Serves `pictures` under their paths, and these:

    /status/N             answers N; /status/N?retry_after=S asks to wait
    /flaky/N/PATH         answers 500 N times, then as PATH
    /to?URL               redirects to URL; /loop to itself
    /slow/S/PATH          waits S seconds, then as PATH
    /drip                 a byte of the body every 50 ms, without end; /drip_head a byte of the head
    /endless              bytes without end, chunked
    /short                half of what Content-Length says; /long the double;
                          /digits says a number of 5000 digits
    /html                 a page; /silent nothing at all; /reset an end without an answer

    Attributes:
        most_at_once: Requests that were being answered at the same time, at most.
    """

    def __init__(self, pictures: Mapping[str, bytes], **options: Any):
        super().__init__(**options)
        self._pictures = pictures
        self._at_once = self.most_at_once = 0

    def times_asked(self, path: str) -> int:
        return self.asked.count(("GET", path))

    def answer(self, request: Request) -> Reply | None:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return self._answer(request, request.path)
        finally:
            with self._lock:
                self._at_once -= 1

    def _answer(self, request: Request, path: str) -> Reply | None:
        path, _, query = path.partition("?")
        _, what, *rest = path.split("/")
        if path in self._pictures:
            return Reply(200, self._pictures[path])
        if what == "flaky" and self.times_asked(path) <= int(rest[0]):
            return Reply(500)
        if what == "slow":
            self.ended.wait(float(rest[0]))
        if what in ("flaky", "slow"):
            return self._answer(request, "/" + "/".join(rest[1:]))
        if what == "status":
            wait = urllib.parse.parse_qs(query).get("retry_after", [""])[0]
            return Reply(int(rest[0]), headers={"Retry-After": wait})
        if what in ("to", "loop"):
            return Reply(302, headers={"Location": urllib.parse.unquote(query) or "/loop"})
        if what not in (*_ODD, "reset", "silent", "drip_head"):
            return Reply(404)
        request.close_connection = True
        if what in _ODD:
            request.say(*_ODD[what])
        if what == "drip_head":
            request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        if what == "silent":
            self.ended.wait()
        while what.startswith("drip") and not self.ended.wait(0.05):
            request.wfile.write(b"x")
        while what == "endless" and not self.ended.is_set():
            request.wfile.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
        return None
