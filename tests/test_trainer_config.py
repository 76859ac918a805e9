"""The flags' values, and the checks that need no data."""

from __future__ import annotations

import os
from typing import Any

import pytest

from trainer.config import MAX_SEED, TrainConfig, default_output, is_remote, parse_image_size
from trainer.errors import UserError


@pytest.mark.parametrize(
    ("text", "size"), [("256", (256, 256)), ("192x256", (192, 256)), ("8X4", (8, 4))]
)
def test_image_size_is_a_side_or_height_x_width(text: str, size: tuple[int, int]) -> None:
    assert parse_image_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "12.5", "-3", "0", "1x2x3", "99999", "64x0", "6 4"])
def test_image_size_refuses_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="--image_size received"):
        parse_image_size(text)


def test_default_output_stands_beside_the_data_whatever_the_slashes() -> None:
    assert default_output("/data/shards/") == default_output("/data/shards") == "/data/shards-model"
    assert default_output(".") == os.getcwd() + "-model"
    assert default_output("gs://bucket/shards") == "trained"
    assert is_remote("gs://bucket") and not is_remote("/data")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"epochs": 0}, "--epochs"),
        ({"batch_size": 0}, "--batch_size"),
        ({"replicas": 0}, "--replicas"),
        ({"seed": -1}, "--seed"),
        ({"seed": MAX_SEED + 1}, "--seed"),
        ({"learning_rate": 0.0}, "--learning_rate"),
        ({"learning_rate": float("nan")}, "--learning_rate"),
        ({"output": "gs://bucket/model"}, "--output"),
    ],
)
def test_values_out_of_range_are_named_by_their_flag(changes: dict[str, Any], flag: str) -> None:
    arguments = {"data": "d", "output": "o"} | changes
    with pytest.raises(UserError, match=f"^{flag} received .*; expected|^{flag} .*expected"):
        TrainConfig(**arguments)


def test_a_batch_replicas_cannot_share_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"received 10, which 3 replicas .* for example 9\."):
        TrainConfig(data="d", output="o", batch_size=10, replicas=3)
    with pytest.raises(UserError, match=r"for example 4\."):
        TrainConfig(data="d", output="o", batch_size=1, replicas=4)
