"""Reads the labels of records, and the records that pass `--where`, from the index alone."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imageshards.errors import UserError
from imageshards.index import COLUMN_OF, MAX_LIST_VALUES, MAX_TEXT_BYTES, extra_columns, read_index
from imageshards.manifest import LABELS_FEATURE, SEVERAL
from imageshards.text import class_sort_key, counted
from trainer.dataset.spec import DatasetSpec, FeatureSpec, Split, find_feature

if TYPE_CHECKING:
    import pyarrow as pa

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
# The longer operators come first, so that `>=` is not read as `>` and a value that begins with `=`.
_FILTER = re.compile(rf"\s*(.+?)\s*({'|'.join(OPERATORS)})\s*(.*?)\s*", re.DOTALL)
_INT64 = range(-(2**63), 2**63)
# Records store floats as float32, so both sides of a comparison are float32.
_DTYPES = {"int64": "int64", "float32": "float32", "string": "object"}


@dataclasses.dataclass(frozen=True)
class Filter:
    """A comparison of a feature with a constant of the same type; texts have `==` and `!=` only."""

    feature: str
    operator: str
    value: int | float | str


def parse_filter(text: str, features: Mapping[str, FeatureSpec]) -> Filter:
    """Parses a filter like `age>=18`, `image/class/text!=cat` or `note=='a, b '`.

    Raises:
        UserError: The text is no comparison, the feature is unknown or has several values, or the
            constant has another type than the feature.
    """

    def refused(why: str, expected: str) -> UserError:
        return UserError(argument="where", received=f"{text!r}{why}", expected=expected)

    match = _FILTER.fullmatch(text)
    if not match:
        form = f"FEATURE, one of {' '.join(OPERATORS)}, and a value"
        raise refused("", f"{form}, for example image/width>=128")
    name, comparison, value = match.groups()
    # Quotes keep the spaces at the ends of a text.
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    spec = find_feature(name, features, "where", text)
    if spec.shape != ():
        raise refused(f", but {name} has {spec.form}", "a feature that is a single value")
    if spec.dtype == "string":
        if comparison not in ("==", "!="):
            raise refused(f", but {name} is a text", f"== or != in place of {comparison}")
        return Filter(name, comparison, value)
    kind = "a whole number" if spec.dtype == "int64" else "a number"
    try:
        number = int(value) if spec.dtype == "int64" else float(value)
    except ValueError:
        number = math.nan
    # `isnan` would overflow for a very large integer.
    if number not in _INT64 if isinstance(number, int) else math.isnan(number):
        expected = f"{kind} to compare a feature of type {spec.dtype} with"
        raise refused(f", whose value is {value!r}", expected)
    return Filter(name, comparison, number)


def record_labels(
    dataset: DatasetSpec, split: Split, filters: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads which records of a split pass `filters`, and the labels of all records.

    Returns:
        Three arrays: whether each record passes, bool [records]; for each label the number of its
        record within the split, int64; and for each label its class id, int32. A target of one
        class has a label for each record, a target without classes has none.

    Raises:
        UserError: The index is missing or damaged, or has labels that are no class. Or a filter is
            wrong, or compares a feature without a column in the index.
    """
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
    # Any column gives the number of records; this one is in every index.
    wanted = {"num_bytes", *(column_of[one.feature] for one in parsed)}
    if dataset.has_classes:
        wanted.add(label)
    table = read_index(dataset.data, dataset.manifest, split.name, wanted, "data")
    keep = np.ones(table.num_rows, bool)
    for one in parsed:
        column, dtype = column_of[one.feature], _DTYPES[dataset.features[one.feature].dtype]
        # Null, a text that is too long for the index, becomes None, which equals no text.
        values = table[column].to_numpy().astype(dtype)
        # A condition on the label compares class ids.
        if column == "label":
            values = values - dataset.label_offset
        keep &= np.asarray(OPERATORS[one.operator](values, np.array(one.value, dtype)), bool)
    if not dataset.has_classes:
        return keep, np.zeros(0, np.int64), np.zeros(0, np.int32)
    return keep, *_ids_of(dataset, table[label].combine_chunks())


def _ids_of(dataset: DatasetSpec, values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Converts labels of the index to record numbers and class ids, without repetitions."""
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
        raise dataset.refused(
            f"whose index has labels from {ids.min() + first} to {ids.max() + first}",
            f"{count} classes from {first} on, as in its manifest.json",
            "copy the dataset again",
        )
    if dataset.target == "labels":
        # A record and a class are one number, so that `unique` drops equal labels of a record.
        records, ids = np.divmod(np.unique(records * count + ids), count)
    return records.astype(np.int64), ids.astype(np.int32)


def column_numbers(dataset: DatasetSpec, split: Split, feature: str) -> np.ndarray | None:
    """Reads a column of numbers for every record of the split, float64 [records, k].

    A record without the value has NaN. None if the index does not have the column.
    """
    import pyarrow.compute as pc

    column = columns_of(dataset).get(feature)
    if column is None:
        return None
    values = read_index(dataset.data, dataset.manifest, split.name, [column], "data")[column]
    shape = dataset.features[feature].shape
    if not shape:
        return values.to_numpy().astype(np.float64)[:, np.newaxis]
    rows = np.full((len(values), math.prod(shape)), math.nan)
    # A record without a list of k values keeps NaN: the index has null, or a shorter list.
    whole = pc.fill_null(pc.equal(pc.list_value_length(values), rows.shape[1]), False)
    found = pc.list_flatten(values.filter(whole)).to_numpy()
    rows[whole.to_numpy()] = found.reshape(-1, rows.shape[1])
    return rows


def distinct_values(dataset: DatasetSpec, column: str) -> tuple[int, ...] | tuple[str, ...]:
    """Returns the distinct values of a target's column, in rising order; refuses missing values."""
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
    """Returns the index column that has the same values, for each feature of the records."""
    manifest = dataset.manifest
    extra = extra_columns(manifest.features, manifest.label)
    found = {feature: column for column, feature in extra.items()}
    if dataset.adopted:
        # In an adopted dataset our feature names may have other meanings. The index was written by
        # the roles that `adopt` recorded.
        found |= {name: at for name, at in COLUMN_OF.items() if at in ("width", "height")}
        if label := manifest.roles.label:
            found[label] = "label" if dataset.features[label].dtype == "int64" else "class_name"
    else:
        found |= COLUMN_OF
        if manifest.label == SEVERAL:
            # With several labels, the column `label` is a list.
            found[LABELS_FEATURE] = "label"
    return {name: column for name, column in found.items() if name in dataset.features}
