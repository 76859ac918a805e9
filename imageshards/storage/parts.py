"""Objects of `s3://` sent in parts, which the store keeps, and charges for, until the end."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, BinaryIO

from botocore import exceptions

from imageshards.storage.base import COUNTER


def send(
    client: Any, asked: Callable[..., Any], stream: BinaryIO, part_bytes: int, **where: str
) -> tuple[int, Any]:
    """Sends a stream part by part; there is no object before the last call.

    Args:
        client: boto3's.
        asked: Makes a call of it, and sorts its errors.
        stream: What is sent.
        part_bytes: Size of all parts but the last.
        **where: `Bucket` and `Key`.

    Returns:
        The size in bytes, and the store's answer to the last call.

    Raises:
        Exception: What `asked` raises; the parts are dropped.
    """
    where["UploadId"] = asked(lambda: client.create_multipart_upload(**where))["UploadId"]
    try:
        sent: list[dict[str, Any]] = []
        size_bytes = 0
        while data := stream.read(part_bytes):
            number = len(sent) + 1
            send_one = functools.partial(client.upload_part, Body=data, PartNumber=number, **where)
            done = asked(send_one)
            sums = {name: done[name] for name in done if name.startswith("Checksum")}
            sent.append({"PartNumber": number, "ETag": done["ETag"], **sums})
            size_bytes += len(data)
            COUNTER.add(bytes_written=len(data))
        finish = functools.partial(client.complete_multipart_upload, **where)
        return size_bytes, asked(lambda: finish(MultipartUpload={"Parts": sent}))
    except BaseException:
        _abort(client, **where)
        raise


def drop(client: Any, bucket: str, prefix: str) -> None:
    """Drops what uploads that were killed have left in a folder, but not in those below it.

    Raises:
        ClientError, BotoCoreError: They cannot be listed.
    """
    pages = client.get_paginator("list_multipart_uploads").paginate(
        Bucket=bucket, Prefix=prefix, Delimiter="/"
    )
    for page in pages:
        for found in page.get("Uploads", ()):
            name = found["Key"].removeprefix(prefix)
            if found["Key"].startswith(prefix) and "/" not in name:
                _abort(client, Bucket=bucket, Key=found["Key"], UploadId=found["UploadId"])


def _abort(client: Any, **where: str) -> None:
    # What is not dropped here stays until a rule of the bucket ends it.
    with contextlib.suppress(exceptions.BotoCoreError, exceptions.ClientError):
        client.abort_multipart_upload(**where)
