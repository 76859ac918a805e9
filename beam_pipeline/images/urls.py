"""Fetches images from `http://` and `https://` addresses, each once; addresses are never listed.

Each socket connects to an IP address that was checked before. So neither a redirect nor the answer
of a name server leads into the private network of the worker.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import IncompleteRead, LocationValueError, SSLError

from beam_pipeline.options import UrlOptions
from imageshards import __version__
from imageshards.errors import ImageError
from imageshards.storage.base import count

MAX_REDIRECTS = 5
# Seconds before the second attempt; doubled before each further one.
BACKOFF_S = 0.5

_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE_BYTES = 1 << 16
# urllib3 has a pool of connections for each host. More pools than reading threads: a host whose
# pool was dropped and made anew could get more connections than its limit.
_MAX_POOLS = 64
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_HEADERS = {
    "Accept": "image/*,*/*;q=0.5",
    "Accept-Encoding": "identity",
    "User-Agent": f"imageshards/{__version__}",
}


def fetch_url(url: str, max_bytes: int, options: UrlOptions) -> bytes | ImageError:
    """Fetches at most `max_bytes` bytes from an `http://…` or `https://…` address.

    Returns:
        The bytes, or an error with a code: `http_404` (any status but success), `url_timeout`,
            `url_unreachable`, `url_incomplete`, `url_redirects`, `url_invalid`,
            `url_private_address` or `too_many_bytes`.
    """
    request = _current.request = _Request(options)
    attempt = 0
    while True:
        attempt += 1
        try:
            return _follow(url, max_bytes, request)
        except _TryAgainError as e:
            # A random part keeps workers from asking a busy server at the same moment.
            wait_s = max(e.wait_s, BACKOFF_S * 2 ** (attempt - 1) * random.uniform(0.5, 1))
            if attempt > options.url_retries or wait_s >= request.left_s:
                return ImageError(e.code, e.message + f"; tried {attempt} times" * (attempt > 1))
        except ImageError as e:
            return e
        count(retries=1)
        time.sleep(wait_s)


def is_public(address: str) -> bool:
    """Returns whether an IP address is public: not loopback, private, link-local or reserved."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    # An IPv6 address may contain an IPv4 address, to which a gateway would connect.
    if isinstance(ip, ipaddress.IPv6Address):
        nat64 = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None
        inner = ip.ipv4_mapped or ip.sixtofour or nat64
        if inner is not None:
            return is_public(str(inner))
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


class _TryAgainError(ImageError):
    """Failure that may pass: a network error, or a busy server, which may ask to wait."""

    wait_s = 0.0


class _Request:
    """Time limits of the image that a thread fetches, and the connections for the image."""

    def __init__(self, options: UrlOptions):
        self.connect_s, self.read_s, self.total_s = options.url_timeouts
        self.allow_private_hosts = options.allow_private_hosts
        self.pools = _pools_of(options)
        self.deadline = time.monotonic() + self.total_s

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def seconds(self, limit_s: float) -> float:
        """Returns the seconds that a step may take; raises `TimeoutError` if no time is left."""
        if (left_s := self.left_s) <= 0:
            raise TimeoutError("timed out")
        return min(limit_s, left_s)


# `_current.request` is the `_Request` of this thread, as urllib3 passes no value to its sockets.
_current = threading.local()


class _LimitsReads:
    """Socket on which no read lasts beyond the request, however slowly bytes come."""

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        request = _current.request
        self.settimeout(request.seconds(request.read_s))  # type: ignore[attr-defined]
        return super().recv_into(*args, **kwargs)  # type: ignore[misc]


class _Socket(_LimitsReads, socket.socket):
    pass


class _TlsSocket(_LimitsReads, ssl.SSLSocket):
    pass


def _connect(host: str, port: int) -> socket.socket:
    """Connects to the first allowed address that answers; raises `ImageError` if none does."""
    request: _Request = _current.request
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as e:
        reason = getattr(e, "strerror", None) or e
        raise _TryAgainError("url_unreachable", f"{host} has no address ({reason})") from e
    allowed = [a for a in found if request.allow_private_hosts or is_public(str(a[4][0]))]
    if not allowed:
        raise ImageError(
            "url_private_address",
            f"{host} is {found[0][4][0]}, an address that is not of the internet; "
            "--allow_private_hosts permits it",
        )
    failure = OSError()
    for family, kind, protocol, _, address in allowed:
        sock = _Socket(family, kind, protocol)
        try:
            sock.settimeout(request.seconds(request.connect_s))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as e:
            sock.close()
            failure = e
    if isinstance(failure, TimeoutError):
        message = f"{host} let nobody connect for {request.connect_s:g} s"
        raise _TryAgainError("url_timeout", message) from failure
    message = f"{host} cannot be connected to ({failure.strerror or failure})"
    raise _TryAgainError("url_unreachable", message) from failure


class _HttpConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _connect(self.host, self.port)


class _HttpsConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _connect(self.host, self.port)


class _WaitsForTurn:
    def _get_conn(self, timeout: float | None = None) -> Any:
        # Waiting for a free connection must not count as time of the host.
        began = time.monotonic()
        connection = super()._get_conn(timeout)  # type: ignore[misc]
        _current.request.deadline += time.monotonic() - began
        return connection


class _HttpPool(_WaitsForTurn, urllib3.HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(_WaitsForTurn, urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


def _follow(url: str, max_bytes: int, request: _Request) -> bytes:
    for _ in range(MAX_REDIRECTS + 1):
        found = _get(url, max_bytes, request)
        if isinstance(found, bytes):
            return found
        try:
            url = urllib.parse.urljoin(url, found)
        except ValueError as e:
            message = f"{url} redirects to {found[:200]!r}, which is no address ({e})"
            raise ImageError("url_redirects", message) from e
        if not url.lower().startswith(("http://", "https://")):
            raise ImageError("url_redirects", f"it redirects to {url}, which is not http(s)://")
    raise ImageError("url_redirects", f"more than {MAX_REDIRECTS} redirects, the last to {url}")


def _get(url: str, max_bytes: int, request: _Request) -> bytes | str:
    """Returns the bytes at `url`, or the Location that the server redirects to."""
    with _as_image_errors(url, request):
        count(requests=1)
        response = request.pools.request(
            "GET",
            url,
            redirect=False,
            retries=False,
            preload_content=False,
            timeout=urllib3.Timeout(connect=request.connect_s, read=request.read_s),
        )
        try:
            if response.status in _REDIRECTS and "Location" in response.headers:
                return response.headers["Location"]
            status = response.status
            if status != 200:
                reason = f"{url} answered {status} {response.reason or ''}".rstrip()
                if status != 429 and status < 500:
                    raise ImageError(f"http_{status}", reason)
                error = _TryAgainError(f"http_{status}", reason)
                wait = response.headers.get("Retry-After", "")
                error.wait_s = float(wait) if wait.isdecimal() else 0.0
                raise error
            declared = response.length_remaining or 0
            if declared > max_bytes:
                raise ImageError("too_many_bytes", f"{declared} bytes; the limit is {max_bytes}")
            data = bytearray()
            while piece := response.read1(_PIECE_BYTES, decode_content=True):
                data += piece
                count(bytes_read=len(piece))
                if len(data) > max_bytes:
                    raise ImageError("too_many_bytes", f"more bytes than the limit of {max_bytes}")
            return bytes(data)
        finally:
            # A connection is reused only if its answer was read to the end; else `close` ends it.
            response.close()
            response.release_conn()


@contextlib.contextmanager
def _as_image_errors(url: str, request: _Request) -> Iterator[None]:
    try:
        yield
    except (urllib3.exceptions.TimeoutError, TimeoutError) as e:
        what = f"sent nothing for {request.read_s:g} s"
        if request.left_s <= 0:
            what = f"was not there in {request.total_s:g} s"
        raise _TryAgainError("url_timeout", f"{url} {what}") from e
    except SSLError as e:
        raise ImageError("url_unreachable", f"{url} cannot be trusted ({e})") from e
    except (LocationValueError, UnicodeError) as e:
        raise ImageError("url_invalid", f"{url} is no address ({e})") from e
    # A ValueError is that of a parser, which met headers that no standard allows.
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as e:
        if any(isinstance(arg, IncompleteRead) for arg in (e, *e.args)):
            raise _TryAgainError("url_incomplete", f"{url} ended early ({e})") from e
        raise _TryAgainError("url_unreachable", f"{url} cannot be reached ({e})") from e


_pools: dict[UrlOptions, urllib3.PoolManager] = {}
_lock = threading.Lock()


def _pools_of(options: UrlOptions) -> urllib3.PoolManager:
    # All shards of this process share the connections, which would otherwise be made anew.
    with _lock:
        if options not in _pools:
            context = urllib3.util.create_urllib3_context()
            context.sslsocket_class = _TlsSocket
            context.load_default_certs()
            limit = options.url_requests_per_host
            pools = urllib3.PoolManager(
                _MAX_POOLS, _HEADERS, maxsize=limit, block=True, ssl_context=context
            )
            # Pools of these classes connect by `_connect`, which checks each IP address.
            pools.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
            _pools[options] = pools
        return _pools[options]


def _forget_pools() -> None:
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_pools)  # connections belong to the parent process
