"""Filters such as `age>=18`, as `--where` takes them."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping, Sequence

from imageshards.errors import UserError
from trainer.dataset.spec import FeatureSpec

OPERATORS = (">=", "<=", "==", "!=", ">", "<")

_FILTER = re.compile(r"\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*(.*?)\s*", re.DOTALL)
_INT64 = range(-(2**63), 2**63)


@dataclasses.dataclass(frozen=True)
class Filter:
    """A comparison of a scalar feature with a constant of its type; of texts only `==` and `!=`."""

    feature: str
    operator: str
    value: int | float | str


def parse_filters(
    filters: Sequence[str], features: Mapping[str, FeatureSpec]
) -> tuple[Filter, ...]:
    """Reads filters such as `age>=18`, `image/class/text!=cat` or `note=='a, b '`.

    Raises:
        UserError: A text is no comparison, its feature is unknown or no single value, or the
            constant is not of the feature's type.
    """
    return tuple(_parse_one(text, features) for text in filters)


def unknown_feature(name: str, features: Mapping[str, FeatureSpec]) -> str:
    """The part of a sentence that names the features there are, and the nearest one."""
    near = difflib.get_close_matches(name, features, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"the records have no feature {name!r}{hint}; expected one of {', '.join(features)}"


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
