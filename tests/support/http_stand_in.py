"""The base of all servers that stand in for another one on loopback: threads, requests, faults."""

import contextlib
import datetime
import http.client
import http.server
import ipaddress
import json
import os
import ssl
import sys
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "keep-alive", "expect"}


class Reply(NamedTuple):
    """An answer, whole; a header without a value is not sent."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] | None = None


def json_reply(content: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


class Request(http.server.BaseHTTPRequestHandler):
    """One request (`command`, `path`, `headers`, `body`), and the connection that it came by."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any
    body = b""
    #: Whom a proxy was asked to connect to.
    host = ""

    def _serve(self) -> None:
        self.body = self._read_body()
        stand_in = self.server.stand_in
        stand_in.asked.append((self.command, self.path))
        reply = stand_in.answer(self)
        if reply is not None:
            self.say(*reply)

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(pieces)

    def say(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Answers now: for what says more, or says it slowly."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def start_tls(self, context: ssl.SSLContext) -> None:
        self.connection = context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = _serve


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    stand_in: Any

    def get_request(self) -> Any:
        self.stand_in.connections += 1
        return super().get_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that goes away is no error
            super().handle_error(request, client_address)


class HttpStandIn:
    """A server, while it is entered; its subclass answers.

    With a `certificate`, a file that has its key as well, there is https, too. `asked` has the
    method and path of every request. `ended` is set when the server ends.
    """

    def __init__(self, address="127.0.0.1", certificate=None):
        self.asked: list[tuple[str, str]] = []
        self.connections = 0
        self.ended = threading.Event()
        self._faults: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._servers = [_Server((address, 0), Request)]
        if certificate is not None:
            safe, wrap = _Server((address, 0), Request), server_tls(certificate).wrap_socket
            safe.socket = wrap(safe.socket, server_side=True, do_handshake_on_connect=False)
            self._servers.append(safe)
        for server in self._servers:
            server.stand_in = self
        self.port, *more = (server.server_port for server in self._servers)
        self.url = f"http://{address}:{self.port}"
        self.https_url = f"https://{address}:{more[0]}" if more else ""

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def answer(self, request: Request) -> Reply | None:
        """The answer to a request; None if nothing, or nothing more, is to be said."""
        raise NotImplementedError

    def fail(self, kind: Any, times: int = 1, matching: str = "", method: str = "") -> None:
        """The next requests of a method, with a text in their path, get this from `fault`."""
        self._faults.append({"kind": kind, "times": times, "matching": matching, "method": method})

    def heal(self) -> None:
        self._faults.clear()

    def fault(self, request: Request) -> Any:
        """The kind of fault that is due; None for none."""
        with self._lock:
            for fault in self._faults:
                is_meant = fault["method"] in ("", request.command)
                if fault["times"] and is_meant and fault["matching"] in request.path:
                    fault["times"] -= 1
                    return fault["kind"]
        return None


def ask(port, method, target, headers: Mapping[str, str], body=b"") -> Reply:
    kept = {name: value for name, value in headers.items() if name.lower() not in _HOP_HEADERS}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as there:
        there.request(method, target, body or None, {**kept, "Connection": "close"})
        reply = there.getresponse()
        found = {n: v for n, v in reply.getheaders() if n.lower() not in _HOP_HEADERS}
        if method == "HEAD":
            found["Content-Length"] = reply.getheader("Content-Length") or "0"
        return Reply(reply.status, reply.read(), found)


def server_tls(certificate: str | os.PathLike[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def self_signed(*hosts: str) -> bytes:
    """A key and its certificate, as PEM, for names and this host; only who is told trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    names = x509.SubjectAlternativeName([*(x509.DNSName(host) for host in hosts), here])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, form, plain) + certificate.public_bytes(pem)
