"""The records of finished data sets as references, from the index of each shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from beam_pipeline.images.member import RECORD
from beam_pipeline.options import ColumnSpec, InputOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage, tfrecord
from imageshards.errors import UserError
from imageshards.example import Values, decode_example
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import NONE, ONE, SEVERAL, load_manifest, shards_of
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES

_EMPTY: dict[str, Any] = {"int": 0, "float": 0.0, "string": b""}
_INDEX_COLUMNS = ("key", "offset", "num_bytes", "source_bytes", "class_name")


def shards_to_list(source: InputOptions) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """(path, split that its records keep, entry of the manifest) of every shard of a data set.

    Raises:
        UserError: There is none, or it is another one than when the build began.
    """
    manifest = load_manifest(source.input, "--input")
    if source.fingerprint and manifest["fingerprint"] != source.fingerprint:
        raise UserError(
            f"--input {source.input!r} was replaced while this build read it; run the same command "
            "again."
        )
    for split, entry in shards_of(manifest):
        path = storage.join(source.input, entry["file"])
        yield path, split if source.keeps_splits else None, entry


def list_records(
    path: str,
    split: str | None,
    entry: Mapping[str, Any],
    columns: Sequence[ColumnSpec] = (),
    labels: tuple[str, str] = (ONE, ONE),
) -> Iterator[ImageRef]:
    """References to the records of a shard, in their order, from its index.

    Args:
        path, entry: The shard, and its entry of the manifest.
        split: What its records keep; None for those that are drawn anew.
        columns: Extra columns that are wanted, for which the records are read. Those of a damaged
            record are empty: it is rejected when it is copied.
        labels: How many the records have, and how many they are to have.

    Raises:
        UserError: There is no index, or it or the shard is not what the manifest says.
    """
    has, wanted = labels
    schema = index_schema({}, has)
    names = _INDEX_COLUMNS[:-1] if wanted == NONE else _INDEX_COLUMNS
    schema = pa.schema([schema.field(name) for name in names])
    table = read_shard_index(storage.parent_of(path), entry, schema, "--input")
    found = [table[name].to_pylist() for name in names]
    if wanted == NONE:
        found.append([None] * len(table))
    elif wanted == SEVERAL:
        found[-1] = [(name,) if has == ONE else tuple(name) for name in found[-1]]
    version = int(str(entry.get("sha256") or "0")[:15], 16)
    of_records = _columns_of(path, columns) if columns else {}
    unread = _values({}, columns) if columns else None
    for key, offset, num_bytes, source_bytes, label in zip(*found, strict=True):
        size_bytes = num_bytes - HEADER_BYTES - FOOTER_BYTES
        yield ImageRef(
            key, path, label, split, None, size_bytes, version, of_records.get(offset, unread),
            offset, source_bytes=source_bytes, form=RECORD,
        )  # fmt: skip


def _columns_of(path: str, columns: Sequence[ColumnSpec]) -> dict[int, dict[str, Any]]:
    """Offset → extra columns of the records of a shard, of those that are not damaged."""
    names = [column.name for column in columns]
    try:
        return {
            found.offset_bytes: _values(decode_example(found.payload, names), columns)
            for found in tfrecord.scan_file(path)
            if isinstance(found, tfrecord.Record)
        }
    except OSError as e:
        raise UserError(
            f"the data set's shard {path!r} cannot be read ({e.strerror or e}); restore it, fix "
            "its permissions, or build the data set again from its original images."
        ) from e


def _values(features: Mapping[str, Values], columns: Sequence[ColumnSpec]) -> dict[str, Any]:
    """Extra columns of a record as a table would have them; those that it lacks are empty."""
    values: dict[str, Any] = {}
    for column in columns:
        size = 0 if column.shape is None else column.shape[0] if column.shape else 1
        found = features.get(column.name) or [_EMPTY[column.kind]] * size
        values[column.name] = found[0] if column.shape == () else list(found)
    return values
