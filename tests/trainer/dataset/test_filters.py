"""Conditions on records: what is understood, and what is refused with a hint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.errors import UserError
from trainer.dataset.filters import OPERATORS, Filter, parse_filters
from trainer.dataset.spec import FeatureSpec

FEATURES = {
    "image/width": FeatureSpec("int64", ()),
    "age": FeatureSpec("float32", ()),
    "text": FeatureSpec("string", ()),
    "box": FeatureSpec("float32", (4,)),
    "tokens": FeatureSpec("int64", None),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image/width>=128", Filter("image/width", ">=", 128)),
        (" image/width <= -1 ", Filter("image/width", "<=", -1)),
        ("age<1.5", Filter("age", "<", 1.5)),
        ("age>1e3", Filter("age", ">", 1000.0)),
        ("age!=0", Filter("age", "!=", 0.0)),
        ("text==a >= b", Filter("text", "==", "a >= b")),
        ("text!=", Filter("text", "!=", "")),
    ],
)
def test_conditions_are_understood(text: str, expected: Filter) -> None:
    assert parse_filters([text], FEATURES) == (expected,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image/width", r"expected FEATURE, one of >= .* for example"),
        ("", "expected FEATURE"),
        (">=3", "expected FEATURE"),
        ("image/widht>=3", r"no feature 'image/widht' \(did you mean image/width\?\)"),
        ("unlike>=3", r"no feature 'unlike'; expected one of image/width, age"),
        ("image/width>=12.5", "value is '12.5'; expected a whole number"),
        ("image/width>=", "expected a whole number"),
        ("image/width>=9223372036854775808", "expected a whole number"),
        ("age>=old", "expected a number"),
        ("age==nan", "expected a number"),
        ("text>=b", "is a text; expected == or !="),
        ("box>=1", r"has shape \[4\]; expected a feature that is a single value"),
        ("tokens==1", "has variable length"),
    ],
)
def test_other_texts_are_refused_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_filters([text], FEATURES)
    assert str(caught.value).startswith(f"--where received {text!r}")


@given(st.sampled_from(OPERATORS), st.integers(-(2**63), 2**63 - 1), st.sampled_from(["", " "]))
def test_any_int64_comes_back_as_it_was_written(operator: str, value: int, space: str) -> None:
    text = f"image/width{space}{operator}{space}{value}"
    assert parse_filters([text], FEATURES) == (Filter("image/width", operator, value),)
