"""Plain GETs of objects, at a fraction of what the stores' own libraries cost.

Beside decoding and encoding an image (2.5 to 4 ms of processor time), reading it by boto3's
`get_object` costs 1.6 to 2.2 ms more, by google-cloud-storage 1.4 to 1.9 ms, this way 0.2 to
0.4 ms (`make bench BENCH_ARGS="--only store_read"`); botocore's signer alone would add 0.1 ms.
What does not go well here (any status but 200 and 404, a reset, a time-out) is asked for again
through the library, which knows about retries, back-off and errors.
"""

from __future__ import annotations

import collections
import datetime
import errno
import hashlib
import hmac
import http.client
import os
import re
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from imageshards.storage.base import COUNTER

TIMEOUT_SEC = 20.0
# Idle connections that are kept for the next request.
_KEPT = 128
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_SCOPE = re.compile(r"^AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+/[^/]+)/aws4_request,")


class DirectReader:
    """Connections to one host, kept from request to request; may be used by many threads.

    Args:
        base_url: Scheme, host and port.
        verify: Whether to check the host's certificate, or by which file of trusted ones.
    """

    def __init__(self, base_url: str, verify: bool | str | None = None):
        parts = urllib.parse.urlsplit(base_url)
        self.host = parts.netloc
        self._tls = _tls(verify) if parts.scheme == "https" else None
        self._idle: collections.deque[http.client.HTTPConnection] = collections.deque()

    def get(self, target: str, headers: Mapping[str, str], max_bytes: int | None) -> bytes | None:
        """The body, or its first `max_bytes`; None if the library should read it instead.

        Raises:
            FileNotFoundError: The answer was 404.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        COUNTER.add(requests=1)
        try:
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            is_whole = max_bytes is None or (response.length or 0) <= max_bytes
            data = response.read() if is_whole else response.read(max_bytes)
        except (OSError, http.client.HTTPException):
            connection.close()
            COUNTER.add(retries=1)
            return None
        if is_whole and len(self._idle) < _KEPT:
            self._idle.append(connection)
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
        if self._tls is None:
            return http.client.HTTPConnection(self.host, timeout=TIMEOUT_SEC)
        return http.client.HTTPSConnection(self.host, timeout=TIMEOUT_SEC, context=self._tls)


def needs_no_proxy(url: str) -> bool:
    """Whether a host is reached without a proxy, which only the libraries know to use."""
    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    if parts.scheme not in proxies and "all" not in proxies:
        return True
    return bool(urllib.request.proxy_bypass(parts.hostname or ""))


def _tls(verify: bool | str | None) -> ssl.SSLContext:
    if verify is False:
        return ssl._create_unverified_context()
    environ = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
    bundle = verify if isinstance(verify, str) else environ
    if bundle is None:
        import certifi

        bundle = certifi.where()
    if os.path.isdir(bundle):
        return ssl.create_default_context(capath=bundle)
    return ssl.create_default_context(cafile=bundle)


def signature_scope(authorization: str) -> str | None:
    """`region/service` of a signature that botocore made; None if it is of another kind."""
    found = _SCOPE.match(authorization)
    return None if found is None else found[1]


class Signer:
    """Signs plain GETs for one host: AWS Signature Version 4, with its key kept for the day.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html

    Args:
        credentials: botocore's, which renew themselves.
        host: The `Host` header.
        scope: `region/service`.
    """

    def __init__(self, credentials: Any, host: str, scope: str):
        self._credentials = credentials
        self._host = host
        self._scope = scope
        self._key: tuple[tuple[str, str], bytes] = (("", ""), b"")

    def headers(self, target: str, now: datetime.datetime | None = None) -> dict[str, str]:
        """The headers of a GET for a path, quoted as it is sent, without a query."""
        time = (now or datetime.datetime.now(datetime.UTC)).strftime("%Y%m%dT%H%M%SZ")
        frozen = self._credentials.get_frozen_credentials()
        headers = {"host": self._host, "x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": time}
        if frozen.token:
            headers["x-amz-security-token"] = frozen.token
        names = ";".join(headers)  # they are in order
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        request = f"GET\n{target}\n\n{lines}\n{names}\n{_EMPTY_SHA256}"
        scope = f"{time[:8]}/{self._scope}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = _hmac(self._day_key(frozen.secret_key, time[:8]), text).hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={frozen.access_key}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}"
        )
        return headers

    def _day_key(self, secret: str, day: str) -> bytes:
        known, key = self._key
        if known != (secret, day):
            key = _hmac(f"AWS4{secret}".encode(), day)
            for part in (*self._scope.split("/"), "aws4_request"):
                key = _hmac(key, part)
            self._key = ((secret, day), key)
        return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
