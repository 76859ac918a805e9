"""Converts references to the Arrow record batches that TFT reads, and TFT's results back."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from beam_pipeline.columns.export import LABEL_IDS, LABEL_TEXT
from beam_pipeline.options import ColumnSpec
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards.errors import UserError
from imageshards.progress import note_activity
from imageshards.text import shortened

# Column with the pickled reference, which TFT passes through. No feature may have this name.
REF_COLUMN = "__image_ref__"

_ARROW_TYPES = {"int": pa.int64(), "float": pa.float32(), "string": pa.binary()}
_EXPECTED = {"int": "a 64-bit integer", "float": "a number within float32", "string": "a string"}
_CONVERSION_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError)


def arrow_schema(columns: Sequence[ColumnSpec]) -> pa.Schema:
    """Returns the schema of a record batch: a list for each column, and one for the reference."""
    fields = [pa.field(spec.name, pa.list_(_ARROW_TYPES[spec.kind])) for spec in columns]
    return pa.schema([*fields, pa.field(REF_COLUMN, pa.list_(pa.binary()))])


def to_record_batches(batch: RefBatch, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
    """Yields one `pa.RecordBatch` with a row for each reference, in order; none for no reference.

    The column `LABEL_TEXT` stores the label, and each other column is an extra column. A missing
    list of variable length becomes []; any other missing value is an error. Unscaled columns may
    have NaN and infinities. Scaled columns may have no infinities, and no NaN in lists. Raises
    `UserError` with key and column if a value is missing, or has a wrong type or length.
    """
    refs = batch.refs
    if not refs:
        return
    note_activity("analysing columns", len(refs), "row")
    arrays = [_column_array(refs, spec) for spec in columns]
    pickled = [pickle.dumps(tuple(ref._replace(columns=None)), protocol=5) for ref in refs]
    arrays.append(_one_value_lists(pa.array(pickled, pa.binary())))
    yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def to_ref_batch(transformed: tuple[pa.RecordBatch, Any]) -> RefBatch:
    """Turns transformed rows into references whose `columns` are the features of the record."""
    record_batch, _ = transformed
    rows: dict[str, list[list[Any]]] = {}
    for name, array in zip(record_batch.schema.names, record_batch.columns, strict=True):
        if name not in LABEL_IDS.values():
            # A record stores a flat list for each feature, so inner dimensions are joined.
            while pa.types.is_nested(array.type.value_type):
                inner = array.values
                offsets = inner.offsets.take(array.offsets)
                array = type(array).from_arrays(offsets, inner.values)
            rows[name] = array.to_pylist()
    pickled = rows.pop(REF_COLUMN)
    names = sorted(rows)
    refs = [
        ImageRef._make(pickle.loads(ref[0]))._replace(columns=dict(zip(names, values, strict=True)))
        for ref, *values in zip(pickled, *(rows[name] for name in names), strict=True)
    ]
    return RefBatch(refs)


def _one_value_lists(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(np.arange(len(values) + 1, dtype=np.int32), values)


def _column_array(refs: Sequence[ImageRef], spec: ColumnSpec) -> pa.Array:
    rows: list[Any] = [None if r.columns is None else r.columns.get(spec.name) for r in refs]
    if spec.name == LABEL_TEXT:
        rows = [ref.label for ref in refs]
    try:
        return _rows_array(rows, spec)
    except _CONVERSION_ERRORS as e:
        # Arrow does not say which row is wrong, so the rows are tried one by one.
        for ref, row in zip(refs, rows, strict=True):
            try:
                _rows_array([row], spec)
            except _CONVERSION_ERRORS as cause:
                raise _wrong_value(ref, row, spec) from cause
        raise UserError(f"column {spec.name!r} could not be read ({e}).") from e


def _rows_array(rows: Sequence[Any], spec: ColumnSpec) -> pa.Array:
    """Returns an Arrow array; raises one of `_CONVERSION_ERRORS` if a row does not fit `spec`."""
    if spec.shape == ():
        return _one_value_lists(_values_array(rows, spec))
    lists = [() if row is None and spec.shape is None else row for row in rows]
    if any(isinstance(row, str | bytes) for row in lists):
        raise TypeError("a string is not a list")
    lengths = [len(row) for row in lists]  # a scalar has no len: TypeError
    if spec.shape is not None and set(lengths) - {spec.shape[0]}:
        raise ValueError("length")
    flat = [value for row in lists for value in row]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, _values_array(flat, spec))


def _values_array(values: Sequence[Any], spec: ColumnSpec) -> pa.Array:
    if spec.kind == "string":
        array = pa.array(values, pa.binary())
    elif spec.kind == "float":  # from_pandas=True would read NaN as missing
        array = pa.array(values, pa.float64(), from_pandas=False)
    else:
        # A conversion to int64 would turn 1.5 into 1, so Arrow infers the type first.
        seen = pa.array(values)
        if len(seen) and not pa.types.is_signed_integer(seen.type):
            raise TypeError(f"{seen.type} is not int64")
        array = seen.cast(pa.int64())
    if array.null_count:
        raise ValueError("missing")
    if spec.kind != "float":
        return array
    doubles = array.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        floats = doubles.astype(np.float32)
    if not np.isfinite(floats[np.isfinite(doubles)]).all():
        raise OverflowError("beyond float32")
    is_wrong = np.isinf(floats) if spec.shape == () else ~np.isfinite(floats)
    if spec.scale != "none" and is_wrong.any():
        raise ValueError("not finite")
    return pa.array(floats, pa.float32(), from_pandas=False)


def _wrong_value(ref: ImageRef, row: Any, spec: ColumnSpec) -> UserError:
    expected = _EXPECTED[spec.kind]
    if spec.scale != "none":
        expected += ", not infinite" if spec.shape == () else ", not NaN or infinite"
    if spec.shape != ():
        expected = f"a list{f' of {spec.shape[0]}' if spec.shape else ''}, each value {expected}"
    received = "no value" if row is None else shortened(repr(row), 80)
    return UserError(
        f"column {spec.name!r} of {ref.key!r} received {received}",
        expected=expected,
        remedy="fix the row or leave the column out",
    )
