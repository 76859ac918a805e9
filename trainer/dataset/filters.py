"""Filters on records, as `--where` gives them: `image/width>=128`."""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imageshards.errors import UserError
from trainer.dataset.parse import checked_labels, fill_empty, parsing_spec
from trainer.dataset.spec import DataSet, FeatureSpec

# Serialized, string [b] → (labels int64 [b], keep bool [b]).
FilterFunction = Callable[[Any], tuple[Any, Any]]

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
OPERATORS = tuple(_COMPARE)

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
    """Reads filters such as `age>=18` or `image/class/text!=cat`.

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
    names = dict.fromkeys([dataset.label_feature, *(one.feature for one in parsed)])
    features = {name: dataset.features[name] for name in names}
    spec = parsing_spec(features)

    def label_and_filter(serialized: Any) -> tuple[Any, Any]:
        filled, present = fill_empty(serialized, features, {})
        values = tf.io.parse_example(filled, spec)
        labels = checked_labels(dataset, values[dataset.label_feature], present)
        keep = present
        for one in parsed:
            value = values[one.feature]
            keep &= _COMPARE[one.operator](value, tf.constant(one.value, value.dtype))
        return tf.where(present, labels, -1), keep

    return label_and_filter


def unknown_feature(name: str, features: Mapping[str, FeatureSpec]) -> str:
    """The part of a sentence that names the features there are, and the nearest one."""
    near = difflib.get_close_matches(name, features, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"the records have no feature {name!r}{hint}; expected one of {', '.join(features)}"


def _parse_one(text: str, features: Mapping[str, FeatureSpec]) -> Filter:
    match = _FILTER.fullmatch(text)
    if not match:
        raise UserError(
            f"--where received {text!r}; expected FEATURE, one of {' '.join(OPERATORS)}, and a "
            "value, for example image/width>=128."
        )
    name, comparison, value = match.groups()
    spec = features.get(name)
    if spec is None:
        raise UserError(f"--where received {text!r}; {unknown_feature(name, features)}.")
    if spec.shape != ():
        kind = "variable length" if spec.shape is None else f"shape {list(spec.shape)}"
        raise UserError(
            f"--where received {text!r}, but {name} has {kind}; expected a feature that is a "
            "single value."
        )
    if spec.dtype == "string" and comparison not in ("==", "!="):
        raise UserError(
            f"--where received {text!r}, but {name} is a text; expected == or != in place of "
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
            f"--where received {text!r}, whose value is {value!r}; expected {kind} to compare "
            f"a feature of type {dtype} with."
        )
    return number
