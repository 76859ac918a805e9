"""An HTTP server on loopback that answers as its paths say, mostly wrongly."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator

HTML = b"<!doctype html><title>Sorry</title><p>This picture has moved."


class WebServer(http.server.ThreadingHTTPServer):
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
        asked: Path → requests so far.
        most_at_once: Requests that were being answered at the same time, at most.
    """

    daemon_threads = True

    def __init__(self, address: str, pictures: dict[str, bytes]):
        super().__init__((address, 0), _Handler)
        self.pictures = pictures
        self.asked: Counter[str] = Counter()
        self.connections = self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.ended = threading.Event()

    def get_request(self):
        self.connections += 1
        return super().get_request()

    def handle_error(self, request, client_address) -> None:
        """A client that goes away is what is tested."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        with server.lock:
            server.asked[self.path] += 1
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            self._answer(self.path)
        finally:
            with server.lock:
                server.at_once -= 1

    def _answer(self, path: str) -> None:
        _, what, *rest = path.partition("?")[0].split("/")
        if what == "flaky":
            again = self.server.asked[self.path] <= int(rest[0])
            return self._send(500) if again else self._answer("/" + "/".join(rest[1:]))
        if what == "slow":
            self.server.ended.wait(float(rest[0]))
            return self._answer("/" + "/".join(rest[1:]))
        if what == "status":
            wait = urllib.parse.parse_qs(path.partition("?")[2]).get("retry_after")
            return self._send(int(rest[0]), headers={"Retry-After": wait[0]} if wait else None)
        if what in ("to", "loop"):
            target = urllib.parse.unquote(path.partition("?")[2]) or "/loop"
            return self._send(302, headers={"Location": target})
        special = getattr(self, f"_{what}", None)
        if special is not None:
            self.close_connection = True
            return special()
        data = self.server.pictures.get(path)
        return self._send(404) if data is None else self._send(200, data)

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _html(self) -> None:
        self._send(200, HTML)

    def _short(self) -> None:
        self._send(200, b"x" * 10, headers={"Content-Length": "20"})

    def _long(self) -> None:
        self._send(200, b"x" * 20, headers={"Content-Length": "10"})

    def _digits(self) -> None:
        self._send(200, b"x", headers={"Content-Length": "9" * 5000})

    def _reset(self) -> None:
        pass

    def _silent(self) -> None:
        self.server.ended.wait()

    def _drip(self) -> None:
        self._send(200, headers={"Content-Length": "999"})
        while not self.server.ended.wait(0.05):
            self.wfile.write(b"x")

    def _drip_head(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not self.server.ended.wait(0.05):
            self.wfile.write(b"x")

    def _endless(self) -> None:
        self._send(200, headers={"Transfer-Encoding": "chunked", "Content-Length": ""})
        while not self.server.ended.is_set():
            self.wfile.write(b"400\r\n" + b"x" * 1024 + b"\r\n")


@contextlib.contextmanager
def web_server(
    pictures: dict[str, bytes], address: str = "127.0.0.1", certificate: str | None = None
) -> Iterator[tuple[WebServer, str]]:
    """A server that runs meanwhile, and its address.

    Args:
        pictures: Path → bytes.
        address: Of loopback.
        certificate: File with key and certificate; https:// with it.
    """
    server = WebServer(address, pictures)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server, f"http{'s' if certificate else ''}://{address}:{server.server_port}"
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
