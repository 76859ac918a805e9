"""Reads columns of a Parquet file that may come from a stranger, within bounds of memory.

A few bytes of such a file may stand for billions of values. So the file's own numbers are checked
first, and texts that repeat are read as numbers of a dictionary.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

# Further encodings share the beginnings of texts, for example.
_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE", "RLE_DICTIONARY", "BIT_PACKED"}


class Most(NamedTuple):
    """The most values and bytes that a column may have."""

    values: int
    num_bytes: int


def read_columns(data: bytes, schema: pa.Schema, most: Mapping[str, Most]) -> pa.Table:
    """Returns the columns of a schema; `most` has the bounds of each column.

    Raises:
        ValueError: A column is larger than its bounds, or has an unusual encoding.
        KeyError, pa.ArrowException: A column is missing, or the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    chunks = defaultdict(list)
    numbers = itertools.product(range(metadata.num_row_groups), range(metadata.num_columns))
    for group, number in numbers:
        chunk = metadata.row_group(group).column(number)
        path = chunk.path_in_schema
        chunks[path if path in most else path.rpartition(".list.")[0]].append(chunk)
    repeated = []
    for name in schema.names:
        values = sum(chunk.num_values for chunk in chunks[name])
        num_bytes = sum(chunk.total_uncompressed_size for chunk in chunks[name])
        encodings = {encoding for chunk in chunks[name] for encoding in chunk.encodings}
        _check(name, Most(values, num_bytes), most[name])
        if not encodings <= _ENCODINGS:
            raise ValueError(f"{name} has the encodings {', '.join(encodings)}")
        if any("DICTIONARY" in encoding for encoding in encodings):
            repeated += [c.path_in_schema for c in chunks[name] if c.physical_type == "BYTE_ARRAY"]
    file = pq.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=repeated)
    # The threads of the callers already read several files at the same time.
    table = file.read(schema.names, use_threads=False).select(schema.names)
    for name in schema.names:
        _check(name, Most(0, _text_bytes(table[name])), most[name])
    return table.cast(schema)


def _check(name: str, found: Most, most: Most) -> None:
    if found.values > most.values or found.num_bytes > most.num_bytes:
        raise ValueError(f"{name} is too large for the number of rows")


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Returns the bytes that the texts of a column take without a dictionary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    total = 0
    for chunk in column.chunks:
        values = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
        if pa.types.is_dictionary(values.type):
            lengths = pc.take(pc.binary_length(values.dictionary), values.indices)
            total += pc.sum(lengths).as_py() or 0
    return total
