"""Options that cannot be are refused where they are made, in one sentence with the flag."""

from __future__ import annotations

import re

import pytest

from beam_pipeline.options import (
    BuildOptions,
    ColumnSpec,
    ImageOptions,
    InputOptions,
    PlanOptions,
    is_split_name,
    label_group,
)
from imageshards.errors import UserError


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ImageOptions(resize_mode="zoom"), ["--resize_mode", "'zoom'", "crop"]),
        (lambda: ImageOptions(filter="sharp"), ["--filter", "'sharp'", "lanczos"]),
        (lambda: ImageOptions(subsampling="4:1:1"), ["--subsampling", "4:2:0"]),
        (lambda: ImageOptions(colorspace="cmyk"), ["--colorspace", "grey"]),
        (lambda: ImageOptions(bbox_frame="x"), ["--bbox_frame", "upright"]),
        (lambda: ImageOptions(height_px=0), ["--image_size", "0x256", "1 to 16384 pixels a side."]),
        (lambda: ImageOptions(width_px=16385), ["--image_size", "16385"]),
        (lambda: ImageOptions(resize_mode="shortest", width_px=9), ["shortest", "one number"]),
        (lambda: ImageOptions(quality=0), ["--quality", "0", "1 to 100"]),
        (lambda: ImageOptions(quality=101), ["--quality", "101"]),
        (lambda: ColumnSpec("a", "double"), ["--columns a", "'double'", "float"]),
        (lambda: ColumnSpec("a", "int", (0,)), ["--columns a", "0", "[]"]),
        (lambda: ColumnSpec("a", "float", (), "log"), ["--columns a", "'log'", "zscore"]),
        (lambda: ColumnSpec("a", "int", (), "zscore"), ["--columns a", "float column"]),
        (lambda: InputOptions("in", layout="deep"), ["--layout", "'deep'", "flat"]),
        (lambda: InputOptions("in", label_regex="("), ["--label_regex", "'('"]),
        (lambda: InputOptions("in", label_regex="cat"), ["--label_regex", "group"]),
        (lambda: InputOptions("in", label_regex="(?P<split>.)"), ["--label_regex", "group"]),
        (
            lambda: InputOptions("in", label_regex="(.)", layout="class_folders"),
            ["--label_regex", "class_folders"],
        ),
        (lambda: PlanOptions(shard_by="size"), ["--shard_by", "balanced"]),
        (lambda: PlanOptions(splits={}), ["--splits", "0", "expected 1"]),
        (lambda: PlanOptions(splits={"a": 0.5, "b": 0.4}), ["--splits", "0.9"]),
        (lambda: PlanOptions(splits={"a": 1.5, "b": -0.5}), ["--splits", "a=1.5"]),
        (lambda: PlanOptions(splits={"a": float("nan")}), ["--splits", "nan"]),
        (lambda: PlanOptions(splits={"a/b": 1.0}), ["--splits", "'a/b'"]),
        (lambda: PlanOptions(num_shards={"train": 0}), ["--num_shards", "train=0", "99999"]),
        (lambda: PlanOptions(num_shards={"*": 100_000}), ["--num_shards received 100000"]),
        (lambda: PlanOptions(shard_mb=0), ["--shard_mb", "0"]),
        (lambda: PlanOptions(shard_mb=float("nan")), ["--shard_mb", "nan"]),
        (lambda: PlanOptions(class_names=("a", "b", "a")), ["--class_names", "'a' twice"]),
        (lambda: BuildOptions(InputOptions("i"), "o", compression="zip"), ["--compression"]),
        (
            lambda: BuildOptions(InputOptions("i"), "o", max_reject_fraction=1.1),
            ["--max_reject_fraction", "1.1", "0 to 1"],
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(make, words):
    with pytest.raises(UserError) as error:
        make()
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    assert text.endswith(".")


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
