"""Buckets of `gs://` in an emulator, by google-cloud-storage.

TensorFlow reads the real ones itself, but cannot be told another address.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from imageshards.errors import UserError
from trainer.dataset.store_base import (
    CONNECT_SEC,
    EMULATOR_VARIABLE,
    PROBE_SEC,
    READ_SEC,
    Found,
    Store,
    Trouble,
    first_line,
    nanoseconds,
)

_KINDS = {401: "credentials", 403: "refused", 404: "missing"}


class GcsStore(Store):
    """A client of the emulator that `STORAGE_EMULATOR_HOST` names; it asks for no credentials."""

    scheme = "gs"

    def __init__(self) -> None:
        super().__init__()
        try:
            import requests
            from google.api_core import exceptions, retry
            from google.auth.credentials import AnonymousCredentials
            from google.auth.exceptions import GoogleAuthError
            from google.cloud import storage
        except ImportError as e:
            raise UserError(
                f"gs:// with {EMULATOR_VARIABLE} needs the package google-cloud-storage, which is "
                "not installed; install it with pip install 'imageshards[gcp]', or unset "
                f"{EMULATOR_VARIABLE}: TensorFlow reads real buckets itself."
            ) from e
        self._exceptions: Any = exceptions
        self.errors = (
            exceptions.GoogleAPICallError,
            exceptions.RetryError,
            GoogleAuthError,
            requests.RequestException,
            ConnectionError,
        )
        self._auth_error = GoogleAuthError
        self._network = (requests.ConnectionError, requests.Timeout, ConnectionError)
        # The project is only of use for making buckets.
        self._client: Any = storage.Client("none", AnonymousCredentials())
        # Waits twice as long each time, with jitter, after 429, 5xx, resets and time-outs.
        lasting = storage.retry.DEFAULT_RETRY.with_timeout(60)
        self._lasting = {"retry": lasting, "timeout": (CONNECT_SEC, READ_SEC)}
        self._hasty: dict[str, Any] = {
            "retry": retry.Retry(retry.if_transient_error, initial=0.3, timeout=PROBE_SEC),
            "timeout": (CONNECT_SEC, PROBE_SEC),
        }

    def look(self, bucket: str, name: str) -> Found:
        blob = self._client.bucket(bucket).blob(name)
        blob.reload(**self._lasting)
        return _found(blob)

    def read(self, bucket: str, name: str, start: int, end: int | None) -> bytes:
        blob = self._client.bucket(bucket).blob(name)
        last = None if end is None else end - 1
        try:
            # Records have checksums of their own, data sets have shards'.
            data = blob.download_as_bytes(start=start, end=last, checksum=None, **self._lasting)
        except self._exceptions.RequestRangeNotSatisfiable:
            return b""
        return bytes(data)

    def names(self, bucket: str, prefix: str, delimiter: str) -> Iterator[Found]:
        listing = self._client.list_blobs(
            bucket, prefix=prefix, delimiter=delimiter or None, **self._lasting
        )
        for page in listing.pages:
            yield from map(_found, page)
        yield from (Found(name, 0, 0) for name in sorted(listing.prefixes))

    def probe(self, bucket: str) -> None:
        next(iter(self._client.list_blobs(bucket, max_results=1, **self._hasty)), None)

    def sort(self, error: BaseException) -> Trouble:
        if isinstance(error, self._exceptions.RetryError) and error.cause is not None:
            error = error.cause
        if isinstance(error, self._network):
            where = os.environ.get(EMULATOR_VARIABLE)
            return Trouble("unreachable", f"{type(error).__name__} at {where}")
        if isinstance(error, self._auth_error):
            return Trouble("credentials", "it asks for some")
        answer = getattr(error, "response", None)
        code = getattr(error, "code", None) or getattr(answer, "status_code", None)
        text = f"it answers {int(code)}" if code else first_line(error)
        return Trouble(_KINDS.get(code or 0, "other"), text)

    def who(self) -> str:
        return "nobody (an emulator is asked without credentials)"

    def remedy(self, kind: str) -> str:
        if kind == "missing":
            return "expected an existing one: fix the name"
        return f"start the emulator that {EMULATOR_VARIABLE} names, or unset the variable"


def _found(blob: Any) -> Found:
    return Found(blob.name, int(blob.size or 0), nanoseconds(blob.updated))
