"""What a model is to find: the data set's own label, or a column (`--target`), and its kind."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from imageshards.errors import UserError
from imageshards.index import MAX_LIST_VALUES, MAX_TEXT_BYTES, read_index
from imageshards.text import counted
from trainer.dataset.index import columns_of
from trainer.dataset.spec import DataSet, FeatureSpec, ModelCard, describe, find_feature

# With fewer values, classes of one record each may be meant.
_FEW_VALUES = 20
# How a list of each type is declared to a build that is to be a target.
_DECLARED = {"float32": "float[3]", "int64": "int[]", "string": "string[]"}


def target_kind(spec: FeatureSpec) -> str | None:
    """The kind of target that a column of this form is: `DataSet.target`; None for none.

    Numbers with a fraction are values, one or k of them; a whole number or a text is a class, and
    a list of them, of any length, labels.
    """
    if spec.dtype == "float32":
        is_vector = spec.shape is not None and len(spec.shape) <= 1 and 0 not in spec.shape
        return "values" if is_vector else None
    if spec.shape is None:
        return "labels"
    return None if spec.shape else "class"


def with_target(dataset: DataSet, column: str | None = None) -> DataSet:
    """The data set with another column of its records as the label.

    The classes of a column, and the labels, are its distinct values in all splits: in their order,
    by name. They are read from the index, no record is.

    Args:
        dataset: As `open_dataset` gives it.
        column: Name of a feature; None for the data set's own label.

    Raises:
        UserError: There is no such column, it cannot be a target, or the data set has no label of
            its own; or the index does not tell the column's values.
    """
    if column is None:
        if dataset.label_feature:
            return dataset
        raise UserError(
            f"⟦--target⟧ received no column, but the records of {dataset.data!r} have no label of "
            f"their own; expected one of {_possible(dataset)}."
        )
    if column == dataset.label_feature:
        return dataclasses.replace(dataset, column=column)
    kind = _checked_kind(dataset, column)
    values = () if kind == "values" else _distinct(dataset, column)
    return dataclasses.replace(
        dataset,
        classes=tuple(map(str, values)),
        label_feature=column,
        target=kind,
        column=column,
        hot_features=(),
        label_values=values,
    )


def with_target_of(dataset: DataSet, card: ModelCard) -> DataSet:
    """The data set with what a trained model finds as the label.

    Raises:
        UserError: As `with_target`; or the column is of another kind here, or has other values.
    """
    found = with_target(dataset, card.column)
    if (found.target, found.target_shape) == (card.target, card.target_shape):
        return found
    raise UserError(
        f"⟦--data⟧ received {dataset.data!r}, where {found.label_feature} is {describe(found)}; "
        f"expected {describe(card)}, which the model finds."
    )


def _checked_kind(dataset: DataSet, column: str) -> str:
    received = f"⟦--target⟧ received {column!r}"
    spec = find_feature(column, dataset.features, received)
    what, again = f"{spec.dtype} of {spec.form}", ""
    if column == dataset.image_feature:
        what = "the picture"
    elif kind := target_kind(spec):
        return kind
    elif not dataset.adopted:
        again = f", or it built with --columns {column}:{_DECLARED[spec.dtype]}"
    raise UserError(
        f"{received}, which is {what}; expected a float or a list of floats of fixed length "
        "(values), a whole number or a text (a class), or a list of these of variable length "
        f"(labels): one of {_possible(dataset)}{again}."
    )


def _possible(dataset: DataSet) -> str:
    """The columns that can be a target, for people."""
    names = [
        name
        for name, spec in dataset.features.items()
        if target_kind(spec)
        and (dataset.adopted or not name.startswith("image/"))
        and name not in (dataset.image_feature, dataset.filename_feature)
    ]
    again = "" if dataset.adopted else ": build it again with some"
    return ", ".join(names) or f"its columns, of which it has none{again}"


def _distinct(dataset: DataSet, column: str) -> tuple[Any, ...]:
    """The values that a column has in the index, each once, in rising order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    name = columns_of(dataset).get(column)
    table = read_index(dataset.data, dataset.manifest, None, [name] if name else [], "⟦--data⟧")
    values = table[name].combine_chunks() if name else pa.nulls(table.num_rows)
    unknown = values.null_count
    if pa.types.is_list(values.type):
        values = pc.list_flatten(values)
        unknown += values.null_count
    if unknown:
        raise UserError(
            f"⟦--target⟧ received {column!r}, of which the index of {dataset.data!r} does not "
            f"tell {counted(unknown, 'value')}: it holds texts of up to {MAX_TEXT_BYTES} bytes "
            f"and lists of up to {MAX_LIST_VALUES}; expected a column that it tells of every "
            "record: build the data set again where an older imageshards built it."
        )
    found = tuple(sorted(pc.unique(values).to_pylist()))
    if len(found) >= max(_FEW_VALUES, 0.9 * table.num_rows):
        warnings.warn(
            f"the target {column!r} has {len(found):,} different values in {table.num_rows:,} "
            "records, and each is a class; expected a column of classes: a file name or a number "
            "that counts is none (a quantity is declared by --columns NAME:float)",
            stacklevel=2,
        )
    return found


def with_sample_weight(dataset: DataSet, column: str | None) -> DataSet:
    """The data set with records that weigh what a column says.

    Raises:
        UserError: There is no such column, or it is not one number for each record.
    """
    if column is None:
        return dataset
    received = f"⟦--sample_weight⟧ received {column!r}"
    spec = find_feature(column, dataset.features, received)
    if spec.shape != () or spec.dtype == "string":
        raise UserError(
            f"{received}, which is {spec.dtype} of {spec.form}; expected a single number."
        )
    return dataclasses.replace(dataset, weight_feature=column)
