"""What became no record: why, and its original bytes, kept when they are rejected."""

from __future__ import annotations

import contextlib
from typing import IO

from beam_pipeline.planning.refs import ImageRef
from beam_pipeline.shards.result import Reject
from imageshards.errors import ImageError
from imageshards.example import Values, encode_example
from imageshards.storage import AtomicFile
from imageshards.text import printable
from imageshards.tfrecord import frame_record


def encode_reject(reject: Reject, data: bytes | None) -> bytes:
    """A reject as `tf.train.Example`, with its original bytes where these are given."""
    features: dict[str, Values] = {
        "image/filename": [reject.key.encode()],
        "uri": [printable(reject.uri).encode()],
        "label": [reject.label.encode()],
        "split": [reject.split.encode()],
        "reason": [reject.reason.encode()],
        "stage": [reject.stage.encode()],
        "message": [printable(reject.message).encode()],
    }
    if data is not None:
        features["image/encoded"] = [data]
    return encode_example(features)


class RejectsFile:
    """The rejected images of a shard, written to a file as they come; without any, there is none.

    So the commit need not read an original again, which may be gone by then, or another.

    Args:
        path: Of the file; "" for none.
        keeps_bytes: Whether original bytes are part of it.

    Attributes:
        rejects: What was rejected, in order.
        num_bytes: Size of the file.
    """

    def __init__(self, path: str, keeps_bytes: bool):
        self._path = path
        self._keeps_bytes = keeps_bytes
        self._stack = contextlib.ExitStack()
        self._file: AtomicFile | None = None
        self._handle: IO[bytes] | None = None
        self.rejects: list[Reject] = []
        self.num_bytes = 0

    def __enter__(self) -> RejectsFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, ref: ImageRef, error: ImageError, stage: str, data: bytes | None = None) -> None:
        """Adds a rejected image.

        Args:
            ref: The image.
            error: Why.
            stage: `read`, `decode` or `copy`.
            data: Its original bytes, if they were read.
        """
        reject = Reject(
            ref.key, ref.origin, ref.label, str(ref.split), error.code, stage, error.message
        )
        self.rejects.append(reject)
        if not self._path:
            return
        if self._handle is None:
            self._file = self._stack.enter_context(AtomicFile(self._path))
            self._handle = self._stack.enter_context(open(self._file.local_path, "wb"))
        frame = frame_record(encode_reject(reject, data if self._keeps_bytes else None))
        self._handle.write(frame)
        self.num_bytes += len(frame)

    def commit(self) -> None:
        """Puts the file, if there is one, in its place."""
        if self._handle is not None and self._file is not None:
            self._handle.close()
            self._file.commit()
