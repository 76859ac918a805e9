"""The labels of records, and which of them pass `--where`: from a dataset's index alone."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards.errors import UserError
from imageshards.index import (
    COLUMN_OF,
    MAX_LIST_VALUES,
    MAX_TEXT_BYTES,
    extra_columns,
    read_index,
)
from imageshards.manifest import LABELS_FEATURE, SEVERAL
from imageshards.text import class_sort_key, counted
from trainer.dataset.spec import DatasetSpec, FeatureSpec, Split, find_feature

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
# Longer operators come first: `>=` is not `>` of a value that begins with `=`.
_FILTER = re.compile(rf"\s*(.+?)\s*({'|'.join(OPERATORS)})\s*(.*?)\s*", re.DOTALL)
_INT64 = range(-(2**63), 2**63)
# A float is compared as records hold it: both sides are float32.
_DTYPES = {"int64": "int64", "float32": "float32", "string": "object"}


@dataclasses.dataclass(frozen=True)
class Filter:
    """A comparison of a scalar feature with a constant of its type; texts have `==` and `!=`."""

    feature: str
    operator: str
    value: int | float | str


def parse_filter(text: str, features: Mapping[str, FeatureSpec]) -> Filter:
    """Reads a filter such as `age>=18`, `image/class/text!=cat` or `note=='a, b '`.

    Raises:
        UserError: The text is no comparison, its feature is unknown or no single value, or the
            constant is not of the feature's type.
    """
    match = _FILTER.fullmatch(text)
    if not match:
        raise UserError(
            argument="where",
            received=repr(text),
            expected=f"FEATURE, one of {' '.join(OPERATORS)}, and a value, for example "
            "image/width>=128",
        )
    name, comparison, value = match.groups()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    spec = find_feature(name, features, "where", text)
    if spec.shape != ():
        raise UserError(
            argument="where",
            received=f"{text!r}, but {name} has {spec.form}",
            expected="a feature that is a single value",
        )
    if spec.dtype != "string":
        return Filter(name, comparison, _number(text, spec.dtype, value))
    if comparison not in ("==", "!="):
        raise UserError(
            argument="where",
            received=f"{text!r}, but {name} is a text",
            expected=f"== or != in place of {comparison}",
        )
    return Filter(name, comparison, value)


def _number(text: str, dtype: str, value: str) -> int | float:
    try:
        number = int(value) if dtype == "int64" else float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number) or (dtype == "int64" and number not in _INT64):
        kind = "a whole number" if dtype == "int64" else "a number"
        raise UserError(
            argument="where",
            received=f"{text!r}, whose value is {value!r}",
            expected=f"{kind} to compare a feature of type {dtype} with",
        )
    return number


def record_labels(
    dataset: DatasetSpec, split: Split, filters: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which records pass `filters`, and the labels of all, in the order of the shards of `split`.

    Returns:
        bool [records]; and for each label the number of its record within the split, int64, and
        its class id, int32: one for each record where the target is a class, none where it has no
        classes.

    Raises:
        UserError: There is no index, or it is damaged, or has labels that are no class; or a
            filter is wrong, or names a feature of which the index has no column.
    """
    import numpy as np  # a dataset is opened without it

    parsed = [parse_filter(text, dataset.features) for text in filters]
    column_of = columns_of(dataset)
    for one in parsed:
        if one.feature not in column_of:
            raise UserError(
                argument="where",
                received=f"a condition on {one.feature}, for which the index of {dataset.data!r} "
                "has no column",
                expected=f"one of {', '.join(column_of)}",
            )
    label = column_of[dataset.label_feature] if dataset.label_values else "label"
    # The sizes tell how many records there are.
    wanted = {"num_bytes", *(column_of[one.feature] for one in parsed)}
    if dataset.has_classes:
        wanted.add(label)
    table = read_index(dataset.data, dataset.manifest, split.name, wanted, "data")
    keep = np.ones(table.num_rows, bool)
    for one in parsed:
        keep &= _passes(one, dataset, table, column_of[one.feature])
    if not dataset.has_classes:
        return keep, np.zeros(0, np.int64), np.zeros(0, np.int32)
    return keep, *_ids_of(dataset, table[label].combine_chunks())


def _ids_of(dataset: DatasetSpec, values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Labels as the index has them → record and class id of each, checked; equal ones once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    records, count = np.arange(len(values)), len(dataset.classes)
    if pa.types.is_list(values.type):
        records, values = pc.list_parent_indices(values).to_numpy(), pc.list_flatten(values)
    first = dataset.label_offset
    if dataset.label_values:
        ids = pc.index_in(values, pa.array(dataset.label_values, values.type)).to_numpy()
    else:
        ids = values.to_numpy() - first
    if ids.size and not 0 <= ids.min() <= ids.max() < count:
        raise UserError(
            argument="data",
            received=f"{dataset.data!r}, whose index has labels from {ids.min() + first} to "
            f"{ids.max() + first}",
            expected=f"{count} classes from {first} on, as in its manifest.json",
            remedy="copy the dataset again",
        )
    if dataset.target == "labels":
        records, ids = np.divmod(np.unique(records * count + ids), count)
    return records.astype(np.int64), ids.astype(np.int32)


def column_numbers(dataset: DatasetSpec, split: Split, feature: str) -> np.ndarray | None:
    """A column of numbers of every record of `split`, float64 [records, k]; NaN where there is
    none. None where the index does not tell it.
    """
    import numpy as np
    import pyarrow.compute as pc

    column = columns_of(dataset).get(feature)
    if column is None:
        return None
    values = read_index(dataset.data, dataset.manifest, split.name, [column], "data")[column]
    shape = dataset.features[feature].shape
    if not shape:
        return values.to_numpy().astype(np.float64)[:, np.newaxis]
    rows = np.full((len(values), math.prod(shape)), math.nan)
    # A record that lacks the list has null, or another number of values.
    whole = pc.fill_null(pc.equal(pc.list_value_length(values), rows.shape[1]), False)
    told = pc.list_flatten(values.filter(whole)).to_numpy()
    rows[whole.to_numpy()] = told.reshape(-1, rows.shape[1])
    return rows


def distinct_values(dataset: DatasetSpec, column: str) -> tuple[int, ...] | tuple[str, ...]:
    """The values that a column, a target, has in the index, each once, in rising order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    name = columns_of(dataset).get(column)
    table = read_index(dataset.data, dataset.manifest, None, [name] if name else [], "data")
    values = table[name].combine_chunks() if name else pa.nulls(table.num_rows)
    unknown = values.null_count
    if pa.types.is_list(values.type):
        values = pc.list_flatten(values)
        unknown += values.null_count
    if unknown:
        raise UserError(
            argument="target",
            received=f"{column!r}, of which the index of {dataset.data!r} lacks "
            f"{counted(unknown, 'value')}",
            expected=f"texts of up to {MAX_TEXT_BYTES} bytes and lists of up to {MAX_LIST_VALUES}, "
            "which an index holds",
            remedy="build the dataset again where an older imageshards built it",
        )
    is_text = pa.types.is_string(values.type)
    return tuple(sorted(pc.unique(values).to_pylist(), key=class_sort_key if is_text else None))


def columns_of(dataset: DatasetSpec) -> dict[str, str]:
    """Feature → the column of the index that says the same, of features that are there."""
    manifest = dataset.manifest
    extra = extra_columns(manifest.features, manifest.label)
    found = {feature: column for column, feature in extra.items()}
    if dataset.adopted:
        # Others give our names to other things; the index holds what the roles say.
        found |= {name: at for name, at in COLUMN_OF.items() if at in ("width", "height")}
        if label := manifest.roles.label:
            found[label] = "label" if dataset.features[label].dtype == "int64" else "class_name"
    else:
        found |= COLUMN_OF
        if manifest.label == SEVERAL:
            found[LABELS_FEATURE] = "label"  # a list
    return {name: column for name, column in found.items() if name in dataset.features}


def _passes(one: Filter, dataset: DatasetSpec, table: pa.Table, column: str) -> np.ndarray:
    import numpy as np

    dtype = _DTYPES[dataset.features[one.feature].dtype]
    # A condition on the label means the class id. Null, a text too long for the index, is equal to
    # no text.
    values = table[column].to_numpy().astype(dtype)
    if column == "label":
        values = values - dataset.label_offset
    return np.asarray(OPERATORS[one.operator](values, np.array(one.value, dtype)), bool)
