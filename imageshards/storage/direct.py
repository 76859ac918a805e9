"""Plain reads of objects without the libraries of the stores, which are slow."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Mapping
from typing import Any

import urllib3

from imageshards.storage.base import count

_TIMEOUT_SEC = 20.0
_KEPT = 128  # idle connections
_MAX_ERROR_BYTES = 64 << 10


class DirectReader:
    """Plain GETs of objects, over connections to one host that threads share.

    They take a fraction of the processor time of the stores' libraries. Decoding and encoding an
    image takes 2.5 to 4 ms. Reading the image takes another 1.6 to 2.2 ms with boto3's
    `get_object`, 1.4 to 1.9 ms with google-cloud-storage, and 0.35 to 0.55 ms here. After any
    answer but 200 and 404, a reset or a time-out, the caller asks again through the library, which
    handles retries, back-off and errors. The library also handles proxies, so there is no reader
    behind a proxy.

    `trusted` is a file or folder of trusted certificates; None trusts every server.
    """

    def __init__(self, base_url: str, trusted: str | None = None):
        self.base_url = base_url
        how: dict[str, Any] = {"maxsize": _KEPT, "timeout": _TIMEOUT_SEC, "retries": False}
        if base_url.startswith("https:") and trusted is None:
            how["ssl_context"] = ssl._create_unverified_context()
        elif base_url.startswith("https:"):
            # One context for all connections, as its certificates take 27 ms to load.
            folder = trusted if os.path.isdir(str(trusted)) else None
            file = None if folder else trusted
            how["ssl_context"] = ssl.create_default_context(cafile=file, capath=folder)
        self._host = urllib3.connection_from_url(base_url, **how)

    def get(self, target: str, headers: Mapping[str, str], max_bytes: int | None) -> bytes | None:
        """Returns the body or its first `max_bytes`; None if the library should read instead.

        Raises:
            FileNotFoundError: The answer was 404.
        """
        count(requests=1)
        try:
            # A connection whose answer is read to its end is used again, and closed otherwise.
            with self._host.request("GET", target, headers=headers, preload_content=False) as reply:
                data = reply.read(max_bytes if reply.status == 200 else _MAX_ERROR_BYTES)
        except urllib3.exceptions.HTTPError:
            count(retries=1)
            return None
        if reply.status == 404:
            raise FileNotFoundError(errno.ENOENT, "no such object", target)
        if reply.status != 200:
            if reply.status == 429 or reply.status >= 500:
                count(retries=1)
            return None
        count(bytes_read=len(data))
        return data
