"""Chooses the target of a model: the dataset's own label or a column (`--target`)."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

from imageshards.errors import Arg, UserError
from imageshards.text import counted
from trainer.dataset.index import distinct_values
from trainer.dataset.spec import (
    BOXES,
    OWN_LABEL,
    DatasetSpec,
    FeatureSpec,
    ModelCard,
    describe,
    find_feature,
    input_name,
)

# Fewer values may be classes even with one record each. More different whole numbers are taken for
# a quantity, unless --target_kind is given.
_FEW_VALUES = 20


def target_kind(spec: FeatureSpec) -> str | None:
    """Returns the kind of target that a feature can be, as `DatasetSpec.target`; None for none.

    One or k floats are values, a whole number or a text is a class, a list of these is labels.
    """
    if spec.dtype == "float32":
        is_vector = spec.shape is not None and len(spec.shape) <= 1 and 0 not in spec.shape
        return "values" if is_vector else None
    if spec.shape is None:
        return "labels"
    return None if spec.shape else "class"


def with_target(
    dataset: DatasetSpec, column: str | None = None, asked_kind: str | None = None
) -> DatasetSpec:
    """Returns the dataset with another column of its records as the label.

    The classes or labels are the distinct values of the column in all splits, from the index, in
    rising order. Texts that are whole numbers come first, sorted as numbers.

    Args:
        dataset: The result of `load_manifest`.
        column: Name of a feature; None for the dataset's own label.
        asked_kind: `class` if whole numbers are classes, however many or large they are; None to
            refuse numbers that look like a quantity.

    Raises:
        UserError: The column does not exist or cannot be a target of this kind, the index lacks its
            values, or the dataset has no label of its own.
    """
    _check_asked(dataset, column, asked_kind)
    if column is None:
        if dataset.label_feature:
            return dataset
        raise UserError(
            argument="target",
            received=f"no column, but the records of {dataset.data!r} have no label of their own",
            expected=f"one of {_possible(dataset)}, or, from Python, target=None for inputs alone",
        )
    if column == dataset.label_feature:
        return dataclasses.replace(dataset, column=column)
    # A feature that happens to have this name comes first.
    if column == BOXES and BOXES not in dataset.features:
        return dataclasses.replace(_without_target(dataset), target="boxes", column=BOXES)
    kind = _checked_kind(dataset, column)
    values = () if kind == "values" else distinct_values(dataset, column)
    if asked_kind is None and _is_whole_number(dataset, column):
        _refuse_quantity(dataset, column, values)
    num_records = sum(split.num_records for split in dataset.splits.values())
    if kind != "values" and len(values) >= max(_FEW_VALUES, 0.9 * num_records):
        warnings.warn(
            f"the target {column!r} has {len(values):,} different values in {num_records:,} "
            "records, and each is a class; expected a column of classes: a file name or a number "
            "that counts is none (a quantity is declared by --columns NAME:float)",
            stacklevel=2,
        )
    return dataclasses.replace(
        dataset,
        classes=tuple(map(str, values)),
        label_feature=column,
        target=kind,
        column=column,
        hot_features=(),
        label_values=values,
    )


def with_targets(
    dataset: DatasetSpec, wanted: str | Sequence[str] | None, asked_kind: str | None = None
) -> DatasetSpec:
    """Returns the dataset with the targets that `Data.train` is asked for.

    Args:
        dataset: The result of `load_manifest`.
        wanted: `label` for the dataset's own label, or a column as in `with_target`; a list of
            these for several targets by name; None for no target.
        asked_kind: As in `with_target`, for the columns of whole numbers.

    Raises:
        UserError: As in `with_target`; or the list is empty, or has a name twice.
    """
    if wanted is None:
        _check_asked(dataset, None, asked_kind)
        return _without_target(dataset)
    if isinstance(wanted, str):
        # A feature called `label` counts only if the dataset has no label of its own.
        has_own = dataset.label_feature or OWN_LABEL not in dataset.features
        return with_target(dataset, None if wanted == OWN_LABEL and has_own else wanted, asked_kind)
    names = [input_name(name) for name in wanted]
    if not names or len({*names}) < len(names):
        raise UserError(
            argument="target",
            received=repr(list(wanted)),
            expected="at least one name, each of them once, or None for no target",
        )
    # The kind is for the whole numbers alone. Without any, each target gets it, and refuses it.
    whole = [name for name in wanted if _is_whole_number(dataset, name)]
    kinds = [asked_kind if name in whole or not whole else None for name in wanted]
    found = [with_targets(dataset, name, kind) for name, kind in zip(wanted, kinds, strict=True)]
    return dataclasses.replace(found[0], outputs=dict(zip(names, found, strict=True)))


def target_name(dataset: DatasetSpec) -> str | list[str] | None:
    """Returns the targets as a run records them.

    A column is its name, the dataset's own label None, several targets a list, no target [].
    """
    if dataset.outputs:
        return [f"{name}={one.column or OWN_LABEL}" for name, one in dataset.outputs.items()]
    return [] if dataset.target == "none" else dataset.column


def _without_target(dataset: DatasetSpec) -> DatasetSpec:
    return dataclasses.replace(
        dataset, classes=(), label_feature="", target="none", hot_features=(), label_values=()
    )


def with_target_of(dataset: DatasetSpec, card: ModelCard) -> DatasetSpec:
    """Returns the dataset with the target of a trained model as the label.

    Raises:
        UserError: As in `with_target`; or the column has another kind or shape in this dataset.
    """
    # A model of many whole numbers was trained with --target_kind class.
    kind = "class" if card.column and _is_whole_number(dataset, card.column) else None
    found = with_target(dataset, card.column, kind)
    if (found.target, found.target_shape) == (card.target, card.target_shape):
        return found
    why = f"where {found.label_feature} is {describe(found)}"
    raise dataset.refused(why, f"{describe(card)}, which the model finds")


def _is_whole_number(dataset: DatasetSpec, column: str) -> bool:
    return dataset.features.get(column) == FeatureSpec("int64", ())


def _check_asked(dataset: DatasetSpec, column: str | None, asked: str | None) -> None:
    """Refuses `--target_kind` unless the target is a column of whole numbers."""
    if asked is None:
        return
    if column is None:
        what = "without " + Arg("target")
    elif column in dataset.features and not _is_whole_number(dataset, column):
        spec = dataset.features[column]
        what = "with " + Arg("target") + f" {column!r}, which is {spec.dtype} of {spec.form}"
    else:
        return
    raise UserError(
        argument="target_kind",
        received=f"{asked!r} " + what,
        expected=Arg("target") + " with a column of single whole numbers, which are classes",
        remedy="leave " + Arg("target_kind") + " out",
    )


def _refuse_quantity(
    dataset: DatasetSpec, column: str, values: tuple[int, ...] | tuple[str, ...]
) -> None:
    """Refuses whole numbers unless they are a few classes, numbered from 0."""
    if len(values) <= _FEW_VALUES and values == tuple(range(len(values))):
        return
    count = counted(len(values), "different whole number")
    again = "build again with " + Arg("columns", f"{column}:float")
    if dataset.adopted:
        again = "write it as a float and run imageshards adopt again"
    raise UserError(
        argument="target",
        received=f"{column!r}, which has {count} from {values[0]} to {values[-1]}",
        expected=f"classes numbered 0 to k-1, at most {_FEW_VALUES} of them",
        remedy=again
        + (f" if {column} is a quantity, or give " + Arg("target_kind", "class"))
        + " if each number is a class",
    )


def _checked_kind(dataset: DatasetSpec, column: str) -> str:
    spec = find_feature(column, dataset.features, "target")
    kind = None if column == dataset.image_feature else target_kind(spec)
    if kind is not None:
        return kind
    raise UserError(
        argument="target",
        received=f"{column!r}, which is {spec.dtype} of {spec.form}",
        expected="a float or a list of floats of fixed length (values), a whole number or a text "
        "(a class), or a list of these of variable length (labels), among "
        f"{_possible(dataset)}",
    )


def _possible(dataset: DatasetSpec) -> str:
    features = {n: one for n, one in dataset.features.items() if n != dataset.image_feature}
    return ", ".join(name for name, spec in features.items() if target_kind(spec))


def with_sample_weight(dataset: DatasetSpec, column: str | None) -> DatasetSpec:
    """Returns the dataset with weights in a column; refuses all but a number for each record."""
    if column is None:
        return dataset
    spec = find_feature(column, dataset.features, "sample_weight")
    if spec.shape != () or spec.dtype == "string":
        raise UserError(
            argument="sample_weight",
            received=f"{column!r}, which is {spec.dtype} of {spec.form}",
            expected="a single number",
        )
    return dataclasses.replace(dataset, weight_feature=column)
