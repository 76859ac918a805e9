"""`FindDuplicates`: which records of a data set are twins, from its index, through Beam.

What crosses a shuffle are packed arrays of 8-byte hashes, once for each record and once for each
mask (`near`) and hash; equal hashes are one from the first step on, so a thousand blank pictures
cost no more than one. A second pass over the index finds the records of the hashes that have twins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam import pvalue

from beam_pipeline.duplicates.near import (
    MAX_PAIRS,
    masks_for,
    pairs_equal_in,
    too_many_pairs,
)
from beam_pipeline.duplicates.twins import COLUMNS, Twin, choose_twins, twins_to_json
from beam_pipeline.report.copies import hashes_of_originals
from imageshards import storage
from imageshards.index import index_schema, read_shard_index
from imageshards.progress import note_activity

# Hashes that a worker sorts at once: their number follows from that of the records.
BUCKET_SIZE = 200_000

_ORIGINALS, _PICTURES = 0, 1
_MIX = np.uint64(0x9E3779B97F4A7C15)

Packed = tuple[int, bytes]


class DataSet(NamedTuple):
    """What is looked through.

    Attributes:
        directory: The data set.
        features: Those of its manifest.
        num_records: Of all splits.
        distance: Bits in which the hashes of near duplicates differ at most.
    """

    directory: str
    features: Mapping[str, Mapping[str, Any]]
    num_records: int
    distance: int

    @property
    def buckets(self) -> int:
        """How many parts the hashes are sorted in."""
        return max(1, -(-self.num_records // BUCKET_SIZE))

    @property
    def masks(self) -> list[int]:
        """See `masks_for`; none where only equal hashes are twins."""
        return masks_for(self.num_records, self.distance) if self.distance else []


def read_hashes(shard: Mapping[str, Any], data: DataSet) -> Iterator[Any]:
    """The hashes of a shard's originals and of its pictures, packed by bucket.

    Tagged `without_dhash`: how many of its pictures have no hash, where some have none.
    """
    table = read_rows(shard, data, ["source_sha256", "dhash"])
    note_activity("reading the index", 1, "shard")
    if without := table["dhash"].null_count:
        yield pvalue.TaggedOutput("without_dhash", without)
    for kind, hashes in (
        (_ORIGINALS, hashes_of_originals(table)),
        (_PICTURES, table["dhash"].drop_null().to_numpy()),
    ):
        for bucket, packed in pack(hashes, hashes, data.buckets):
            yield kind * data.buckets + bucket, packed


def read_rows(shard: Mapping[str, Any], data: DataSet, columns: list[str]) -> pa.Table:
    """Columns of the index of a shard."""
    schema = index_schema(data.features)
    wanted = pa.schema([schema.field(name) for name in columns])
    return read_shard_index(data.directory, shard, wanted, "DIR").combine_chunks()


def pack(hashes: np.ndarray, keys: np.ndarray, buckets: int) -> Iterator[Packed]:
    """Hashes, by buckets in which equal keys are together."""
    place = (keys * _MIX >> np.uint64(32)) % np.uint64(buckets)
    order = np.argsort(place, kind="stable")
    bounds = np.searchsorted(place[order], np.arange(buckets + 1, dtype=np.uint64))
    for bucket in range(buckets):
        cut = hashes[order[bounds[bucket] : bounds[bucket + 1]]]
        if cut.size:
            yield bucket, cut.astype("<u8").tobytes()


def unpack(found: Iterable[bytes]) -> np.ndarray:
    """All hashes of some packed arrays."""
    return np.frombuffer(b"".join(found), "<u8")


class _SplitEqualFn(beam.DoFn):
    """(bucket, packed hashes) → those that occur more than once; and each picture's once."""

    def process(self, grouped: tuple[int, Iterable[bytes]], data: DataSet) -> Iterator[Any]:
        bucket, found = grouped
        hashes, counts = np.unique(unpack(found), return_counts=True)
        kind = bucket // data.buckets
        yield pvalue.TaggedOutput("repeated", (kind, hashes[counts > 1].tobytes()))
        if kind == _PICTURES:
            yield hashes.tobytes()


def spread_by_masks(packed: bytes, data: DataSet) -> Iterator[Packed]:
    """Hashes, packed by mask and by bucket of what is equal in it."""
    hashes = unpack([packed])
    for number, mask in enumerate(data.masks):
        for bucket, cut in pack(hashes, hashes & np.uint64(mask), data.buckets):
            yield number * data.buckets + bucket, cut


def pairs_of(grouped: tuple[int, Iterable[bytes]], data: DataSet) -> bytes:
    """The near pairs of a bucket that no earlier mask finds, packed."""
    bucket, found = grouped
    number, masks = bucket // data.buckets, data.masks
    note_activity("comparing pictures", 1, "bucket")
    pairs = np.unique(pairs_equal_in(masks[number], unpack(found), data.distance))
    differs = pairs["low"] ^ pairs["high"]
    for mask in masks[:number]:
        new = differs & np.uint64(mask) != 0
        pairs, differs = pairs[new], differs[new]
    return pairs.tobytes()


def to_pairs(packed: Iterable[bytes], distance: int) -> np.ndarray:
    """Packed pairs → [n, 2], in order.

    Raises:
        UserError: They are more than anybody looks at.
    """
    pairs = unpack(packed).reshape(-1, 2)
    if len(pairs) > MAX_PAIRS:
        raise too_many_pairs(distance)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def rows_with_twins(
    shard: Mapping[str, Any],
    data: DataSet,
    repeated: Iterable[Packed],
    pairs: Iterable[bytes],
) -> Iterator[bytes]:
    """The index rows of records whose original or picture has a twin, as an Arrow stream."""
    note_activity("collecting duplicates", 1, "shard")
    found = list(repeated)
    originals = unpack(cut for kind, cut in found if kind == _ORIGINALS)
    pictures = unpack([*(cut for kind, cut in found if kind == _PICTURES), *pairs])
    table = read_rows(shard, data, COLUMNS)
    wanted = np.isin(hashes_of_originals(table), originals)
    in_pictures = pc.is_in(table["dhash"], value_set=pa.array(np.unique(pictures)))
    wanted |= in_pictures.to_numpy() & table["dhash"].is_valid().to_numpy()
    if wanted.any():
        yield to_stream(table.filter(pa.array(wanted)))


def to_stream(table: pa.Table) -> bytes:
    """A table as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def write_twins(
    data: DataSet,
    rows: Iterable[bytes],
    pairs: Iterable[bytes],
    without_dhash: Iterable[int],
    path: str,
) -> str:
    """Decides which records are twins of which, and writes that as JSON; returns `path`."""
    tables = [pa.ipc.open_stream(stream).read_all() for stream in rows]
    near = to_pairs(pairs, data.distance)
    twins: list[Twin] = []
    if tables:
        twins = choose_twins(pa.concat_tables(tables), near)
    found = {"twins": twins_to_json(twins), "without_dhash": sum(without_dhash)}
    storage.write(path, json.dumps(found, ensure_ascii=False).encode())
    return path


class FindDuplicates(beam.PTransform):
    """Shard entries of a manifest → path of a JSON file.

    It holds `twins`, worst first, and `without_dhash`, how many pictures have no difference hash.

    Args:
        data: The data set.
        path: Where to write it, visible to the client and to the worker that writes it.
    """

    def __init__(self, data: DataSet, path: str):
        super().__init__()
        self._data = data
        self._path = path

    def expand(self, shards: beam.PCollection[dict[str, Any]]) -> beam.PCollection[str]:
        data = self._data
        shards = shards | "SpreadShards" >> beam.Reshuffle()
        read = shards | "ReadHashes" >> (
            beam.FlatMap(read_hashes, data)
            .with_output_types(tuple[int, bytes], without_dhash=int)
            .with_outputs("without_dhash", main="hashes")
        )
        hashes = (
            read.hashes
            | "GroupEqual" >> beam.GroupByKey()
            | "SplitEqual"
            >> beam.ParDo(_SplitEqualFn(), data).with_outputs("repeated", main="once")
        )  # once: packed hashes of pictures; repeated: (kind, packed hashes)
        pairs = (
            hashes.once
            | "SpreadByMasks"
            >> beam.FlatMap(spread_by_masks, data).with_output_types(tuple[int, bytes])
            | "GroupByMask" >> beam.GroupByKey()
            | "NearPairs" >> beam.Map(pairs_of, data)
        )  # packed pairs of different hashes
        rows = shards | "RowsWithTwins" >> beam.FlatMap(
            rows_with_twins, data, pvalue.AsIter(hashes.repeated), pvalue.AsIter(pairs)
        )  # Arrow streams of index rows
        return (
            shards.pipeline
            | "Once" >> beam.Create([data])
            | "WriteTwins"
            >> beam.Map(
                write_twins,
                pvalue.AsIter(rows),
                pvalue.AsIter(pairs),
                pvalue.AsIter(read.without_dhash),
                self._path,
            )
        )
