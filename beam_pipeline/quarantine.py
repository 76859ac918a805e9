"""Rejected originals, with the reason, where a person can look at them and try again."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
from collections.abc import Iterable

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes

from beam_pipeline.errors import ImageError, UserError
from beam_pipeline.examples import Values, encode_example
from beam_pipeline.folders import printable
from beam_pipeline.manifest import write_whole
from beam_pipeline.reading import read_images
from beam_pipeline.refs import ImageRef
from beam_pipeline.shards import Reject

LIST_NAME = "rejects.jsonl"


def encode_reject(reject: Reject, max_bytes: int) -> bytes:
    """A reject as `tf.train.Example`, with its original bytes if they can be read.

    Args:
        reject: The reject.
        max_bytes: Originals up to this size are kept; 0 keeps none.
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
        for _, data in read_images([ref], max_bytes):
            if not isinstance(data, ImageError):
                features["image/encoded"] = [data]
    return encode_example(features)


def reasons(rejects: Iterable[Reject]) -> dict[str, int]:
    """Reason → images, the most frequent first."""
    counts = collections.Counter(reject.reason for reject in rejects)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def write_list(rejects: Iterable[Reject], folder: str) -> str:
    """Writes one JSON object per reject, ordered by split and key; returns the path."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, LIST_NAME)
    ordered = sorted(rejects, key=lambda r: (r.split, r.key))
    write_whole(path, "".join(map(_line, ordered)))
    return path


def _line(reject: Reject) -> str:
    fields = {name: printable(text) for name, text in dataclasses.asdict(reject).items()}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def check_budget(rejects: list[Reject], listed: int, max_fraction: float, where: str) -> None:
    """Raises `UserError`, with the reasons, if more images were rejected than allowed."""
    allowed = math.floor(max_fraction * listed + 1e-9)  # 0.29 * 100 is a little below 29
    if len(rejects) <= allowed:
        return
    table = ", ".join(f"{reason} {count}" for reason, count in reasons(rejects).items())
    raise UserError(
        f"--max_reject_fraction {max_fraction:g} allows {allowed} of {listed} images to be "
        f"rejected, but {len(rejects)} were ({table}); see {where}, mend or remove them or raise "
        "the fraction, then give the same command again: finished shards are kept and nothing "
        "was committed."
    )


class WriteQuarantine(beam.PTransform):
    """Rejects → TFRecord files of their originals, by Beam's own `WriteToTFRecord`."""

    def __init__(self, prefix: str, max_bytes: int):
        super().__init__()
        self._prefix = prefix
        self._max_bytes = max_bytes

    def expand(self, rejects: beam.PCollection) -> beam.PCollection:
        return (
            rejects
            | "EncodeReject" >> beam.Map(encode_reject, self._max_bytes).with_output_types(bytes)
            | "WriteRejects"
            >> beam.io.WriteToTFRecord(
                self._prefix,
                file_name_suffix=".tfrecord",
                compression_type=CompressionTypes.UNCOMPRESSED,
            )
        )  # file names
