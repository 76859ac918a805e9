"""Reads and writes `index/`: one Parquet file per shard, with a row for each record.

Users query, join and filter a dataset by its index without reading pictures. The columns:

    key, split, class_name, label      as in the record and the manifest; lists if images have
                                       several labels; unlabelled datasets lack class_name and label
    shard, record                      name of the shard's file, number of the record in it from 0
    offset, num_bytes                  of the record's frame (header and checksums included)
    source_sha256, source_bytes        of the original file; the size is null if unknown
    width, height                      of the record's picture, in pixels
    is_original                        1 for the bytes of the original file, else 0; only in
                                       datasets that keep JPEGs (`keeps_jpegs`)

Small extra features follow, each in a column of its name (`extra/NAME` if the table above has that
name). A feature is small if it has at most 16 values, or a variable number of whole numbers or
texts. Its column holds lists unless the feature has a single value. A list of more than 64 values,
a text that is longer than 256 bytes or not UTF-8, and NaN become null.

Equal records give equal bytes with the same version of PyArrow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imageshards import bounds, storage
from imageshards.errors import IndexDamageError, UserError
from imageshards.example import Values
from imageshards.index.parquet import most_in, read_columns
from imageshards.manifest import (
    BUILD_AGAIN,
    CLASS_FEATURE,
    FILENAME_FEATURE,
    INDEX_NAME,
    LABEL_FEATURE,
    LABELS_FEATURE,
    NONE,
    ONE,
    RECORD_FEATURES,
    SEVERAL,
    SHA256_FEATURE,
    FeatureSpec,
    IndexFile,
    Manifest,
    Shard,
    record_features,
)
from imageshards.manifest.file import find_splits, keeps_jpegs
from imageshards.text import counted
from imageshards.tfrecord import FRAME_BYTES

# Column → its Arrow type, in the order of the files.
COLUMNS = {
    "key": "string",
    "split": "string",
    "class_name": "string",
    "label": "int64",
    "shard": "string",
    "record": "int64",
    "offset": "int64",
    "num_bytes": "int64",
    "source_sha256": "string",
    "source_bytes": "int64",
    "width": "int64",
    "height": "int64",
}
IS_ORIGINAL = "is_original"
# Feature of a record → the column with the same value.
COLUMN_OF = {
    FILENAME_FEATURE: "key",
    CLASS_FEATURE: "class_name",
    LABEL_FEATURE: "label",
    SHA256_FEATURE: "source_sha256",
    "image/width": "width",
    "image/height": "height",
}
# These columns hold lists if images have several labels, and are absent without labels.
OF_LABEL = ("class_name", "label")
# Writers compute these columns again when a record moves to another place.
_OF_PLACE = ("split", "shard", "record", "offset")

MAX_VALUES = 16
MAX_LIST_VALUES = 64
MAX_TEXT_BYTES = 256
# Only these columns may be null: a record that was copied does not say how large its original was.
_UNKNOWN = ("source_bytes",)
# Parquet's dictionary encoding saves bytes only for texts that repeat.
_REPEATED = ["split", "class_name", "shard"]


@dataclasses.dataclass
class IndexRows:
    """Rows of records that have no place in a shard yet.

    Attributes:
        columns: Column → a value per record, without the columns of the place. The columns of
            labels hold a list for several labels and None for no label.
        extra: Feature → a list of values per record, None for too many values. The features that
            the dataset declares decide which of them become columns (`extra_columns`).
    """

    columns: dict[str, list[Any]] = dataclasses.field(
        default_factory=lambda: {n: [] for n in (*COLUMNS, IS_ORIGINAL) if n not in _OF_PLACE}
    )
    extra: dict[str, list[Any]] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["key"])

    def add(
        self,
        features: Mapping[str, Values],
        num_bytes: int,
        source_bytes: int | None,
        extra: Mapping[str, Values] | None = None,
        is_original: bool = False,
    ) -> None:
        """Adds the row of a record, whose size with framing is `num_bytes`.

        `extra` holds the features that may become columns; None for all but `RECORD_FEATURES`.
        """
        if extra is None:
            extra = {name: features[name] for name in features.keys() - RECORD_FEATURES.keys()}
        before, columns = len(self), self.columns
        for feature, column in COLUMN_OF.items():
            if column not in OF_LABEL:
                columns[column].append(_plain(features[feature][0]))
        names = [_plain(name) for name in features.get(CLASS_FEATURE, ())]
        labels: Any = features.get(LABELS_FEATURE)
        # One class, lists of several classes, or None twice.
        if LABEL_FEATURE in features:
            columns["class_name"].append(names[0])
            columns["label"].append(_plain(features[LABEL_FEATURE][0]))
        else:
            columns["class_name"].append(None if labels is None else names)
            columns["label"].append(None if labels is None else [*labels])
        columns["num_bytes"].append(num_bytes)
        columns["source_bytes"].append(source_bytes)
        columns[IS_ORIGINAL].append(int(is_original))
        for name, found in extra.items():
            values = self.extra.setdefault(name, [])
            # Earlier records may lack this feature.
            values += [None] * (before - len(values))
            values.append([*map(_small, found)] if len(found) <= MAX_LIST_VALUES else None)


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _small(value: bytes | int | float) -> str | int | float | None:
    """Returns a value for an extra column; None for NaN, and for a long or undecodable text."""
    if not isinstance(value, bytes):
        return None if value != value else value  # Only NaN differs from itself.
    try:
        return value.decode() if len(value) <= MAX_TEXT_BYTES else None
    except UnicodeDecodeError:
        return None


def extra_columns(features: Mapping[str, FeatureSpec], label: str = ONE) -> dict[str, str]:
    """Returns column → feature for the small extra features of a manifest, sorted by feature."""
    found = {}
    for name in sorted(features.keys() - record_features(label).keys()):
        dtype, shape = features[name].dtype, features[name].shape
        # A variable number of whole numbers or texts may be labels.
        is_small = dtype != "float32" if shape is None else math.prod(shape) <= MAX_VALUES
        if is_small:
            found[f"extra/{name}" if name in (*COLUMNS, IS_ORIGINAL) else name] = name
    return found


def index_schema(
    features: Mapping[str, FeatureSpec], label: str = ONE, only: Iterable[str] | None = None,
    keeps_jpegs: bool = False,
) -> pa.Schema:  # fmt: skip
    """Returns the columns of an index, for the features, label and `keeps_jpegs` of a manifest.

    `only` names the columns to return if the index has them; None for all columns.
    """
    types = {"int64": pa.int64(), "float32": pa.float32(), "string": pa.string()}
    lists = OF_LABEL if label == SEVERAL else ()
    fields = [
        pa.field(name, pa.list_(types[kind]) if name in lists else types[kind])
        for name, kind in COLUMNS.items()
        if label != NONE or name not in OF_LABEL
    ]
    fields += [pa.field(IS_ORIGINAL, pa.int64())] * keeps_jpegs
    for column, feature in extra_columns(features, label).items():
        kind = types[features[feature].dtype]
        fields.append(pa.field(column, kind if features[feature].shape == () else pa.list_(kind)))
    found = {field.name: field for field in fields}
    return pa.schema([found[name] for name in (found if only is None else only) if name in found])


def index_file(shard_file: str) -> str:
    """Returns the path, below the dataset, of the index of a shard."""
    return f"{INDEX_NAME}/{shard_file.partition('.tfrecord')[0]}.parquet"


def index_table(
    rows: IndexRows,
    split: str,
    shard_file: str,
    features: Mapping[str, FeatureSpec],
    label: str = ONE,
    keeps_jpegs: bool = False,
) -> pa.Table:
    """Returns the index of a shard whose records are `rows`, in order."""
    count = len(rows)
    columns: dict[str, Any] = {
        **rows.columns,
        "split": [split] * count,
        **_places_in(shard_file, rows.columns["num_bytes"]),
    }
    for column, name in extra_columns(features, label).items():
        # The last records may lack the feature, so the list may be too short.
        values = [*rows.extra.get(name, []), *[None] * count][:count]
        if features[name].shape == ():
            values = [value[0] if value else None for value in values]
        columns[column] = values
    schema = index_schema(features, label, keeps_jpegs=keeps_jpegs)
    return pa.table({field.name: columns[field.name] for field in schema}, schema=schema)


def _places_in(shard_file: str, sizes: Sequence[int]) -> dict[str, Sequence[Any]]:
    """Returns the columns of the place, for consecutive records of these sizes."""
    # `accumulate` also yields the end of the last record.
    offsets = list(itertools.accumulate(sizes, initial=0))[: len(sizes)]
    return {"shard": [shard_file] * len(sizes), "record": range(len(sizes)), "offset": offsets}


def moved_rows(table: pa.Table, shard_file: str) -> pa.Table:
    """Returns rows of one split with their places in the shard that now holds their records."""
    # With one chunk, Parquet writes the same bytes as for rows that were never moved.
    table = table.combine_chunks()
    places = _places_in(shard_file, table["num_bytes"].to_pylist())
    return pa.table({n: places.get(n, table[n]) for n in table.column_names}, schema=table.schema)


def write_index(directory: str, shard_file: str, table: pa.Table) -> IndexFile:
    """Writes the index of one shard and returns its entry in the manifest."""
    entry, data = encode_index(shard_file, table)
    storage.write(storage.join(directory, entry.file), data)
    return entry


def encode_index(shard_file: str, table: pa.Table) -> tuple[IndexFile, bytes]:
    """Returns the manifest's entry for the index of a shard, and the bytes of the file."""
    stream = pa.BufferOutputStream()
    # `store_schema` would add Arrow's schema to the file, which repeats the schema of Parquet.
    pq.write_table(
        table, stream, compression="zstd", compression_level=1, use_dictionary=_REPEATED,
        store_schema=False,
    )  # fmt: skip
    data = stream.getvalue().to_pybytes()
    sha256 = hashlib.sha256(data).hexdigest()
    return IndexFile(index_file(shard_file), len(data), sha256), data


def read_index(
    directory: str,
    manifest: Manifest,
    split: str | None = None,
    columns: Iterable[str] | None = None,
    argument: str = "directory",
) -> pa.Table:
    """Returns the rows of all records, in the order of the manifest's shards.

    Args:
        directory, manifest: The dataset, local or in a store.
        split: A split, or several between commas (`find_splits`); None for all splits.
        columns: The columns to return; None for all columns.
        argument: The name of the argument that received the dataset, for errors.

    Raises:
        UserError: The split or a column is unknown, or the index is missing or damaged.
    """
    splits = [*manifest.splits] if split is None else find_splits(split, manifest.splits, "split")
    schema = index_schema(manifest.features, manifest.label, None, keeps_jpegs(manifest))
    if columns is not None:
        columns = [columns] if isinstance(columns, str) else [*dict.fromkeys(columns)]
        for name in columns:
            if name not in schema.names:
                expected = f"some of {', '.join(schema.names)}"
                raise UserError(argument="columns", received=repr(name), expected=expected)
        schema = pa.schema([schema.field(name) for name in columns])
    wanted = [shard for name, shard in manifest.shards() if name in splits]
    tables = storage.map_concurrently(
        lambda shard: read_shard_index(directory, shard, schema, argument, manifest.make_again),
        wanted,
    )
    return pa.concat_tables([schema.empty_table(), *tables])


def read_shard_index(
    directory: str,
    shard: Shard,
    schema: pa.Schema | None = None,
    argument: str = "directory",
    make_again: str = BUILD_AGAIN,
) -> pa.Table:
    """Reads and checks the columns of `schema`, or all columns, of the index of one shard.

    Raises:
        IndexDamageError: The file is missing, damaged, or differs from its entry in the manifest.
    """
    entry = shard.index
    path = storage.join(directory, entry.file)
    problem = ""
    try:
        # The byte behind the expected ones shows a larger file.
        data = storage.read(path, entry.num_bytes + 1)
        if len(data) != entry.num_bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
            problem = "is not the file that manifest.json names: its bytes differ"
        else:
            file = pq.ParquetFile(pa.BufferReader(data))
            schema = file.schema_arrow if schema is None else schema
            # The check of the rows needs the sizes, even if the caller does not.
            whole = pa.unify_schemas([schema, pa.schema([("num_bytes", pa.int64())])])
            problem = _number_problem(file.metadata.num_rows, shard)
            if not problem:
                most = most_in(whole, shard.num_records, len(data), OF_LABEL)
                table = read_columns(data, whole, most)
                problem = _number_problem(len(table), shard) or _rows_problem(table, shard)
            if not problem:
                return table.select(schema.names)
    except FileNotFoundError:
        problem = "is missing"
    except OSError as e:
        problem = f"cannot be read ({(e.strerror or str(e)).splitlines()[0].rstrip('.')})"
    except (pa.ArrowException, KeyError, ValueError) as e:
        problem = f"lacks the columns of an index ({str(e).splitlines()[0].rstrip('.')})"
    error = IndexDamageError(
        argument=argument,
        received=f"{directory!r}, whose {entry.file} {problem}",
        expected="the file as it was written",
        remedy=f"copy it again, or {make_again}",
    )
    error.damage = problem
    raise error


def _number_problem(rows: int, shard: Shard) -> str:
    if rows == shard.num_records:
        return ""
    return f"has {counted(rows, 'row')}; the manifest says {counted(shard.num_records, 'record')}"


def _rows_problem(table: pa.Table, shard: Shard) -> str:
    """Returns the damage in the rows of a shard as the end of a sentence; "" for none.

    Readers trust the rows for names of files and ranges of bytes, so these must stay in the shard.
    """
    for name in table.column_names:
        column = table[name]
        lists = pc.list_flatten(column).null_count if pa.types.is_list(column.type) else 0
        if name in COLUMNS and name not in _UNKNOWN and column.null_count + lists:
            return f"does not say the {name} of each record"
    sizes = table["num_bytes"].to_numpy()
    # Python adds without overflow. NumPy's sum of forged sizes could wrap around to the right sum.
    if sum(sizes.tolist()) != shard.num_bytes or not (
        FRAME_BYTES <= sizes.min(initial=FRAME_BYTES)
        and sizes.max(initial=FRAME_BYTES) <= bounds.MAX_RECORD_BYTES + FRAME_BYTES
    ):
        return "has num_bytes that do not match the records"
    places = {
        "shard": shard.name,
        "record": pa.array(np.arange(len(sizes))),
        "offset": pa.array(np.cumsum(sizes) - sizes),
    }
    for name in places.keys() & {*table.column_names}:
        if pc.any(pc.not_equal(table[name], places[name])).as_py():
            return f"has a {name} that does not match the records"
    if "source_sha256" in table.column_names:
        is_sha256 = pc.match_substring_regex(table["source_sha256"], "^[0-9a-f]{64}$")
        if pc.any(pc.invert(is_sha256)).as_py():
            return "has a source_sha256 that is no SHA-256"
    return ""
