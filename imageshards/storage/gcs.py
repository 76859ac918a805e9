"""Objects of `gs://`: google-cloud-storage for everything, and a quicker way for plain reads."""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import functools
import os
import threading
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import google.auth
import google.auth.credentials
import google.auth.exceptions
import google.auth.transport.requests
import requests
import requests.adapters
from google.api_core import exceptions as api_exceptions
from google.api_core import retry
from google.cloud import storage as gcs
from google.cloud.storage import exceptions as gcs_exceptions

from imageshards.storage.base import COUNTER, Stat
from imageshards.storage.credentials import find_credentials as find_credentials
from imageshards.storage.http import Getter, is_direct
from imageshards.storage.objects import CONNECTIONS, ObjectStore, Trouble, split_uri

_TIMEOUT_SEC = (5.0, 30.0)  # to connect, to answer
_DELETED_AT_ONCE = 100
_LISTED = "items(name,size,updated,generation),prefixes,nextPageToken"
_NETWORK = (
    ConnectionError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
)
_KINDS = {404: "missing", 403: "refused", 401: "credentials", 412: "changed", 416: "range"}


class _Session(google.auth.transport.requests.AuthorizedSession):
    """Counts what is sent, and keeps as many connections as there are threads."""

    def __init__(self, credentials: Any):
        super().__init__(credentials)
        adapter = requests.adapters.HTTPAdapter(
            pool_connections=4, pool_maxsize=CONNECTIONS, max_retries=0
        )
        self.mount("https://", adapter)
        self.mount("http://", adapter)

    def request(self, *args: Any, **kwargs: Any) -> Any:
        COUNTER.add(requests=1)
        return super().request(*args, **kwargs)


class GcsBackend(ObjectStore):
    """One client, with the credentials that Google's libraries find."""

    scheme = "gs"
    errors = (
        api_exceptions.GoogleAPICallError,
        api_exceptions.RetryError,
        google.auth.exceptions.GoogleAuthError,
        gcs_exceptions.InvalidResponse,
        gcs_exceptions.DataCorruption,
        requests.RequestException,
        ConnectionError,
    )

    def __init__(self) -> None:
        super().__init__()
        self._credentials = find_credentials()
        self._session = _Session(self._credentials)
        # The project is only of use for making buckets, which nobody does here.
        self._client: Any = gcs.Client("none", self._credentials, self._session)
        self._retry: Any = retry.Retry(
            _may_pass, initial=0.5, maximum=16.0, timeout=60.0, on_error=self._again
        )
        self._again_now = threading.local()
        self._base = self._client._connection.get_api_base_url_for_mtls()
        self._direct = Getter(self._base) if is_direct(self._base) else None
        self._refresh = google.auth.transport.requests.Request(requests.Session())
        self._lasting: dict[str, Any] = {"retry": self._retry, "timeout": _TIMEOUT_SEC}

    def _again(self, error: Exception) -> None:
        if _may_pass(error):
            COUNTER.add(retries=1)
            self._again_now.count = getattr(self._again_now, "count", 0) + 1

    @property
    def _is_anonymous(self) -> bool:
        return isinstance(self._credentials, google.auth.credentials.AnonymousCredentials)

    def who(self) -> str:
        if self._is_anonymous:
            return "nobody (no credentials were found)"
        name = getattr(self._credentials, "service_account_email", None)
        return f"the service account {name}" if name else "the credentials in use"

    def remedy(self, kind: str) -> str:
        if kind == "missing":
            return "fix the name, or create the bucket"
        if kind == "unreachable":
            return "fix the network, or STORAGE_EMULATOR_HOST if an emulator is meant"
        if self._is_anonymous or kind == "credentials":
            return (
                "run `gcloud auth application-default login`, or set "
                "GOOGLE_APPLICATION_CREDENTIALS to a key file"
            )
        return "give it the role Storage Object Admin there, or use other credentials"

    def sort_error(self, error: BaseException) -> Trouble:
        if isinstance(error, api_exceptions.RetryError) and error.cause is not None:
            error = error.cause
        if isinstance(error, google.auth.exceptions.GoogleAuthError):
            return Trouble("credentials", str(error))
        if isinstance(error, _NETWORK):
            return Trouble("unreachable", _first_line(error))
        code = _code(error)
        return Trouble(_KINDS.get(code, "other"), f"{code}: {_first_line(error)}")

    def probe(self, bucket: str, prefix: str) -> None:
        url = f"{self._base}/storage/v1/b/{bucket}/o"
        asked = {"prefix": prefix, "maxResults": "1", "fields": "items(name)"}
        hasty = retry.Retry(_may_pass, initial=0.3, timeout=5.0, on_error=self._again)
        hasty(self._json)("GET", url, asked, (5.0, 5.0))

    def _json(self, method: str, url: str, asked: Any, timeout: Any = _TIMEOUT_SEC) -> Any:
        reply = self._session.request(method, url, params=asked, timeout=timeout)
        if not reply.ok:
            raise api_exceptions.from_http_response(reply)
        return reply

    def _blob(self, path: str) -> Any:
        bucket, name = split_uri(path)
        return self._client.bucket(bucket).blob(name)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        if self._direct is not None:
            bucket, name = split_uri(path)
            quoted = urllib.parse.quote(name, safe="")
            target = f"/download/storage/v1/b/{bucket}/o/{quoted}?alt=media"
            headers: dict[str, str] = {}
            if not self._is_anonymous:
                url = self._base + target
                self.asked(
                    path,
                    lambda: self._credentials.before_request(self._refresh, "GET", url, headers),
                )
            data = self.straight(path, self._direct, target, headers, max_bytes)
            if data is not None:
                return data
        return self._read(path, {} if max_bytes is None else {"end": max_bytes - 1})

    def _read(self, path: str, span: dict[str, int]) -> bytes:
        blob = self._blob(path)
        try:
            data: bytes = self.asked(
                path, lambda: blob.download_as_bytes(checksum=None, **span, **self._lasting)
            )
        except OSError as e:
            if "416" in str(e):  # a range of an object that is empty
                return b""
            raise
        COUNTER.add(bytes_read=len(data))
        return data

    def read_range(self, path: str, start: int, end: int) -> bytes:
        return self._read(path, {"start": start, "end": end - 1})

    def stat(self, path: str) -> Stat | None:
        found = self._look(path)
        return None if found is None else _stat(path, found.json())

    def _look(self, path: str) -> Any:
        bucket, name = split_uri(path)
        if not name or name.endswith("/"):
            return None
        quoted = urllib.parse.quote(name, safe="")
        url = f"{self._base}/storage/v1/b/{bucket}/o/{quoted}"
        asked = {"fields": "name,size,updated,generation"}
        try:
            return self.asked(path, lambda: self._retry(self._json)("GET", url, asked))
        except FileNotFoundError:
            return None

    def age_sec(self, path: str) -> float | None:
        found = self._look(path)
        if found is None:
            return None
        now = email.utils.parsedate_to_datetime(found.headers["date"]).timestamp()
        return max(0.0, now - _stat(path, found.json()).mtime_ns / 1e9)

    def page(
        self, bucket: str, prefix: str, delimiter: str, after: str = "", most: int = 0
    ) -> Iterator[Stat | str]:
        url = f"{self._base}/storage/v1/b/{bucket}/o"
        asked = {"prefix": prefix, "delimiter": delimiter, "fields": _LISTED}
        asked |= {"startOffset": after, "maxResults": str(most or self.page_objects)}
        asked = {name: value for name, value in asked.items() if value}
        while True:
            page = self._retry(self._json)("GET", url, asked).json()
            for found in page.get("items", ()):
                yield _stat(f"gs://{bucket}/{found['name']}", found)
            yield from page.get("prefixes", ())
            if not page.get("nextPageToken"):
                return
            asked["pageToken"] = page["nextPageToken"]

    def write(self, path: str, data: bytes) -> Stat:
        blob = self._blob(path)
        self.asked(path, lambda: blob.upload_from_string(data, _TYPE, **self._lasting))
        COUNTER.add(bytes_written=len(data))
        return _of_blob(path, blob)

    def upload(self, local_path: str, path: str) -> Stat:
        blob = self._blob(path)
        self.asked(path, lambda: blob.upload_from_filename(local_path, _TYPE, **self._lasting))
        COUNTER.add(bytes_written=os.path.getsize(local_path))
        return _of_blob(path, blob)

    def upload_stream(self, stream: BinaryIO, path: str) -> Stat:
        blob = self._blob(path)
        blob.chunk_size = self.part_bytes
        self.asked(path, lambda: blob.upload_from_file(stream, content_type=_TYPE, **self._lasting))
        COUNTER.add(bytes_written=blob.size)
        return _of_blob(path, blob)

    def create(self, path: str, data: bytes) -> str | None:
        return self._write_if(path, data, 0)

    def replace_if(self, path: str, data: bytes, version: str) -> str | None:
        return self._write_if(path, data, int(version))

    def _write_if(self, path: str, data: bytes, generation: int) -> str | None:
        blob = self._blob(path)
        self._again_now.count = 0
        try:
            blob.upload_from_string(data, _TYPE, if_generation_match=generation, **self._lasting)
        except self.errors as e:
            trouble = self.sort_error(e)
            if trouble.kind != "changed" and not (trouble.kind == "missing" and generation):
                raise self._error(path, trouble) from e
            if not self.agreed(path, data, self._again_now.count):
                return None
            found = self.stat(path)
            return None if found is None else found.version
        COUNTER.add(bytes_written=len(data))
        return str(blob.generation)

    def delete(self, paths: Iterable[str]) -> None:
        waiting: list[str] = []
        for path in paths:
            waiting.append(path)
            if len(waiting) == _DELETED_AT_ONCE:
                self._delete(waiting)
                waiting = []
        self._delete(waiting)

    def _delete(self, paths: list[str]) -> None:
        if len(paths) > 1:
            blobs = [self._blob(path) for path in paths]

            def delete_all() -> None:
                with self._client.batch(raise_exception=False) as batch:
                    for blob in blobs:
                        blob.delete(timeout=_TIMEOUT_SEC)
                for reply in batch._responses:
                    if not reply.ok and reply.status_code != 404:
                        raise api_exceptions.from_http_response(reply)

            self.asked(paths[0], lambda: self._retry(delete_all)())
            return
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.asked(path, functools.partial(self._blob(path).delete, **self._lasting))

    def copy(self, source: str, target: str) -> None:
        made, blob = self._blob(target), self._blob(source)
        token = None
        while True:  # large objects, and those that go to another region, take several calls
            rewrite = functools.partial(made.rewrite, blob, token, **self._lasting)
            token, _, _ = self.asked(source, rewrite)
            if token is None:
                return


_TYPE = "application/octet-stream"


def _may_pass(error: Any) -> bool:
    """Whether the same request may go well in a while."""
    if isinstance(error, google.auth.exceptions.TransportError) and error.args:
        error = error.args[0]
    code = _code(error)
    return isinstance(error, _NETWORK) or code in (408, 429) or code >= 500


def _code(error: Any) -> int:
    response = getattr(error, "response", None)
    code = getattr(error, "code", None) or getattr(response, "status_code", None)
    return int(code) if isinstance(code, int) else 0


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "message", None) or error)
    return next(iter(text.splitlines()), type(error).__name__)


def _stat(path: str, found: Any) -> Stat:
    # Python 3.10 does not read the Z of "2026-11-21T12:47:40.455Z".
    updated = datetime.datetime.fromisoformat(found["updated"].removesuffix("Z") + "+00:00")
    return Stat(path, int(found["size"]), int(updated.timestamp() * 1e9), found["generation"])


def _of_blob(path: str, blob: Any) -> Stat:
    mtime_ns = int(blob.updated.timestamp() * 1e9)
    return Stat(path, blob.size, mtime_ns, str(blob.generation))
