"""Objects of `gs://`, through google-cloud-storage; `DirectReader` makes the plain reads."""

from __future__ import annotations

import datetime
import email.utils
import io
import os
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from google.cloud.storage.retry import DEFAULT_RETRY

from imageshards.errors import StorageError
from imageshards.storage.base import Stat, count
from imageshards.storage.direct import DirectReader
from imageshards.storage.objects import (
    ANSWER_SEC,
    CONNECT_SEC,
    CONNECTIONS,
    HASTY_SEC,
    ObjectStore,
    StoreFailure,
    split_uri,
)

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_KEY_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_CONTENT_TYPE = "application/octet-stream"
_TIMEOUT_SEC = (CONNECT_SEC, ANSWER_SEC)
_LISTED = "items(name,size,updated,generation),prefixes,nextPageToken"
_KINDS = {404: "missing", 403: "refused", 401: "credentials", 412: "changed", 416: "range"}


class _Session(google.auth.transport.requests.AuthorizedSession):
    """An HTTP session that counts requests, and calls `before` with the method of each first.

    `answered.date` is the store's clock in the last answer that a thread got.
    """

    def __init__(self, credentials: Any, before: Callable[[str], None]):
        super().__init__(credentials)
        self._before = before
        self.answered = threading.local()
        # No retries here, because the library's own retries are the ones that are counted.
        adapter = requests.adapters.HTTPAdapter(
            pool_connections=4, pool_maxsize=CONNECTIONS, max_retries=0
        )
        self.mount("https://", adapter)
        self.mount("http://", adapter)

    def request(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self._before(method)
        count(requests=1)
        reply = super().request(method, *args, **kwargs)
        self.answered.date = reply.headers.get("date")
        return reply


class GcsBackend(ObjectStore):
    """A client of Google Cloud Storage, with the credentials that Google's libraries find.

    Args:
        settings: `no_auth` and `impersonate_service_account`, both optional.
    """

    scheme = "gs"
    deleted_at_once = 100
    errors = (
        api_exceptions.GoogleAPICallError,
        api_exceptions.RetryError,
        google.auth.exceptions.GoogleAuthError,
        gcs_exceptions.InvalidResponse,
        gcs_exceptions.DataCorruption,
        requests.RequestException,
        ConnectionError,
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._credentials = find_credentials(settings)
        self._session = _Session(self._credentials, self._before_request)
        # Only the creation of buckets needs the name of a project.
        self._client: Any = gcs.Client("none", self._credentials, self._session)
        patient = _retry(initial=0.5, maximum=16.0, timeout=60.0)
        self._options: dict[str, Any] = {"retry": patient, "timeout": _TIMEOUT_SEC}
        hasty = _retry(initial=0.3, timeout=HASTY_SEC)
        self._hasty_options = {"retry": hasty, "timeout": (CONNECT_SEC, HASTY_SEC)}
        self._base = self._client._connection.get_api_base_url_for_mtls()
        trusted = os.environ.get("REQUESTS_CA_BUNDLE") or requests.utils.DEFAULT_CA_BUNDLE_PATH
        proxies = requests.utils.get_environ_proxies(self._base, None)
        proxy = requests.utils.select_proxy(self._base, proxies)
        self._direct = None if proxy else DirectReader(self._base, trusted)
        self._refresh = google.auth.transport.requests.Request(requests.Session())

    def account(self) -> str | None:
        if isinstance(self._credentials, google.auth.credentials.AnonymousCredentials):
            return None
        name = getattr(self._credentials, "service_account_email", None)
        return f"the service account {name}" if name else "the credentials in use"

    def remedy(self, kind: str) -> str:
        if kind == "unreachable":
            return "fix the network, its proxy (https_proxy), or STORAGE_EMULATOR_HOST"
        if self.account() is None or kind == "credentials":
            login = "run `gcloud auth application-default login`"
            return f"{login}, or set {_KEY_VARIABLE} to a key file"
        return "give it the role Storage Object Admin there (to read only, Storage Object Viewer)"

    def classify_error(self, error: BaseException) -> StoreFailure:
        if isinstance(error, api_exceptions.RetryError) and error.cause is not None:
            error = error.cause
        if isinstance(error, google.auth.exceptions.GoogleAuthError):
            return StoreFailure("credentials", str(error))
        if isinstance(error, requests.RequestException | ConnectionError):
            return StoreFailure("unreachable", str(error))
        text = getattr(error, "message", None) or str(error)
        return StoreFailure(_KINDS.get(_code(error), "other"), f"{_code(error)}: {text}")

    def probe(self, bucket: str, prefix: str) -> None:
        asked = self._client.list_blobs(
            bucket, prefix=prefix, max_results=1, fields=_LISTED, **self._hasty_options
        )
        next(asked, None)

    def _blob(self, path: str) -> Any:
        bucket, name = split_uri(path)
        return self._client.bucket(bucket).blob(name)

    def direct_get(self, path: str, max_bytes: int | None) -> bytes | None:
        if self._direct is None:
            return None
        bucket, name = split_uri(path)
        target = f"/download/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}?alt=media"
        headers: dict[str, str] = {}
        if self.account() is not None:
            with self.translate_errors(path):
                url = self._base + target
                self._credentials.before_request(self._refresh, "GET", url, headers)
        return self._direct.get(target, headers, max_bytes)

    def get(
        self, path: str, start: int | None = None, end: int | None = None, version: str = ""
    ) -> bytes:
        data: bytes = self._blob(path).download_as_bytes(
            start=start, end=None if end is None else end - 1,
            if_generation_match=int(version) if version else None,
            checksum=None,  # Records and shards have their own checksums.
            **self._options,
        )  # fmt: skip
        count(bytes_read=len(data))
        return data

    def head(self, path: str) -> tuple[Stat, float]:
        blob = self._blob(path)
        blob.reload(**self._options)
        now = email.utils.parsedate_to_datetime(self._session.answered.date)
        return _stat(path, blob._properties), now.timestamp()

    def list_pages(self, bucket: str, prefix: str, delimiter: str) -> Iterator[list[Stat]]:
        found = self._client.list_blobs(
            bucket, prefix=prefix, delimiter=delimiter or None, page_size=self.page_objects,
            fields=_LISTED, **self._options,
        )  # fmt: skip
        for page in found.pages:
            objects = [_stat(f"gs://{bucket}/{o.name}", o._properties) for o in page]
            shared = (f"gs://{bucket}/{prefix}" for prefix in page.prefixes)
            yield objects + [Stat(path, is_folder=True) for path in shared]

    def put(
        self, path: str, body: bytes | BinaryIO, size: int, version: str | None, *, hasty: bool
    ) -> Stat:
        blob = self._blob(path)
        blob.upload_from_file(
            io.BytesIO(body) if isinstance(body, bytes) else body,
            size=size,
            content_type=_CONTENT_TYPE,
            # The generation 0 means a missing object.
            if_generation_match=None if version == "" else int(version or 0),
            **(self._hasty_options if hasty else self._options),
        )
        count(bytes_written=size)
        return Stat(path, size, int(blob.updated.timestamp() * 1e9), str(blob.generation))

    def delete_objects(self, bucket: str, names: Sequence[str]) -> None:
        # The library neither retries a batch nor ignores the missing objects in it.
        def delete_all() -> None:
            with self._client.batch(raise_exception=False) as batch:
                for name in names:
                    self._client.bucket(bucket).blob(name).delete(timeout=_TIMEOUT_SEC)
            for reply in batch._responses:
                if not reply.ok and reply.status_code != 404:
                    raise api_exceptions.from_http_response(reply)

        self._options["retry"](delete_all)()

    def copy(self, source: str, target: str) -> None:
        made, blob = self._blob(target), self._blob(source)
        token = None
        with self.translate_errors(source):
            self._call.path = target  # A copy needs the lease of the folder it writes to.
            while True:  # Large objects, and copies to another region, take several calls.
                token, _, _ = made.rewrite(blob, token, **self._options)
                if token is None:
                    return


def find_credentials(settings: Mapping[str, Any]) -> Any:
    """Returns the credentials that Google's libraries find, or anonymous ones.

    Raises:
        StorageError: The environment names a key file that does not exist.
    """
    if os.environ.get("STORAGE_EMULATOR_HOST") or settings.get("no_auth"):
        return google.auth.credentials.AnonymousCredentials()
    key = os.environ.get(_KEY_VARIABLE)
    if key and not os.path.isfile(key):
        raise StorageError(
            f"gs:// cannot be used: {_KEY_VARIABLE} is {key!r}, where there is no file",
            remedy="set it to the key file of a service account, or unset it",
        )
    # Three attempts to reach a metadata server, as is usual, may take 20 s.
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    try:
        found, _ = google.auth.default(list(_SCOPES))
    except google.auth.exceptions.DefaultCredentialsError:
        return google.auth.credentials.AnonymousCredentials()
    if account := settings.get("impersonate_service_account"):
        from google.auth import impersonated_credentials

        *delegates, target = str(account).split(",")
        return impersonated_credentials.Credentials(
            found, target, list(_SCOPES), delegates=delegates
        )
    return found


def _retry(**times: float) -> Any:
    """Returns the library's own policy of retries with other times, counting each retry."""
    return retry.Retry(DEFAULT_RETRY._predicate, on_error=lambda _: count(retries=1), **times)


def _code(error: Any) -> int:
    response = getattr(error, "response", None)
    code = getattr(error, "code", None) or getattr(response, "status_code", None)
    return int(code) if isinstance(code, int) else 0


def _stat(path: str, found: Any) -> Stat:
    updated = datetime.datetime.fromisoformat(found["updated"])
    return Stat(path, int(found["size"]), int(updated.timestamp() * 1e9), found["generation"])
