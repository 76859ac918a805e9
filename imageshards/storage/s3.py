"""Objects of `s3://`: boto3 for everything, and a quicker way for plain reads."""

from __future__ import annotations

import email.utils
import functools
import threading
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import boto3
import botocore
from botocore import exceptions
from botocore.config import Config

from imageshards.storage import parts
from imageshards.storage import settings as storage_settings
from imageshards.storage.base import COUNTER, Stat
from imageshards.storage.http import Getter, is_direct
from imageshards.storage.objects import CONNECTIONS, ObjectStore, Trouble, split_uri
from imageshards.storage.signing import Signer, scope_of

# What one PUT may carry; above it the parts of an upload do.
_MAX_PUT_BYTES = 5 << 30
_DELETED_AT_ONCE = 1000
# Headers of a GET that say nothing a plain read needs.
_PLAIN = {"x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "x-amz-checksum-mode"}

_KINDS = {
    "404": "missing",
    "NoSuchKey": "missing",
    "NoSuchBucket": "missing",
    "403": "refused",
    "AccessDenied": "refused",
    "AllAccessDisabled": "refused",
    "InvalidAccessKeyId": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "ExpiredToken": "credentials",
    "InvalidToken": "credentials",
    "TokenRefreshRequired": "credentials",
    "412": "changed",
    "PreconditionFailed": "changed",
    "409": "changed",
    "ConditionalRequestConflict": "changed",
    "416": "range",
    "InvalidRange": "range",
}


class _Direct(NamedTuple):
    """How objects of a bucket are had without the library."""

    getter: Getter
    above: str
    signer: Signer | None


class S3Backend(ObjectStore):
    """One boto3 client, with settings from where its users have them."""

    scheme = "s3"
    errors = (exceptions.BotoCoreError, exceptions.ClientError)

    def __init__(self) -> None:
        super().__init__()
        settings = storage_settings.s3_settings()
        session = boto3.Session(
            settings.get("access_key_id"),
            settings.get("secret_access_key"),
            settings.get("session_token"),
            settings.get("region_name"),
        )
        self._credentials = session.get_credentials()
        common: dict[str, Any] = {"connect_timeout": 5, "max_pool_connections": CONNECTIONS}
        if self._credentials is None:
            common["signature_version"] = botocore.UNSIGNED
        patient = Config(
            read_timeout=30, retries={"mode": "standard", "total_max_attempts": 6}, **common
        )
        hasty = Config(
            read_timeout=5, retries={"mode": "standard", "total_max_attempts": 2}, **common
        )
        where = {name: settings.get(name) for name in ("endpoint_url", "use_ssl", "verify")}
        if session.region_name is None:
            where["region_name"] = "us-east-1"  # the bucket's own is found by its redirect
        self._client: Any = self._counted(session.client("s3", config=patient, **where))
        self._hasty: Any = self._counted(session.client("s3", config=hasty, **where))
        self._direct: dict[str, _Direct | None] = {}
        self._seen = threading.local()

    def _counted(self, client: Any) -> Any:
        client.meta.events.register("before-send.s3", self._sending)
        return client

    def _sending(self, request: Any, **_: Any) -> None:
        first = b"attempt=1" in _bytes(request.headers.get("amz-sdk-request", b"attempt=1"))
        COUNTER.add(requests=1, retries=0 if first else 1)
        self._seen.request = request

    def who(self) -> str:
        if self._credentials is None:
            return "nobody (no credentials were found)"
        return f"access key {self._credentials.access_key}"

    def remedy(self, kind: str) -> str:
        if kind == "missing":
            return "fix the name, or create the bucket"
        if kind == "unreachable":
            return "fix the endpoint (--s3_endpoint_url, AWS_ENDPOINT_URL) or the network"
        if self._credentials is None:
            return "run `aws configure`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID"
        return "give it rights to list, read and write there, or use another AWS_PROFILE"

    def sort_error(self, error: BaseException) -> Trouble:
        if isinstance(error, exceptions.ClientError):
            code = str(error.response.get("Error", {}).get("Code", ""))
            text = error.response.get("Error", {}).get("Message") or code
            return Trouble(_KINDS.get(code, "other"), f"{code}: {text}")
        if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            return Trouble("credentials", str(error))
        if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
            return Trouble("unreachable", str(error))
        return Trouble("other", str(error))

    def probe(self, bucket: str, prefix: str) -> None:
        self._hasty.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        bucket, key = split_uri(path)
        direct = self._direct.get(bucket)
        if direct is not None:
            target = direct.above + urllib.parse.quote(key, safe="/")
            headers = {} if direct.signer is None else direct.signer.headers(target)
            data = self.straight(path, direct.getter, target, headers, max_bytes)
            if data is not None:
                return data
        return self.asked(path, lambda: self._get(bucket, key, max_bytes))

    def _get(self, bucket: str, key: str, max_bytes: int | None, **only: str) -> bytes:
        body = self._client.get_object(Bucket=bucket, Key=key, **only)["Body"]
        with body:
            data: bytes = body.read(max_bytes)
        if bucket not in self._direct:
            self._learn(bucket, key)
        COUNTER.add(bytes_read=len(data))
        return data

    def read_range(self, path: str, start: int, end: int) -> bytes:
        bucket, key = split_uri(path)
        span = f"bytes={start}-{end - 1}"
        return self.asked(path, lambda: self._get(bucket, key, None, Range=span))

    def _learn(self, bucket: str, key: str) -> None:
        """From a GET that went well: where the bucket's objects are, and how to sign for them."""
        request = self._seen.request
        parts = urllib.parse.urlsplit(request.url)
        quoted = urllib.parse.quote(key, safe="/")
        scope = scope_of(_bytes(request.headers.get("Authorization", "")).decode())
        others = {n.lower() for n in request.headers if n.lower().startswith("x-amz-")} - _PLAIN
        is_plain = not parts.query and not others and parts.path.endswith(quoted)
        self._direct[bucket] = None
        if is_plain and is_direct(request.url) and (self._credentials is None or scope):
            above = parts.path.removesuffix(quoted)
            signer = Signer(self._credentials, parts.netloc, scope) if scope else None
            self._direct[bucket] = _Direct(
                Getter(f"{parts.scheme}://{parts.netloc}"), above, signer
            )

    def stat(self, path: str) -> Stat | None:
        found = self._head(path)
        return None if found is None else _stat(path, found, "ContentLength")

    def _head(self, path: str) -> Any:
        bucket, key = split_uri(path)
        if not key or key.endswith("/"):
            return None
        try:
            return self.asked(path, lambda: self._client.head_object(Bucket=bucket, Key=key))
        except FileNotFoundError:
            return None

    def age_sec(self, path: str) -> float | None:
        found = self._head(path)
        if found is None:
            return None
        headers = found["ResponseMetadata"]["HTTPHeaders"]
        now = email.utils.parsedate_to_datetime(headers["date"])
        return max(0.0, (now - found["LastModified"]).total_seconds())

    def page(
        self, bucket: str, prefix: str, delimiter: str, after: str = "", most: int = 0
    ) -> Iterator[Stat | str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix, Delimiter=delimiter, StartAfter=after,
            MaxKeys=most or self.page_objects,
        )  # fmt: skip
        for page in pages:
            for found in page.get("Contents", ()):
                yield _stat(f"s3://{bucket}/{found['Key']}", found, "Size")
            for below in page.get("CommonPrefixes", ()):
                yield below["Prefix"]

    def write(self, path: str, data: bytes) -> Stat:
        return self._put(path, data, len(data))

    def upload(self, local_path: str, path: str) -> Stat:
        with open(local_path, "rb") as file:
            size_bytes = file.seek(0, 2)
            file.seek(0)
            if size_bytes <= _MAX_PUT_BYTES:
                return self._put(path, file, size_bytes)
            bucket, key = split_uri(path)
            self.asked(path, lambda: self._client.upload_fileobj(file, bucket, key))
        COUNTER.add(bytes_written=size_bytes)
        found = self.stat(path)
        if found is None:
            raise FileNotFoundError(2, "the object is gone", path)
        return found

    def upload_stream(self, stream: BinaryIO, path: str) -> Stat:
        bucket, key = split_uri(path)
        asked = functools.partial(self.asked, path)
        size_bytes, done = parts.send(
            self._client, asked, stream, self.part_bytes, Bucket=bucket, Key=key
        )
        return _written(path, size_bytes, done)

    def drop_unfinished(self, folder: str) -> None:
        bucket, name = split_uri(folder)
        self.asked(folder, lambda: parts.drop(self._client, bucket, name.rstrip("/") + "/"))

    def _put(self, path: str, body: Any, size_bytes: int, **only: str) -> Stat:
        bucket, key = split_uri(path)
        done = self.asked(
            path, lambda: self._client.put_object(Bucket=bucket, Key=key, Body=body, **only)
        )
        COUNTER.add(bytes_written=size_bytes)
        return _written(path, size_bytes, done)

    def create(self, path: str, data: bytes) -> str | None:
        return self._put_if(path, data, IfNoneMatch="*")

    def replace_if(self, path: str, data: bytes, version: str) -> str | None:
        return self._put_if(path, data, IfMatch=version)

    def _put_if(self, path: str, data: bytes, **only: str) -> str | None:
        bucket, key = split_uri(path)
        try:
            done = self._client.put_object(Bucket=bucket, Key=key, Body=data, **only)
        except self.errors as e:
            trouble = self.sort_error(e)
            if trouble.kind not in ("changed", "missing"):
                raise self._error(path, trouble) from e
            meta = getattr(e, "response", {}).get("ResponseMetadata", {})
            if trouble.kind == "missing" or not self.agreed(
                path, data, meta.get("RetryAttempts", 0)
            ):
                self.asked(path, lambda: self.probe(bucket, key)) if "IfMatch" not in only else None
                return None
            found = self.stat(path)
            return None if found is None else found.version
        COUNTER.add(bytes_written=len(data))
        return str(done["ETag"])

    def delete(self, paths: Iterable[str]) -> None:
        waiting: dict[str, list[str]] = {}
        for path in paths:
            bucket, key = split_uri(path)
            keys = waiting.setdefault(bucket, [])
            keys.append(key)
            if len(keys) == _DELETED_AT_ONCE:
                self._delete(bucket, waiting.pop(bucket))
        for bucket, keys in waiting.items():
            self._delete(bucket, keys)

    def _delete(self, bucket: str, keys: list[str]) -> None:
        path = f"s3://{bucket}/{keys[0]}"
        if len(keys) == 1:
            self.asked(path, lambda: self._client.delete_object(Bucket=bucket, Key=keys[0]))
            return
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        done = self.asked(path, lambda: self._client.delete_objects(Bucket=bucket, Delete=wanted))
        for failed in done.get("Errors", ()):
            if failed.get("Code") != "NoSuchKey":
                raise OSError(5, str(failed.get("Message")), f"s3://{bucket}/{failed.get('Key')}")

    def copy(self, source: str, target: str) -> None:
        (from_bucket, from_key), (bucket, key) = split_uri(source), split_uri(target)
        there = {"Bucket": from_bucket, "Key": from_key}
        ask = self._client.copy_object
        try:
            ask(Bucket=bucket, Key=key, CopySource=there)
        except self.errors as e:
            trouble = self.sort_error(e)
            if not trouble.text.startswith(("InvalidRequest", "EntityTooLarge")):
                raise self._error(source, trouble) from e
            # Above 5 GiB a copy is made of parts.
            self.asked(source, lambda: self._client.copy(there, bucket, key))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _written(path: str, size_bytes: int, done: Any) -> Stat:
    """What the answer to a write says of the object."""
    written = email.utils.parsedate_to_datetime(done["ResponseMetadata"]["HTTPHeaders"]["date"])
    return Stat(path, size_bytes, int(written.timestamp()) * 10**9, done["ETag"])


def _stat(path: str, found: Any, size: str) -> Stat:
    mtime_ns = int(found["LastModified"].timestamp() * 1e9)
    return Stat(path, found[size], mtime_ns, found["ETag"])
