"""Which records of a split are read, and how often: classes, filters (`--where`), balance."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imageshards.errors import UserError
from trainer.dataset.parse import checked_labels, fill_empty, parsing_spec, role_features
from trainer.dataset.spec import DataSet, FeatureSpec, Split, Subset

# Serialized, string [b], and of joined data sets the numbers of the records' ones, int64 [b] →
# (labels int64 [b], keep bool [b]).
FilterFunction = Callable[..., tuple[Any, Any]]

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
OPERATORS = tuple(COMPARE)

_FILTER = re.compile(r"\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*(.*?)\s*", re.DOTALL)
_INT64 = range(-(2**63), 2**63)


@dataclasses.dataclass(frozen=True)
class Filter:
    """One comparison of a scalar feature with a constant.

    Attributes:
        feature: Its name in the records.
        operator: One of `OPERATORS`; for texts only `==` and `!=`.
        value: int for an int64 feature, float for float32, str for string.
    """

    feature: str
    operator: str
    value: int | float | str


def parse_filters(
    filters: Sequence[str], features: Mapping[str, FeatureSpec]
) -> tuple[Filter, ...]:
    """Reads filters such as `age>=18`, `image/class/text!=cat` or `note=='a, b '`.

    Args:
        filters: One text each.
        features: What a record holds.

    Raises:
        UserError: A text is no comparison, its feature is unknown or no single value, or the
            constant is not of the feature's type.
    """
    return tuple(_parse_one(text, features) for text in filters)


def filter_function(dataset: DataSet, filters: Sequence[str]) -> FilterFunction:
    """A function of a batch of serialized records: their labels, and which pass `filters`.

    The labels are class ids of the data set. A placeholder (an empty record in place of a broken
    one) gets the label -1, and does not pass.

    Raises:
        UserError: A filter is wrong.
    """
    import tensorflow as tf

    parsed = parse_filters(filters, dataset.features)
    labels = role_features(dataset, lambda part: part.label_feature)
    features = labels | {one.feature: dataset.features[one.feature] for one in parsed}
    spec = parsing_spec(features)

    def label_and_filter(serialized: Any, part: Any = None) -> tuple[Any, Any]:
        filled, present = fill_empty(serialized, features, {})
        values = tf.io.parse_example(filled, spec)
        labels = checked_labels(dataset, values, present, part)
        keep = present
        for one in parsed:
            value = values[one.feature]
            if one.feature == dataset.label_feature and dataset.label_offset:  # its class id
                value -= dataset.label_offset
            keep &= COMPARE[one.operator](value, tf.constant(one.value, value.dtype))
        return tf.where(present, labels, -1), keep

    return label_and_filter


def select(
    dataset: DataSet,
    split: Split,
    *,
    classes: Sequence[str] | None,
    filters: Sequence[str],
    balance: str,
    count: Callable[[], tuple[int, ...]],
) -> Subset:
    """The records of `split` that are read, and how many they are.

    Args:
        dataset: The data set of `split`.
        split: The split.
        classes: Only these, renumbered in this order; None for all.
        filters: What a record has to pass, as `--where` gives it: see `parse_filters`.
        balance: `none`; `weights`: the loss of class c is weighted by N / (K * n_c), with N
            records in K classes, n_c of them in c, so that every class weighs the same and the
            mean over all records is 1; `sampling`: each class is read max(n_c) times a pass.
        count: Returns the number of records that pass `filters`, per class id of the data set;
            called only where the counts of the shards are not enough.

    Raises:
        UserError: A class is unknown, a filter is wrong, nothing is left, or a class that should
            be balanced has no records.
    """
    parse_filters(filters, dataset.features)
    names = tuple(classes) if classes else dataset.classes
    ids = tuple(_class_id(dataset, name) for name in names)
    needed = bool(classes or filters) or balance != "none"
    found = known_counts(dataset, split) if not filters else None
    if found is None and needed:
        found = count()
    counts = None if found is None else tuple(found[i] for i in ids)
    num_records = sum(counts) if needed and counts else split.num_records
    subset = Subset(
        dataset,
        split,
        names,
        ids if classes else None,
        tuple(filters),
        num_records,
        counts,
    )
    if needed and not num_records:
        raise _nothing_left(subset, classes)
    return subset if balance == "none" or not counts else _balanced(subset, counts, balance)


def subset_filter(subset: Subset) -> Callable[[Any, Any], tuple[Any, Any]] | None:
    """A function of a batch of serialized records and their numbers: classes, and which are read.

    The classes are ids of the model, -1 for others; a placeholder is not read. None where every
    record is read once, and no record has to be parsed to decide.
    """
    if subset.is_whole:
        return None
    label_and_filter = filter_function(subset.dataset, subset.filters)

    def classify(serialized: Any, record: Any) -> tuple[Any, Any]:
        part = part_numbers(subset, record)
        labels, keep = label_and_filter(serialized, part)
        classes = model_classes(subset, labels, part)
        return classes, keep & (classes >= 0)

    return classify


def part_numbers(subset: Subset, record: Any) -> Any:
    """Numbers of records, int64 [b] → which of joined data sets each is of; None for a single one.

    A placeholder that is no record (-1) counts as the first's.
    """
    if not subset.dataset.parts:
        return None
    import tensorflow as tf

    by_part = subset.dataset.by_part(subset.split)
    ends = list(itertools.accumulate(own.num_records for _, own in by_part))
    return tf.searchsorted(tf.constant(ends[:-1], tf.int64), record, "right", tf.int64)


def model_classes(subset: Subset, labels: Any, part: Any = None) -> Any:
    """Class ids of the data set → of the model; -1 for classes the model does not have.

    Args:
        subset: Names the classes; joined data sets have class ids of their own.
        labels: int64 [b], at least -1.
        part: int64 [b], what `part_numbers` says.

    Returns:
        int64 [b].
    """
    parts = subset.dataset.parts or (subset.dataset,)
    if all(one.classes == subset.classes for one in parts):
        return labels
    import tensorflow as tf

    known = {name: number for number, name in enumerate(subset.classes)}
    tables = [[-1, *(known.get(name, -1) for name in one.classes)] for one in parts]
    if part is None:
        return tf.gather(tf.constant(tables[0], tf.int64), labels + 1)
    longest = max(map(len, tables))
    table = tf.constant([one + [-1] * (longest - len(one)) for one in tables], tf.int64)
    return tf.gather_nd(table, tf.stack([part, labels + 1], 1))


def class_ids(subset: Subset, classes: Sequence[str]) -> tuple[int, ...]:
    """For each class of `subset`, its number among the model's `classes`.

    Raises:
        UserError: The model does not know it.
    """
    known = {name: number for number, name in enumerate(classes)}
    unknown = [name for name in subset.classes if name not in known]
    if unknown:
        some = ", ".join(classes[:8]) + (", …" if len(classes) > 8 else "")
        numbers = all(name.isdecimal() for name in unknown)
        remedy = "leave them out by ⟦--classes⟧"
        if numbers:
            remedy = "name them by --class_names of imageshards adopt"
        raise UserError(
            f"⟦--data⟧ received {subset.dataset.data!r}, whose classes "
            f"{', '.join(unknown[:8])}{', …' if len(unknown) > 8 else ''} the model does not "
            f"know; expected some of {some}: {remedy}."
        )
    return tuple(known[name] for name in subset.classes)


def unknown_feature(name: str, features: Mapping[str, FeatureSpec]) -> str:
    """The part of a sentence that names the features there are, and the nearest one."""
    near = difflib.get_close_matches(name, features, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"the records have no feature {name!r}{hint}; expected one of {', '.join(features)}"


def known_counts(dataset: DataSet, split: Split) -> tuple[int, ...] | None:
    """Records per class id, added up over the shards; None where one has no counts."""
    totals = dict.fromkeys(dataset.classes, 0)
    for shard in split.shards:
        if shard.classes is None:
            return None
        for name, number in shard.classes.items():
            totals[name] = totals.get(name, 0) + number
    return tuple(totals[name] for name in dataset.classes)


def _class_id(dataset: DataSet, name: str) -> int:
    if name in dataset.classes:
        return dataset.classes.index(name)
    near = difflib.get_close_matches(name, dataset.classes, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    some = ", ".join(map(repr, dataset.classes[:8])) + (", …" if len(dataset.classes) > 8 else "")
    raise UserError(
        f"⟦--classes⟧ received {name!r}, which is no class of {dataset.data!r}{hint}; expected "
        f"names among {some}."
    )


def pass_counts(subset: Subset) -> tuple[float, ...] | None:
    """How often each class is read in one pass, copies by sampling left out; None if unknown."""
    if not subset.mix:
        return subset.class_counts
    totals = dict.fromkeys(subset.classes, 0.0)
    for part in subset.mix:
        chosen = part.subset
        if chosen.class_counts is None:
            return None
        times = float(part.share) * subset.num_records / chosen.num_records
        for name, count in zip(chosen.classes, chosen.class_counts, strict=True):
            totals[name] += times * count
    return tuple(totals.values())


def balancing_weights(counts: Sequence[float]) -> tuple[float, ...]:
    """For each class N / (K * n_c), with N records in K classes, n_c of them in c.

    A class without records keeps 1: there is nothing to weigh.
    """
    present = sum(1 for n in counts if n)
    return tuple(sum(counts) / (present * n) if n else 1.0 for n in counts)


def _balanced(subset: Subset, counts: tuple[int, ...], balance: str) -> Subset:
    if balance == "weights":
        return dataclasses.replace(subset, class_weights=balancing_weights(counts))
    empty = [name for name, n in zip(subset.classes, counts, strict=True) if not n]
    if empty:
        raise UserError(
            f"⟦--balance⟧ received 'sampling', but the split {subset.split.name} has no record "
            f"of {', '.join(empty[:8])} to repeat; expected some of every class: leave classes "
            "out by ⟦--classes⟧, or use ⟦--balance weights|balance='weights'⟧."
        )
    return dataclasses.replace(subset, num_records=max(counts) * len(counts), sampling=True)


def _nothing_left(subset: Subset, classes: Sequence[str] | None) -> UserError:
    asked = [f"⟦--where⟧ {text!r}" for text in subset.filters]
    if classes:
        asked.append(f"⟦--classes⟧ {','.join(classes)}")
    return UserError(
        f"{' and '.join(asked) or '⟦--balance⟧'} left no record of the split "
        f"{subset.split.name}, which has {subset.split.num_records}; expected at least one."
    )


def _parse_one(text: str, features: Mapping[str, FeatureSpec]) -> Filter:
    match = _FILTER.fullmatch(text)
    if not match:
        raise UserError(
            f"⟦--where⟧ received {text!r}; expected FEATURE, one of {' '.join(OPERATORS)}, and a "
            "value, for example image/width>=128."
        )
    name, comparison, value = match.groups()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    spec = features.get(name)
    if spec is None:
        raise UserError(f"⟦--where⟧ received {text!r}; {unknown_feature(name, features)}.")
    if spec.shape != ():
        kind = "variable length" if spec.shape is None else f"shape {list(spec.shape)}"
        raise UserError(
            f"⟦--where⟧ received {text!r}, but {name} has {kind}; expected a feature that is a "
            "single value."
        )
    if spec.dtype == "string" and comparison not in ("==", "!="):
        raise UserError(
            f"⟦--where⟧ received {text!r}, but {name} is a text; expected == or != in place of "
            f"{comparison}."
        )
    return Filter(name, comparison, _value(text, spec.dtype, value))


def _value(text: str, dtype: str, value: str) -> int | float | str:
    if dtype == "string":
        return value
    try:
        number = int(value) if dtype == "int64" else float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number) or (dtype == "int64" and number not in _INT64):
        kind = "a whole number" if dtype == "int64" else "a number"
        raise UserError(
            f"⟦--where⟧ received {text!r}, whose value is {value!r}; expected {kind} to compare "
            f"a feature of type {dtype} with."
        )
    return number
