"""Objects of `s3://`, through boto3; `DirectReader` makes the plain reads."""

from __future__ import annotations

import email.utils
import errno
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import boto3
import botocore
import urllib3
from boto3.s3.transfer import TransferConfig
from botocore import exceptions
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

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

# S3's limit for one PUT; boto3 sends a larger file in parts.
_MAX_PUT_BYTES = 5 << 30
# No threads: `translate_errors` notes the written path for the calling thread alone.
_IN_PARTS = TransferConfig(use_threads=False)
# Attempts of a GET whose answer breaks off, since botocore retries only until an answer begins.
_TRIES = 5
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/s3/aws4_request,")
_KINDS = {
    "missing": ("404", "NoSuchKey", "NoSuchBucket"),
    "refused": ("403", "AccessDenied", "AllAccessDisabled"),
    "credentials": (
        "401", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
        "TokenRefreshRequired",
    ),
    "changed": ("412", "PreconditionFailed", "409", "ConditionalRequestConflict"),
    "range": ("416", "InvalidRange"),
}  # fmt: skip
_KIND_OF = {code: kind for kind, codes in _KINDS.items() for code in codes}


class _Direct(NamedTuple):
    """The way to read a bucket's objects without the library."""

    reader: DirectReader
    above: str  # the path of a URL up to the object's key
    region: str | None  # of signatures; None without credentials


class S3Backend(ObjectStore):
    """A boto3 client. The given settings come before boto3's own.

    Args:
        settings: `access_key_id`, `secret_access_key`, `session_token`, `region_name`,
            `endpoint_url`, `use_ssl` and `verify`, all optional.
    """

    scheme = "s3"
    errors = (exceptions.BotoCoreError, exceptions.ClientError)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        try:
            session = boto3.Session(
                settings.get("access_key_id"),
                settings.get("secret_access_key"),
                settings.get("session_token"),
                settings.get("region_name"),
            )
            self._credentials = session.get_credentials()
            # A missing setting is left out, because boto3 takes `use_ssl=None` for no TLS.
            names = {"endpoint_url", "use_ssl", "verify"} & settings.keys()
            where = {name: settings[name] for name in names}
            self._verify = where.get("verify")
            if self._verify is False:  # The user asked for it and needs no warning.
                urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            if session.region_name is None:
                where["region_name"] = "us-east-1"  # S3 redirects to the bucket's region.
            self._client = self._new_client(session, where, ANSWER_SEC, tries=6)
            self._hasty_client = self._new_client(session, where, HASTY_SEC, tries=2)
        except (exceptions.BotoCoreError, ValueError) as e:
            raise StorageError(
                f"s3:// cannot be used with the settings of boto3 ({e})",
                remedy="fix AWS_PROFILE, AWS_ENDPOINT_URL or the files in ~/.aws",
            ) from e
        self._direct: dict[str, _Direct | None] = {}

    def _new_client(self, session: Any, where: Any, read_sec: float, tries: int) -> Any:
        config = Config(
            connect_timeout=CONNECT_SEC,
            read_timeout=read_sec,
            max_pool_connections=CONNECTIONS,
            # Exponential back-off, with jitter, after 429, 5xx, resets and time-outs.
            retries={"mode": "standard", "total_max_attempts": tries},
            # Without credentials, public buckets can still be read.
            signature_version=None if self._credentials else botocore.UNSIGNED,
        )
        client = session.client("s3", config=config, **where)
        client.meta.events.register("before-send.s3", self._note_request)
        return client

    def _note_request(self, request: Any, **_: Any) -> None:
        is_first = "attempt=1" in _text(request.headers.get("amz-sdk-request", "attempt=1"))
        count(requests=1, retries=0 if is_first else 1)
        self._call.request = request  # for `_learn_direct`
        self._before_request(request.method)

    def account(self) -> str | None:
        key = getattr(self._credentials, "access_key", None)
        return None if key is None else f"the access key {key}"

    def remedy(self, kind: str) -> str:
        if kind == "unreachable":
            return "fix the endpoint (AWS_ENDPOINT_URL, --s3_endpoint_url) or the network"
        if self._credentials is None:
            return "run `aws configure`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID"
        return "give it the rights to list, read and write there, or use another AWS_PROFILE"

    def classify_error(self, error: BaseException) -> StoreFailure:
        if isinstance(error, exceptions.ClientError):
            code = str(error.response.get("Error", {}).get("Code", ""))
            text = error.response.get("Error", {}).get("Message") or code
            return StoreFailure(_KIND_OF.get(code, "other"), f"{code}: {text}")
        if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            return StoreFailure("credentials", str(error))
        if isinstance(error, exceptions.ParamValidationError):
            return StoreFailure("missing", "no bucket can have this name")
        if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
            return StoreFailure("unreachable", str(error))
        return StoreFailure("other", str(error))

    def probe(self, bucket: str, prefix: str) -> None:
        self._hasty_client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)

    def direct_get(self, path: str, max_bytes: int | None) -> bytes | None:
        bucket, key = split_uri(path)
        direct = self._direct.get(bucket)
        if direct is None:
            return None
        target = direct.above + urllib.parse.quote(key, safe="/")
        request = AWSRequest("GET", direct.reader.base_url + target)
        if direct.region is not None:
            frozen = self._credentials.get_frozen_credentials()
            S3SigV4Auth(frozen, "s3", direct.region).add_auth(request)
        return direct.reader.get(target, dict(request.headers.items()), max_bytes)

    def get(
        self, path: str, start: int | None = None, end: int | None = None, version: str = ""
    ) -> bytes:
        bucket, key = split_uri(path)
        span = {} if start is None or end is None else {"Range": f"bytes={start}-{end - 1}"}
        span |= {"IfMatch": version} if version else {}
        for attempt in range(1, _TRIES + 1):
            body = self._client.get_object(Bucket=bucket, Key=key, **span)["Body"]
            try:
                with body:
                    data = bytes(body.read())
                break
            except (exceptions.BotoCoreError, urllib3.exceptions.HTTPError) as e:
                if attempt == _TRIES:
                    text = f"the answer broke off {_TRIES} times ({e})"
                    raise OSError(errno.EIO, text, path) from e
                count(retries=1)
        if bucket not in self._direct:
            self._direct[bucket] = self._learn_direct(key)
        count(bytes_read=len(data))
        return data

    def _learn_direct(self, key: str) -> _Direct | None:
        """Learns how to read a bucket directly from the library's own successful GET."""
        request = self._call.request
        parts = urllib.parse.urlsplit(request.url)
        quoted = urllib.parse.quote(key, safe="/")
        signed = _SIGNED.match(_text(request.headers.get("Authorization", "")))
        # Anything unusual, such as a query, another signature or a proxy, is left to the library.
        proxy = get_environ_proxies(request.url).get(parts.scheme)
        is_odd = parts.query or proxy or not parts.path.endswith(quoted)
        if is_odd or (signed is None) != (self._credentials is None):
            return None
        bundle = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
        trusted = get_cert_path(self._verify or bundle or True)
        host_url = f"{parts.scheme}://{parts.netloc}"
        reader = DirectReader(host_url, None if self._verify is False else trusted)
        # The host or the path contains the bucket, depending on the endpoint.
        return _Direct(reader, parts.path.removesuffix(quoted), signed and signed[1])

    def head(self, path: str) -> tuple[Stat, float]:
        bucket, key = split_uri(path)
        found = self._client.head_object(Bucket=bucket, Key=key)
        return _stat(path, found, "ContentLength"), _date(found).timestamp()

    def list_pages(self, bucket: str, prefix: str, delimiter: str) -> Iterator[list[Stat]]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix, Delimiter=delimiter, MaxKeys=self.page_objects
        )
        root = f"s3://{bucket}/"
        for page in pages:
            objects = [_stat(root + o["Key"], o, "Size") for o in page.get("Contents", ())]
            below = page.get("CommonPrefixes", ())
            yield objects + [Stat(root + shared["Prefix"], is_folder=True) for shared in below]

    def put(
        self, path: str, body: bytes | BinaryIO, size: int, version: str | None, *, hasty: bool
    ) -> Stat:
        bucket, key = split_uri(path)
        if size > _MAX_PUT_BYTES:
            # `upload_fileobj` takes no condition, and does not return the etag.
            self._client.upload_fileobj(body, bucket, key, Config=_IN_PARTS)
            count(bytes_written=size)
            return self.head(path)[0]
        condition = {} if version == "" else {"IfMatch": version}
        client = self._hasty_client if hasty else self._client
        done = client.put_object(
            Bucket=bucket, Key=key, Body=body,
            **(condition if version is not None else {"IfNoneMatch": "*"}),
        )  # fmt: skip
        count(bytes_written=size)
        return Stat(path, size, int(_date(done).timestamp()) * 10**9, done["ETag"])

    def delete_objects(self, bucket: str, names: Sequence[str]) -> None:
        if len(names) == 1:
            self._client.delete_object(Bucket=bucket, Key=names[0])
            return
        wanted = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        for failed in self._client.delete_objects(Bucket=bucket, Delete=wanted).get("Errors", ()):
            if failed.get("Code") != "NoSuchKey":
                path = f"s3://{bucket}/{failed.get('Key')}"
                raise OSError(errno.EIO, str(failed.get("Message")), path)

    def copy(self, source: str, target: str) -> None:
        (from_bucket, from_key), (bucket, key) = split_uri(source), split_uri(target)
        there = {"Bucket": from_bucket, "Key": from_key}
        with self.translate_errors(source):
            self._call.path = target  # A copy needs the lease of the folder it writes to.
            try:
                self._client.copy_object(Bucket=bucket, Key=key, CopySource=there)
            except exceptions.ClientError as e:
                if e.response["Error"].get("Code") not in ("InvalidRequest", "EntityTooLarge"):
                    raise
                # S3 copies objects above 5 GiB in parts only.
                self._client.copy(there, bucket, key, Config=_IN_PARTS)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _date(reply: Any) -> Any:
    return email.utils.parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"])


def _stat(path: str, found: Any, size: str) -> Stat:
    mtime_ns = int(found["LastModified"].timestamp() * 1e9)
    return Stat(path, found[size], mtime_ns, found["ETag"])
