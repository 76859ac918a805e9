"""`index/`: a row for every record of a dataset, one Parquet file per shard.

So a dataset can be looked into, joined and cut without reading its pictures. The columns:

    key, split, class_name, label      as in the record and the manifest; where images have several
                                       labels, class_name and label are lists, and where they have
                                       none there are no such columns
    shard, record                      name of the shard's file, number of the record in it from 0
    offset, num_bytes                  of the record's frame (header and checksums included)
    source_sha256, source_bytes        of the original file; its size is null where that is unknown
    width, height                      of the record's picture, in pixels

and the small extra columns, each under the name of its feature (`extra/NAME` where one of the
above has that name): those with a fixed length of at most 16 numbers or texts, a list unless they
are single values, and lists of any length of whole numbers or texts, such as labels. A list of more
than 64, a text of more than 256 bytes, or in no UTF-8, is null, and so is NaN, a missing value.

The same records give the same bytes, with the same version of PyArrow. That is imported only where
a table is written or read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards import storage
from imageshards.errors import IndexDamageError, UserError
from imageshards.example import Values
from imageshards.manifest import (
    CLASS_FEATURE,
    FILENAME_FEATURE,
    FRAME_BYTES,
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
    find_split,
    record_features,
)
from imageshards.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

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
# Feature of a record → the column that says the same.
COLUMN_OF = {
    FILENAME_FEATURE: "key",
    CLASS_FEATURE: "class_name",
    LABEL_FEATURE: "label",
    SHA256_FEATURE: "source_sha256",
    "image/width": "width",
    "image/height": "height",
}
# Lists where images have several labels, absent where they have none.
OF_LABEL = ("class_name", "label")
# Recomputed when a record moves to another shard or place.
_OF_PLACE = ("split", "shard", "record", "offset")

MAX_VALUES = 16
MAX_LIST_VALUES = 64
MAX_TEXT_BYTES = 256
# Columns that may be null: what a copied record does not tell.
_UNKNOWN = ("source_bytes",)
# Dictionary-encode only these columns: texts that are all different would gain nothing.
_REPEATED = ["split", "class_name", "shard"]


@dataclasses.dataclass
class IndexRows:
    """Rows of some records, wherever these are going to be.

    Attributes:
        columns: Column → a value per record, of all columns that tell no place. Those of labels
            have a list per record where it has several, None where it has none.
        extra: Feature → a list of values per record, None where there are too many. Which of
            these become columns is decided by what the dataset declares (`extra_columns`).
    """

    columns: dict[str, list[Any]] = dataclasses.field(
        default_factory=lambda: {name: [] for name in COLUMNS if name not in _OF_PLACE}
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
    ) -> None:
        """Adds the row of a record, whose size with its framing is `num_bytes`.

        The size of the original file is None where it is unknown. `extra` are the features that may
        become columns; None for all that are not `RECORD_FEATURES`.
        """
        if extra is None:
            extra = {name: features[name] for name in features.keys() - RECORD_FEATURES.keys()}
        before, columns = len(self), self.columns
        for feature, column in COLUMN_OF.items():
            if column not in OF_LABEL:
                columns[column].append(_plain(features[feature][0]))
        for column, value in zip(OF_LABEL, _labels_of(features), strict=True):
            columns[column].append(value)
        columns["num_bytes"].append(num_bytes)
        columns["source_bytes"].append(source_bytes)
        for name, found in extra.items():
            values = self.extra.setdefault(name, [])
            values += [None] * (before - len(values))
            values.append(_small_values(found))


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _labels_of(features: Mapping[str, Values]) -> tuple[Any, Any]:
    """What `OF_LABEL` say of a record: its class, lists of several, or None twice."""
    names = [_plain(name) for name in features.get(CLASS_FEATURE, ())]
    if LABEL_FEATURE in features:
        return names[0], _plain(features[LABEL_FEATURE][0])
    return (names, [*features[LABELS_FEATURE]]) if LABELS_FEATURE in features else (None, None)


def _small_values(values: Values) -> list[Any] | None:
    if len(values) > MAX_LIST_VALUES:
        return None
    return [_text(v) if isinstance(v, bytes) else None if v != v else v for v in values]


def _text(value: bytes) -> str | None:
    if len(value) > MAX_TEXT_BYTES:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def extra_columns(features: Mapping[str, FeatureSpec], label: str = ONE) -> dict[str, str]:
    """Column → feature, of the extra columns that are small, by name of the feature.

    `features` are the manifest's, `label` is `manifest.label`.
    """
    return {
        f"extra/{name}" if name in COLUMNS else name: name
        for name in sorted(features.keys() - record_features(label).keys())
        if _is_small(features[name])
    }


def _is_small(feature: FeatureSpec) -> bool:
    if feature.shape is None:
        return feature.dtype != "float32"
    return math.prod(feature.shape) <= MAX_VALUES


def index_schema(features: Mapping[str, FeatureSpec], label: str = ONE) -> pa.Schema:
    """The columns of the index of a dataset with these features, those of the manifest.

    `label` is its `manifest.label`.
    """
    import pyarrow as pa

    types = {"int64": pa.int64(), "float32": pa.float32(), "string": pa.string()}
    lists = OF_LABEL if label == SEVERAL else ()
    fields = [
        pa.field(name, pa.list_(types[kind]) if name in lists else types[kind])
        for name, kind in COLUMNS.items()
        if label != NONE or name not in OF_LABEL
    ]
    for column, feature in extra_columns(features, label).items():
        kind = types[features[feature].dtype]
        fields.append(pa.field(column, kind if features[feature].shape == () else pa.list_(kind)))
    return pa.schema(fields)


def index_file(shard_file: str) -> str:
    """Path, below the dataset, of the index of a shard."""
    return f"{INDEX_NAME}/{shard_file.partition('.tfrecord')[0]}.parquet"


def index_table(
    rows: IndexRows,
    split: str,
    shard_file: str,
    features: Mapping[str, FeatureSpec],
    label: str = ONE,
) -> pa.Table:
    """The index of a shard whose records are `rows`, in order; other args as of `index_schema`."""
    import pyarrow as pa

    count = len(rows)
    columns: dict[str, Any] = {
        **rows.columns,
        "split": [split] * count,
        **_places_in(shard_file, rows.columns["num_bytes"]),
    }
    for column, name in extra_columns(features, label).items():
        values = [*rows.extra.get(name, []), *[None] * count][:count]
        if features[name].shape == ():
            values = [value[0] if value else None for value in values]
        columns[column] = values
    schema = index_schema(features, label)
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _places_in(shard_file: str, sizes: Sequence[int]) -> dict[str, Sequence[Any]]:
    """The columns that say where records of these sizes are, one after the other, in a shard."""
    offsets = list(itertools.accumulate(sizes, initial=0))[: len(sizes)]
    return {"shard": [shard_file] * len(sizes), "record": range(len(sizes)), "offset": offsets}


def moved_rows(table: pa.Table, shard_file: str) -> pa.Table:
    """Rows of indexes of one split as the index of a shard that has their records, in order."""
    import pyarrow as pa

    table = table.combine_chunks()
    for name, values in _places_in(shard_file, table["num_bytes"].to_pylist()).items():
        number = table.schema.get_field_index(name)
        field = table.schema.field(number)
        table = table.set_column(number, field, pa.array(values, field.type))
    return table


def write_index(directory: str, shard_file: str, table: pa.Table) -> IndexFile:
    """Writes the index of one shard; returns its entry in the manifest.

    Raises:
        OSError, StorageError: It cannot be written.
    """
    entry, data = encode_index(shard_file, table)
    storage.write(storage.join(directory, entry.file), data)
    return entry


def encode_index(shard_file: str, table: pa.Table) -> tuple[IndexFile, bytes]:
    """Returns what the manifest says of the index of a shard, and the bytes of its file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = pa.BufferOutputStream()
    # Without Arrow's own schema, which says nothing more: what a tool reads is what Parquet says.
    pq.write_table(
        table, stream, compression="zstd", compression_level=1, use_dictionary=_REPEATED,
        store_schema=False,
    )  # fmt: skip
    data = stream.getvalue().to_pybytes()
    entry = IndexFile(index_file(shard_file), len(data), _sha256(data))
    return entry, data


def read_index(
    directory: str,
    manifest: Manifest,
    split: str | None = None,
    columns: Iterable[str] | None = None,
    argument: str = "directory",
) -> pa.Table:
    """The rows of all records, in the order of the manifest's shards.

    Args:
        directory, manifest: The dataset, here or in a store.
        split: One of its splits, as `find_split` finds it; None for all.
        columns: The columns that are wanted; None for all.
        argument: What received the dataset, for messages.

    Raises:
        UserError: There is no such split or column, or the index is missing, incomplete, damaged
            or another dataset's.
    """
    import pyarrow as pa

    if split is not None:
        split = find_split(split, manifest.splits, "split")
    schema = index_schema(manifest.features, manifest.label)
    if columns is not None:
        columns = [columns] if isinstance(columns, str) else list(columns)
        for name in columns:
            if name not in schema.names:
                expected = f"some of {', '.join(schema.names)}"
                raise UserError(argument="columns", received=repr(name), expected=expected)
            if columns.count(name) > 1:
                received, expected = f"{name!r} twice", "each column once"
                raise UserError(argument="columns", received=received, expected=expected)
        schema = pa.schema([schema.field(name) for name in columns])
    wanted = [shard for name, shard in manifest.shards() if split in (None, name)]
    tables = storage.map_concurrently(
        lambda shard: read_shard_index(directory, shard, schema, argument), wanted
    )
    return pa.concat_tables([schema.empty_table(), *tables])


def read_shard_index(
    directory: str,
    shard: Shard,
    schema: pa.Schema | None = None,
    argument: str = "directory",
) -> pa.Table:
    """Some columns of `index_schema` of one shard, whose entry in the manifest is `shard`; without
    a schema those that its file has.

    Raises:
        IndexDamageError: The file is missing, damaged, or not the one that the manifest names.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    entry = shard.index
    path = storage.join(directory, entry.file)
    problem = ""
    try:
        data = storage.read(path)
        if len(data) != entry.num_bytes or _sha256(data) != entry.sha256:
            problem = "is not the file that manifest.json names: its bytes are others"
        else:
            file = pq.ParquetFile(pa.BufferReader(data))
            schema = file.schema_arrow if schema is None else schema
            # The sizes tell where each record is, whatever else is wanted.
            whole = pa.unify_schemas([schema, pa.schema([("num_bytes", pa.int64())])])
            table = file.read(whole.names, use_threads=False)
            table = table.select(whole.names).cast(whole)
            problem = _rows_problem(table, shard)
            if not problem:
                return table.select(schema.names)
    except FileNotFoundError:
        problem = "is missing"
    except OSError as e:
        problem = f"cannot be read ({(e.strerror or str(e)).splitlines()[0].rstrip('.')})"
    except (pa.ArrowException, KeyError, ValueError) as e:
        problem = f"has not the columns of an index ({str(e).splitlines()[0].rstrip('.')})"
    error = IndexDamageError(
        argument=argument,
        received=f"{directory!r}, whose {entry.file} {problem}",
        expected="the file as it was written",
        remedy="copy it again, or make it again by imageshards build --overwrite, or by "
        "imageshards adopt for TFRecords of others",
    )
    error.problem = problem
    raise error


def _rows_problem(table: pa.Table, shard: Shard) -> str:
    """What no rows of this shard can say, as the end of a sentence; "" if they say nothing such.

    Rows lead to files and to ranges of bytes: they must not leave the shard.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if table.num_rows != shard.num_records:
        said = counted(shard.num_records, "record")
        return f"has {counted(table.num_rows, 'row')}; the manifest says {said}"
    for name in table.column_names:
        if name in COLUMNS and name not in _UNKNOWN and table[name].null_count:
            return f"does not say the {name} of each record"
    sizes = table["num_bytes"].to_numpy()
    # Added by Python: NumPy's sum of sizes that nobody wrote may wrap around to the right one.
    if sum(sizes.tolist()) != shard.num_bytes or sizes.min(initial=FRAME_BYTES) < FRAME_BYTES:
        return "says other num_bytes than those of its records"
    places = {
        "shard": shard.name,
        "record": pa.array(np.arange(len(sizes))),
        "offset": pa.array(np.cumsum(sizes) - sizes),
    }
    for name in places.keys() & {*table.column_names}:
        if pc.any(pc.not_equal(table[name], places[name])).as_py():
            return f"says another {name} than that of its records"
    if "source_sha256" in table.column_names:
        is_sha256 = pc.match_substring_regex(table["source_sha256"], "^[0-9a-f]{64}$")
        if pc.any(pc.invert(is_sha256)).as_py():
            return "says a source_sha256 that is none"
    return ""


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
