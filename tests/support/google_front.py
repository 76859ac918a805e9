"""Google's own addresses for gs://, as a proxy on loopback answers them from an emulator.

TensorFlow's client knows no other address than Google's, but it takes a proxy (`https_proxy`)
and a list of certificates (`CURL_CA_BUNDLE`) from its environment, as Google's own library does.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from tests.support.certificates import self_signed

HOSTS = (
    "www.googleapis.com",
    "storage.googleapis.com",
    "oauth2.googleapis.com",
    "iamcredentials.googleapis.com",
)


class Front:
    """The running proxy.

    Attributes:
        environ: What a process has to have in its environment to take it for Google.
        asked: (host, path, Range header) of every request.
        callers: Whose access token each of them had; empty without one.
        refusing: Whether every request is answered with 403.
    """

    def __init__(self, emulator: str, tls: ssl.SSLContext):
        self.emulator = emulator
        self.tls = tls
        self.environ: dict[str, str] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.callers: list[str] = []
        self.refusing = False

    def answer(self, host: str, path: str, span: str) -> tuple[int, bytes]:
        """Status and body of what Google would answer."""
        self.asked.append((host, path, span))
        if self.refusing:
            return 403, b'{"error": {"code": 403,\n "message": "Anonymous caller."}}'
        if host == HOSTS[0] or path.startswith(("/storage/v1/", "/download/storage/v1/")):
            return self._ask(path, span)
        bucket, _, name = path.partition("?")[0][1:].partition("/")
        quoted = urllib.parse.quote(urllib.parse.unquote(name), safe="")
        return self._ask(f"/download/storage/v1/b/{bucket}/o/{quoted}?alt=media", span)

    def _ask(self, path: str, span: str) -> tuple[int, bytes]:
        request = urllib.request.Request(self.emulator + path)
        if span:
            request.add_header("Range", span)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()


@contextlib.contextmanager
def google_front(emulator: str, folder: pathlib.Path) -> Iterator[Front]:
    """A proxy before the emulator at this address; its certificate is kept in `folder`."""
    certificate = folder / "google.pem"
    certificate.write_bytes(self_signed(*HOSTS))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    front = Front(emulator, tls)
    handler = type("_Handler", (_Handler,), {"front": front})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    front.environ = {
        "https_proxy": f"http://127.0.0.1:{server.server_address[1]}",
        "CURL_CA_BUNDLE": str(certificate),
        "REQUESTS_CA_BUNDLE": str(certificate),
        "SSL_CERT_FILE": str(certificate),
    }
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield front
    finally:
        server.shutdown()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    front: Front
    protocol_version = "HTTP/1.1"
    _host = ""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_CONNECT(self) -> None:
        """From here on the client talks to a host of Google's, as it believes."""
        self._host = self.path.partition(":")[0]
        self.send_response(200)
        self.end_headers()
        self.connection = self.front.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb")
        self.close_connection = False

    def do_GET(self) -> None:
        """One request of the client's."""
        span = self.headers.get("Range", "")
        self.front.callers.append(self.headers.get("Authorization", "").removeprefix("Bearer "))
        self._send(*self.front.answer(self._host, self.path, span))

    def do_POST(self) -> None:
        """Asks for an access token: a user's own, or that of an account it may act as."""
        self.rfile.read(int(self.headers["Content-Length"]))
        account = self.path.rpartition("/")[2].partition(":")[0]
        token = {"access_token": "user", "expires_in": 3600, "token_type": "Bearer"}
        if self._host == HOSTS[3]:
            token = {"accessToken": account, "expireTime": "2999-01-01T00:00:00Z"}
        self._send(200, json.dumps(token).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
