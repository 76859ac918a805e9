"""The records of finished data sets as references: from an index, or by reading a shard."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.options import ColumnSpec, InputOptions
from beam_pipeline.planning.refs import LOST_RECORD, ImageRef
from imageshards import storage, tfrecord
from imageshards.errors import UserError
from imageshards.example import Values, decode_example
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import CLASS_FEATURE, FILENAME_FEATURE, load_manifest, shards_of
from imageshards.text import counted
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES

_EMPTY: dict[str, Any] = {"int": 0, "float": 0.0, "string": b""}
_INDEX_COLUMNS = ("key", "class_name", "offset", "num_bytes", "source_bytes")


def shards_to_list(source: InputOptions) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """(path, split that its records keep, entry of the manifest) of every shard of a data set.

    Raises:
        UserError: There is none, or it is another one than when the build began.
    """
    manifest = load_manifest(source.location, "--input")
    if source.fingerprint and manifest["fingerprint"] != source.fingerprint:
        raise UserError(
            f"--input {source.input!r} was replaced while this build read it; run the same command "
            "again."
        )
    for split, entry in shards_of(manifest):
        path = storage.join(source.location, entry["file"])
        yield path, split if source.keeps_splits else None, entry


def list_records(
    path: str,
    split: str | None,
    entry: Mapping[str, Any],
    columns: Sequence[ColumnSpec] = (),
) -> Iterator[ImageRef]:
    """References to the records of a shard, in their order.

    The index says it, where there is one; else the shard is read. Then a record whose payload is
    damaged is listed as far as it can be read, and rejected when it is copied. One that cannot be
    found at all has a key of its own and, as the manifest counts them, one of the classes that are
    missing.

    Args:
        path: The shard.
        split: What its records keep; None for those that are drawn anew.
        entry: Its entry of the manifest.
        columns: Extra columns that are wanted, for which every record is read.

    Raises:
        UserError: Shard or index is not there, cannot be read, or not what its manifest says.
    """
    if entry.get("index") and not columns:
        yield from _indexed_records(path, split, entry)
        return
    try:
        yield from _scanned_records(path, split, entry, columns)
    except FileNotFoundError:
        raise UserError(
            f"the data set's shard {path!r} is gone; restore it, or build the data set again from "
            "its original images."
        ) from None
    except OSError as e:
        raise UserError(
            f"the data set's shard {path!r} cannot be read ({e.strerror or e}); fix its "
            "permissions, or try again."
        ) from e


def _scanned_records(
    path: str, split: str | None, entry: Mapping[str, Any], columns: Sequence[ColumnSpec]
) -> Iterator[ImageRef]:
    """References to the records of a shard, by reading it, and the index for the rest."""
    version = _version(entry)
    sizes = _index_rows(path, entry, ("source_bytes",)) if entry.get("index") else []
    left = collections.Counter[str](entry.get("classes") or {})
    number = 0
    lost: list[int] = []
    for found in tfrecord.scan_file(path):
        features = _key_and_class(found.payload)
        is_damaged = isinstance(found, tfrecord.RecordError)
        number = found.number + 1
        if features is None or (is_damaged and features[1] not in left):
            lost.append(found.number)  # its class, too, is not known
            continue
        key, label = features
        left[label] -= 1
        size_bytes = len(found.payload or b"")
        values = _values(found.payload, columns)
        yield ImageRef(
            key, path, label, split, None, size_bytes, version, values, found.offset_bytes,
            source_bytes=sizes[found.number][0] if found.number < len(sizes) else None,
        )  # fmt: skip
    if number > entry["num_records"]:
        raise UserError(
            f"the data set's shard {path!r} holds more than the "
            f"{counted(entry['num_records'], 'record')} "
            "that its manifest.json says; restore it, or build the data set again."
        )
    missing = iter(sorted((+left).elements()))
    name = storage.name_of(path)
    for record in [*lost, *range(number, entry["num_records"])]:
        label = next(missing, "")
        yield ImageRef(
            f"{name}#{record}", path, label, split, None, -1, version, _values(None, columns),
            LOST_RECORD,
        )  # fmt: skip


def _values(payload: bytes | None, columns: Sequence[ColumnSpec]) -> dict[str, Any] | None:
    """Extra columns of a record as a table would have them; those of a lost one are empty."""
    if not columns:
        return None
    features: dict[str, Values] = {}
    if payload is not None:
        features = decode_example(payload, [column.name for column in columns])
    values: dict[str, Any] = {}
    for column in columns:
        size = 0 if column.shape is None else column.shape[0] if column.shape else 1
        found = features.get(column.name) or [_EMPTY[column.kind]] * size
        values[column.name] = found[0] if column.shape == () else list(found)
    return values


def _version(entry: Mapping[str, Any]) -> int:
    return int(str(entry.get("sha256") or "0")[:15], 16)


def _indexed_records(path: str, split: str | None, entry: Mapping[str, Any]) -> Iterator[ImageRef]:
    """References to the records of a shard, from its index alone."""
    version = _version(entry)
    for key, label, offset, num_bytes, source_bytes in _index_rows(path, entry, _INDEX_COLUMNS):
        size_bytes = num_bytes - HEADER_BYTES - FOOTER_BYTES
        yield ImageRef(
            key, path, label, split, None, size_bytes, version, None, offset,
            source_bytes=source_bytes,
        )  # fmt: skip


def _index_rows(
    path: str, entry: Mapping[str, Any], columns: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Columns of the index of a shard, by record number."""
    import pyarrow as pa

    schema = index_schema({})
    schema = pa.schema([schema.field(name) for name in columns])
    table = read_shard_index(storage.parent_of(path), entry, schema, "--input")
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def _key_and_class(payload: bytes | None) -> tuple[str, str] | None:
    """Key and class name of a record, damaged or not; None where it holds none."""
    try:
        features = decode_example(payload or b"", only=(FILENAME_FEATURE, CLASS_FEATURE))
        return _text(features[FILENAME_FEATURE]), _text(features[CLASS_FEATURE])
    except (ValueError, KeyError, IndexError):
        return None


def _text(values: Values) -> str:
    value = values[0]
    if not isinstance(value, bytes):
        raise ValueError("not text")
    return value.decode()
