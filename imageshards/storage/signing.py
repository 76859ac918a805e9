"""Signs plain GETs of S3 objects: AWS Signature Version 4, with its key kept for the day.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
from typing import Any, NamedTuple

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_SCOPE = re.compile(r"^AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request,")


class Scope(NamedTuple):
    """What a signature is good for."""

    region: str
    service: str


def scope_of(authorization: str) -> Scope | None:
    """The scope of a signature that a library made; None if it is of another kind."""
    found = _SCOPE.match(authorization)
    return None if found is None else Scope(found[1], found[2])


class Signer:
    """Signs for one host; may be used by many threads.

    Args:
        credentials: botocore's, which renew themselves.
        host: The `Host` header.
        scope: Region and service.
    """

    def __init__(self, credentials: Any, host: str, scope: Scope):
        self._credentials = credentials
        self._host = host
        self._scope = scope
        self._key: tuple[tuple[str, str], bytes] = (("", ""), b"")

    def headers(self, target: str, now: datetime.datetime | None = None) -> dict[str, str]:
        """The headers of a GET for a path, quoted as it is sent, without a query."""
        now = now or datetime.datetime.now(datetime.UTC)
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        frozen = self._credentials.get_frozen_credentials()
        headers = {
            "host": self._host,
            "x-amz-content-sha256": _EMPTY_SHA256,
            "x-amz-date": stamp,
        }
        if frozen.token:
            headers["x-amz-security-token"] = frozen.token
        names = ";".join(headers)  # they are in order
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        request = f"GET\n{target}\n\n{lines}\n{names}\n{_EMPTY_SHA256}"
        scope = f"{stamp[:8]}/{self._scope.region}/{self._scope.service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = _hmac(self._day_key(frozen.secret_key, stamp[:8]), text).hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={frozen.access_key}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}"
        )
        return headers

    def _day_key(self, secret: str, day: str) -> bytes:
        known, key = self._key
        if known != (secret, day):
            key = _hmac(f"AWS4{secret}".encode(), day)
            for part in (self._scope.region, self._scope.service, "aws4_request"):
                key = _hmac(key, part)
            self._key = ((secret, day), key)
        return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
