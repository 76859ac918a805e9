"""The flags' values, and the checks that need no data."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from imageshards.errors import UserError
from trainer.commands.flags import parse_config
from trainer.config import (
    MAX_SEED,
    DataConfig,
    OptimizerConfig,
    TrainConfig,
    default_output,
    is_remote,
    parse_image_size,
)


@pytest.mark.parametrize(
    ("text", "size"), [("256", (256, 256)), ("192x256", (192, 256)), ("8X4", (8, 4))]
)
def test_image_size_is_a_side_or_height_x_width(text: str, size: tuple[int, int]) -> None:
    assert parse_image_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "12.5", "-3", "0", "1x2x3", "99999", "64x0", "6 4"])
def test_image_size_refuses_other_texts(text: str) -> None:
    with pytest.raises(UserError, match="--image_size received"):
        parse_image_size(text)


def test_default_output_stands_beside_the_data_whatever_the_slashes() -> None:
    assert (
        default_output(["/data/shards/"])
        == default_output(["/data/shards"])
        == "/data/shards-model"
    )
    assert default_output(["."]) == os.getcwd() + "-model"
    assert default_output(["gs://bucket/shards"]) == default_output(["a", "b"]) == "trained"
    assert is_remote("gs://bucket") and not is_remote("/data")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"epochs": 0}, "--epochs"),
        ({"batch_size": 0}, "--batch_size"),
        ({"replicas": 0}, "--replicas"),
        ({"seed": -1}, "--seed"),
        ({"seed": MAX_SEED + 1}, "--seed"),
        ({"steps": 0}, "--steps"),
        ({"checkpoint_steps": 0}, "--checkpoint_steps"),
        ({"keep_checkpoints": 0}, "--keep_checkpoints"),
        ({"cluster": "mpi"}, "--cluster"),
        ({"cluster_port": 0}, "--cluster_port"),
        ({"cluster_timeout": 0}, "--cluster_timeout"),
        ({"augment": "heavy"}, "--augment"),
        ({"augment_on": "moon"}, "--augment_on"),
    ],
)
def test_values_out_of_range_are_named_by_their_flag(changes: dict[str, Any], flag: str) -> None:
    arguments: dict[str, Any] = {"data": DataConfig("d"), "output": "o"} | changes
    with pytest.raises(UserError, match=f"^{flag} received .*; expected|^{flag} .*expected"):
        TrainConfig(**arguments)


def test_hosts_do_not_read_in_whatever_order() -> None:
    data = DataConfig("d", fast_order=True)
    assert TrainConfig(data, "o").cluster is None
    with pytest.raises(UserError, match="--fast_order received together with --cluster"):
        TrainConfig(data, "o", cluster="slurm")


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"optimizer": "adamm"},
        {"schedule": "zigzag"},
        {"precision": "int4"},
        {"warmup_steps": -1},
        {"decay_steps": 0},
        {"decay_rate": 0.0},
        {"momentum": 1.0},
        {"weight_decay": -0.1},
        {"label_smoothing": 1.0},
        {"ema": 1.0},
        {"accumulate_steps": 0},
        {"clipnorm": 0.0},
    ],
)
def test_optimizer_values_out_of_range_are_named(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"^--{next(iter(changes))} received .*; expected"):
        OptimizerConfig(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"cache": "tape"},
        {"balance": "maybe"},
        {"sequences": "long"},
        {"sequence_length": 0},
        {"sequence_length": 3, "sequences": "ragged"},
        {"skip_broken": -1},
        {"threads": 0},
        {"classes": ()},
        {"classes": ("a", "a")},
        {"inputs": ("image", "image")},
        {"eval_crop": 0.0},
        {"eval_crop": 1.1},
    ],
)
def test_data_values_out_of_range_are_named(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"^--{next(iter(changes))} received "):
        DataConfig("d", **changes)


def test_flags_reach_the_part_of_the_configuration_they_belong_to(tmp_path: Any) -> None:
    names = tmp_path / "names.txt"
    names.write_text("cat, big\n\ndog\n", encoding="utf-8")
    argv = "--data d --image_size 8x9 --classes b,a --where x>=3 --where y==1 --cache disk "
    argv += "--eval_crop 0.5 --feature_map image=i,label=l --label_offset 1 --inputs image,age "
    argv += "--fast_order --optimizer sgd --ema 0.99 --schedule cosine --steps 7 "
    argv += "--augment strong --output o"
    config = parse_config([*argv.split(), "--class_names", str(names)])
    by_file = parse_config(["--data", "d", "--classes", str(names)])
    assert by_file.data.classes == ("cat, big", "dog")
    assert config.data == DataConfig(
        "d",
        image_size=(8, 9),
        eval_crop=0.5,
        classes=("b", "a"),
        where=("x>=3", "y==1"),
        cache="disk",
        feature_map={"image": "i", "label": "l"},
        label_offset=1,
        inputs=("image", "age"),
        fast_order=True,
        class_names=("cat, big", "dog"),
    )
    assert config.optimizer == OptimizerConfig(optimizer="sgd", ema=0.99, schedule="cosine")
    assert (config.steps, config.augment, config.output) == (7, "strong", "o")


@pytest.mark.parametrize("data", ["--data a,x/b", "--data a --data x/b", "--data x/b --data a"])
def test_several_data_sets_are_named_between_commas_or_by_the_flag_again(data: str) -> None:
    config = parse_config([*data.split(), "--mix", "b=0.3,a=0.7"])
    assert sorted(config.data.paths) == ["a", "x/b"] and config.output == "trained"
    assert dict(zip(config.data.paths, map(float, config.data.shares), strict=True)) == {
        "a": 0.7,
        "x/b": 0.3,
    }


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("--data a,b --mix a=1,b=x", "--mix received 'a=1,b=x'; expected NAME=SHARE for each"),
        ("--data a,b --mix 0.7,0.3", "--mix received a share for ''"),
        ("--data a,b --mix a=0.7", "--mix received no share for 'b'"),
        ("--data d --steps 3 --epochs 1", "--steps received 3 together with --epochs 1"),
        ("--data d --feature_map image", "--feature_map received 'image'; expected NAME=FEATURE"),
        ("--data d --optimiser sgd", "no flag of imageshards train; did you mean --optimizer?"),
        ("--data d --optimizer sdg", "--optimizer: invalid choice: 'sdg'"),
    ],
)
def test_malformed_flags_are_refused(argv: str, sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        parse_config(argv.split())


def test_a_batch_replicas_cannot_share_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"received 10, which 3 replicas .* for example 9\."):
        TrainConfig(DataConfig("d"), output="o", batch_size=10, replicas=3)
    with pytest.raises(UserError, match=r"for example 4\."):
        TrainConfig(DataConfig("d"), output="o", batch_size=1, replicas=4)
