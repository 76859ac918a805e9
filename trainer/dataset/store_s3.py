"""Buckets of `s3://`, by boto3 and with the settings it finds itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from imageshards.errors import UserError
from trainer.dataset.store_base import (
    CONNECT_SEC,
    CONNECTIONS,
    PROBE_SEC,
    READ_SEC,
    BrokenOffError,
    Found,
    Store,
    Trouble,
    first_line,
    nanoseconds,
)

_KINDS = {
    "404": "missing",
    "NoSuchKey": "missing",
    "NoSuchBucket": "missing",
    "401": "credentials",
    "403": "refused",
    "AccessDenied": "refused",
    "AllAccessDisabled": "refused",
    "InvalidAccessKeyId": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "ExpiredToken": "credentials",
    "InvalidToken": "credentials",
    "TokenRefreshRequired": "credentials",
}
_EMPTY_RANGE = ("416", "InvalidRange")


class S3Store(Store):
    """One boto3 client for what has to succeed, and one for what has to be quick."""

    scheme = "s3"

    def __init__(self) -> None:
        super().__init__()
        try:
            import boto3
            import botocore.config
            import botocore.exceptions as exceptions
            import urllib3.exceptions
        except ImportError as e:
            raise UserError(
                f"s3:// needs the package {e.name}, which is not installed; install it with "
                "pip install 'imageshards[aws]', or copy the data set to a local folder."
            ) from e
        self._exceptions: Any = exceptions
        self.errors = (exceptions.BotoCoreError, exceptions.ClientError)
        self._broken_off = (exceptions.BotoCoreError, urllib3.exceptions.HTTPError)
        self._session: Any = _made(boto3.Session, exceptions.BotoCoreError)
        self._credentials = self._session.get_credentials()
        self._config = botocore.config.Config
        self._unsigned = botocore.UNSIGNED
        self._client = self._new_client(READ_SEC, 10)
        self._hasty = self._new_client(PROBE_SEC, 2)

    def _new_client(self, read_sec: int, attempts: int) -> Any:
        config = self._config(
            connect_timeout=CONNECT_SEC,
            read_timeout=read_sec,
            max_pool_connections=CONNECTIONS,
            # Waits twice as long each time, with jitter, after 429, 5xx, resets and time-outs.
            retries={"mode": "standard", "total_max_attempts": attempts},
            # Public buckets are read by anyone.
            signature_version=None if self._credentials else self._unsigned,
        )
        # A bucket elsewhere says where.
        region = self._session.region_name or "us-east-1"
        return _made(
            lambda: self._session.client("s3", region_name=region, config=config),
            (self._exceptions.BotoCoreError, ValueError),
        )

    def look(self, bucket: str, name: str) -> Found:
        found = self._client.head_object(Bucket=bucket, Key=name)
        return Found(name, int(found["ContentLength"]), nanoseconds(found["LastModified"]))

    def read(self, bucket: str, name: str, start: int, end: int | None) -> bytes:
        span = f"bytes={start}-{'' if end is None else end - 1}"
        try:
            found = self._client.get_object(Bucket=bucket, Key=name, Range=span)
        except self._exceptions.ClientError as e:
            if _code(e) in _EMPTY_RANGE:
                return b""
            raise
        try:
            with found["Body"] as body:
                return bytes(body.read())
        except self._broken_off as e:
            raise BrokenOffError from e

    def names(self, bucket: str, prefix: str, delimiter: str) -> Iterator[Found]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix, Delimiter=delimiter
        )
        for page in pages:
            for found in page.get("Contents", ()):
                yield Found(found["Key"], int(found["Size"]), nanoseconds(found["LastModified"]))
            for shared in page.get("CommonPrefixes", ()):
                yield Found(shared["Prefix"], 0, 0)

    def probe(self, bucket: str) -> None:
        self._hasty.list_objects_v2(Bucket=bucket, MaxKeys=1)

    def sort(self, error: BaseException) -> Trouble:
        exceptions = self._exceptions
        if isinstance(error, exceptions.ClientError):
            code = _code(error)
            said = error.response.get("Error", {}).get("Message") or code
            return Trouble(_KINDS.get(code, "other"), first_line(f"{code}: {said}"))
        if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            return Trouble("credentials", first_line(error))
        if isinstance(error, exceptions.ParamValidationError):
            return Trouble("missing", "no bucket can have this name")
        if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
            return Trouble("unreachable", first_line(error))
        return Trouble("other", first_line(error))

    def who(self) -> str:
        if self._credentials is None:
            return "nobody (no credentials were found)"
        return f"the access key {self._credentials.access_key}"

    def remedy(self, kind: str) -> str:
        if kind == "missing":
            return "expected an existing one: fix the name"
        if kind == "unreachable":
            return "fix the endpoint (AWS_ENDPOINT_URL) or the network"
        if self._credentials is None:
            return "run aws configure, or set AWS_PROFILE or AWS_ACCESS_KEY_ID"
        return "give it the right to list and read there, or set another AWS_PROFILE"


def _made(make: Any, errors: Any) -> Any:
    try:
        return make()
    except errors as e:
        raise UserError(
            f"s3:// cannot be used with the settings of boto3 ({first_line(e)}); fix "
            "AWS_PROFILE, AWS_ENDPOINT_URL or the files in ~/.aws."
        ) from e


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
