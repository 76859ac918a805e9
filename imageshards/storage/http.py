"""GETs over connections that are kept, at a fraction of what the stores' libraries cost.

Beside decoding and encoding an image (2.5 to 4 ms of processor time), reading it by boto3's
`get_object` costs 1.6 to 2.2 ms more, by google-cloud-storage 1.4 to 1.9 ms, this way 0.2 to
0.4 ms (`make bench BENCH_ARGS="--only store_read"`). So what goes well goes this way; whatever
does not (any status but 200 and 404, a reset, a time-out, a redirect) is asked for again by the
library, which knows about retries, back-off and errors.
"""

from __future__ import annotations

import collections
import errno
import http.client
import os
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping

from imageshards.storage.base import COUNTER

TIMEOUT_SEC = 20.0
# Connections that wait for the next request; more may be at work.
_KEPT = 128


class Getter:
    """Connections to one host; may be used by many threads.

    Args:
        base_url: Scheme, host and port.
    """

    def __init__(self, base_url: str):
        parts = urllib.parse.urlsplit(base_url)
        self.host = parts.netloc
        self._is_https = parts.scheme == "https"
        self._tls = _tls() if self._is_https else None
        self._waiting: collections.deque[http.client.HTTPConnection] = collections.deque()

    def get(self, target: str, headers: Mapping[str, str], max_bytes: int | None) -> bytes | None:
        """The body, or its first `max_bytes`; None if it should be asked for in another way.

        Raises:
            FileNotFoundError: The answer was 404.
        """
        try:
            connection = self._waiting.pop()
        except IndexError:
            connection = self._connect()
        COUNTER.add(requests=1)
        try:
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            whole = max_bytes is None or (response.length or 0) <= max_bytes
            data = response.read() if whole else response.read(max_bytes)
        except (OSError, http.client.HTTPException):
            connection.close()
            COUNTER.add(retries=1)
            return None
        if whole and len(self._waiting) < _KEPT:
            self._waiting.append(connection)
        else:
            connection.close()
        if response.status == 404:
            raise FileNotFoundError(errno.ENOENT, "no such object", target)
        if response.status != 200:
            if response.status == 429 or response.status >= 500:
                COUNTER.add(retries=1)
            return None
        COUNTER.add(bytes_read=len(data))
        return data

    def _connect(self) -> http.client.HTTPConnection:
        if self._is_https:
            return http.client.HTTPSConnection(self.host, timeout=TIMEOUT_SEC, context=self._tls)
        return http.client.HTTPConnection(self.host, timeout=TIMEOUT_SEC)


def is_direct(url: str) -> bool:
    """Whether a host is reached without a proxy, which only the libraries know to use."""
    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    if parts.scheme not in proxies and "all" not in proxies:
        return True
    return bool(urllib.request.proxy_bypass(parts.hostname or ""))


def _tls() -> ssl.SSLContext:
    bundle = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
    if bundle is None:
        import certifi

        bundle = certifi.where()
    if os.path.isdir(bundle):
        return ssl.create_default_context(capath=bundle)
    return ssl.create_default_context(cafile=bundle)
