"""What options mean; what they refuse is in the table of the command line."""

from __future__ import annotations

import re

import pytest

from beam_pipeline.options import PlanOptions, is_split_name, label_group


def test_thirds_sum_to_one():
    assert PlanOptions(splits={"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}).splits


@pytest.mark.parametrize(
    ("name", "expected"),
    [("train", True), ("val_2", True), ("", False), ("a-b", False), ("é", False), ("a\n", False)],
)
def test_split_names_fit_in_file_names(name, expected):
    assert is_split_name(name) is expected


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        ("(a)(b)", 1),
        ("(a)(?P<label>b)", "label"),
        ("(?P<split>a)_(b)", 2),
        ("(?P<group>a)_(?P<split>b)_(?P<kind>c)", 3),
        ("(?P<group>a)", None),
        ("a", None),
    ],
)
def test_the_label_is_the_first_group_that_is_not_another_thing(regex, expected):
    assert label_group(re.compile(regex)) == expected
