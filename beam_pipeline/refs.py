"""References to images: the small things that are listed, split, planned and shuffled."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import Coder


class ImageRef(NamedTuple):
    """One listed image, before any of its pixels was read.

    Attributes:
        key: Stable name: the path below the input root, or the manifest's id.
        uri: Where the bytes are, on any filesystem Beam knows.
        label: Class name as listed.
        split: Split given by the input, later the assigned one.
        group: Images of one group share a split; None stands for the key.
        size_bytes: Size when listed; -1 if unknown.
        mtime_ns: Modification time when listed; 0 if unknown. Neither enters a record:
            they tell finished work from stale work when a job is resumed.
        columns: Extra columns: raw values as listed, later features of the record.
    """

    key: str
    uri: str
    label: str
    split: str | None = None
    group: str | None = None
    size_bytes: int = -1
    mtime_ns: int = 0
    columns: Mapping[str, Any] | None = None


class RefBatch:
    """Some references that travel as one element: a runner's cost is per element."""

    __slots__ = ("refs",)

    def __init__(self, refs: list[ImageRef]):
        self.refs = refs

    def __len__(self) -> int:
        return len(self.refs)

    def __repr__(self) -> str:
        return f"RefBatch({len(self.refs)} refs)"


# As `ImageRef._make`, without its check, in a third of the time.
_as_ref = functools.partial(tuple.__new__, ImageRef)


class RefBatchCoder(Coder):
    """Pickles plain tuples: half the bytes and time of pickling named tuples."""

    def encode(self, value: RefBatch) -> bytes:
        return pickle.dumps([tuple(ref) for ref in value.refs], protocol=5)

    def decode(self, encoded: bytes) -> RefBatch:
        return RefBatch(list(map(_as_ref, pickle.loads(encoded))))

    def is_deterministic(self) -> bool:
        return False

    def to_type_hint(self) -> type[RefBatch]:
        return RefBatch


beam.coders.registry.register_coder(RefBatch, RefBatchCoder)
