"""Rejected originals, with the reason, where a person can look at them and try again."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import json
import math
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.io import tfrecordio
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP

from beam_pipeline.images.read import read_images
from beam_pipeline.inputs.folders import printable
from beam_pipeline.options import UrlOptions
from beam_pipeline.planning.refs import ImageRef
from beam_pipeline.shards.result import Reject
from imageshards import storage
from imageshards.errors import ImageError, UserError
from imageshards.example import Values, encode_example
from imageshards.manifest import REJECTS_NAME
from imageshards.storage import map_concurrently
from imageshards.text import counted

# Rejects that are in memory at once when they are sorted, some 20 MB.
RUN_LENGTH = 50_000


def encode_reject(reject: Reject, max_bytes: int, urls: UrlOptions) -> bytes:
    """A reject as `tf.train.Example`, with its original bytes if they can be read.

    Args:
        reject: The reject.
        max_bytes: Originals up to this size are kept; 0 keeps none.
        urls: How those at http:// and https:// addresses are fetched.
    """
    features: dict[str, Values] = {
        "image/filename": [reject.key.encode()],
        "uri": [printable(reject.uri).encode()],
        "label": [reject.label.encode()],
        "split": [reject.split.encode()],
        "reason": [reject.reason.encode()],
        "stage": [reject.stage.encode()],
        "message": [printable(reject.message).encode()],
    }
    if max_bytes and reject.stage == "decode":
        ref = ImageRef(reject.key, reject.uri, reject.label)
        for _, data in read_images([ref], max_bytes, urls):
            if not isinstance(data, ImageError):
                features["image/encoded"] = [data]
    return encode_example(features)


def reasons(counts: Mapping[str, int]) -> dict[str, int]:
    """Reason → images, the most frequent first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def write_list(rejects: Iterable[Reject], folder: str) -> str:
    """Writes one JSON object per reject, ordered by split and key; returns the path.

    However many there are, only `RUN_LENGTH` are in memory: sorted runs of them wait in
    temporary files, and are merged.
    """
    path = storage.join(folder, REJECTS_NAME)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="imageshards-"))
        runs: list[Iterable[tuple[str, str, str]]] = []
        left = iter(rejects)
        while run := sorted((r.split, r.key, _line(r)) for r in itertools.islice(left, RUN_LENGTH)):
            runs.append(run if len(run) < RUN_LENGTH else _waiting(run, scratch, stack))
        merged = os.path.join(scratch, REJECTS_NAME)
        with open(merged, "w", encoding="utf-8") as file:
            file.writelines(line for _, _, line in heapq.merge(*runs))
        storage.upload(merged, path)
    return path


def _waiting(
    run: list[tuple[str, str, str]], scratch: str, stack: contextlib.ExitStack
) -> Iterator[tuple[str, str, str]]:
    """What a run holds, from a temporary file."""
    file = stack.enter_context(tempfile.TemporaryFile("w+", dir=scratch, encoding="ascii"))
    file.writelines(json.dumps(row) + "\n" for row in run)
    file.seek(0)
    return (tuple(json.loads(line)) for line in file)


def _line(reject: Reject) -> str:
    fields = {name: printable(text) for name, text in dataclasses.asdict(reject).items()}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def allowed_rejects(listed: int, max_fraction: float) -> int:
    """How many images may be rejected."""
    return math.floor(max_fraction * listed + 1e-9)  # 0.29 * 100 is a little below 29


def check_budget(counts: Mapping[str, int], listed: int, max_fraction: float, where: str) -> None:
    """Raises `UserError`, with the reasons, if more images were rejected than allowed.

    Args:
        counts: Reason → rejected images.
        listed: Images in all.
        max_fraction: Of them that may be rejected.
        where: The list of rejects.
    """
    allowed = allowed_rejects(listed, max_fraction)
    rejected = sum(counts.values())
    if rejected <= allowed:
        return
    table = ", ".join(f"{reason} {count}" for reason, count in reasons(counts).items())
    raise UserError(
        f"--max_reject_fraction {max_fraction:g} allows {allowed} of {counted(listed, 'image')} "
        f"to be rejected, but {rejected} were ({table}); see {where}, fix or remove them or raise "
        "the fraction, then give the same command again: finished shards are kept and nothing "
        "was committed."
    )


class _Upload:
    """A local file that becomes an object when it is closed."""

    def __init__(self, path: str):
        self._path = path
        self._file = tempfile.NamedTemporaryFile(prefix="imageshards-")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def close(self) -> None:
        with self._file as file:
            file.flush()
            storage.upload(file.name, self._path)


class _StoreSink(tfrecordio._TFRecordSink):
    """Beam's TFRecord sink for a prefix in a store, which `storage` reaches.

    Beam's own clients of stores are made anew for every file, wait long for credentials, and
    need rights to the bucket itself.
    """

    def initialize_write(self) -> str:
        """A folder for what bundles write; it is not left in the folder of the result."""
        folder = storage.parent_of(self.file_path_prefix.get())
        return f"{folder}-{uuid.uuid4().hex[:8]}"

    def open(self, temp_path: str) -> Any:
        return _Upload(temp_path)

    def pre_finalize(self, init_result: Any, writer_results: Any) -> list[str]:
        return []

    def finalize_write(
        self, init_result: Any, writer_results: Any, unused_pre_finalize_result: Any, w: Any = None
    ) -> Iterator[str]:
        """Copies what bundles wrote to its names; may be done again."""
        written = sorted(writer_results)
        names = [
            self.file_path_prefix.get()
            + self.shard_name_format % {"shard_num": place, "num_shards": len(written)}
            + self.file_name_suffix.get()
            for place in range(len(written))
        ]
        for _ in map_concurrently(
            lambda pair: storage.copy(*pair), zip(written, names, strict=True)
        ):
            pass
        yield from names


class WriteQuarantine(beam.PTransform):
    """Rejects → TFRecord files of their originals, by Beam's own `WriteToTFRecord`.

    Never with `num_shards`: that would send originals through a GroupByKey.
    """

    def __init__(self, prefix: str, max_bytes: int, urls: UrlOptions):
        super().__init__()
        self._prefix = prefix
        self._max_bytes = max_bytes
        self._urls = urls

    def expand(self, rejects: beam.PCollection) -> beam.PCollection:
        write = beam.io.WriteToTFRecord(
            self._prefix,
            file_name_suffix=".tfrecord",
            compression_type=CompressionTypes.UNCOMPRESSED,
        )
        if not storage.is_local(self._prefix):
            write._sink = _StoreSink(
                self._prefix, write._sink.coder, ".tfrecord", 0, None, CompressionTypes.UNCOMPRESSED
            )
            # Mostly there are none. On this machine Beam's own sink would warn of that.
            write._sink.skip_if_empty = True
        return (
            rejects
            | "EncodeReject"
            >> beam.Map(encode_reject, self._max_bytes, self._urls).with_output_types(bytes)
            | "WriteRejects" >> write
            # They come with a time after the end of the global window, where Flink 2.x, which runs
            # a batch job as a stream, does not let them into a side input.
            | "InWindow" >> beam.Map(TimestampedValue, MIN_TIMESTAMP)
        )  # file names
