import os
from typing import Any

import numpy as np
import pytest

from imageshards.errors import UserError, naming_flags
from tests.support.errors import refused
from trainer.commands import parse_config
from trainer.config import ReadConfig, default_output, parse_image_size


def test_image_size_is_a_side_or_height_x_width() -> None:
    sizes = [parse_image_size(text) for text in ("256", "192x256", "8X4")]
    assert sizes == [(256, 256), (192, 256), (8, 4)]


def test_default_output_is_beside_the_data_for_any_slashes() -> None:
    assert default_output("/data/shards/") == default_output("/data/shards") == "/data/shards-model"
    assert default_output(".") == os.getcwd() + "-model"
    assert default_output("gs://bucket/shards") == "trained"


# What `imageshards train` refuses before it looks at data: each kind of limit once.
@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("--optimizer sdg", "--optimizer: invalid choice: 'sdg'"),
        ("--epochs 0", "--epochs received 0; expected at least 1."),
        ("--seed -1", "--seed received -1; expected 0 to"),
        ("--clipnorm 0", "--clipnorm received 0.0; expected more than 0."),
        ("--ema 1", "--ema received 1.0; expected more than 0 and less than 1."),
        ("--eval_crop 1.1", "--eval_crop received 1.1; expected more than 0 and at most 1"),
        ("--steps 3 --epochs 1", "--steps received 3 together with --epochs 1"),
        ("--batch_size 10 --replicas 3", "--batch_size received 10, which 3 replicas"),
        ("--freeze 0", "--freeze received '0'"),
        ("--image_size 1x2x3", "--image_size received '1x2x3'"),
        ("--cache_folder gs://b/c", "--cache_folder received 'gs://b/c'"),
        ("--classes a,a", "--classes received 'a,a'"),
        ("--data y", "imageshards build --input d --input y --output ALL"),
    ],
)
def test_a_mistake_is_one_sentence(argv: str, sentence: str) -> None:
    with naming_flags():
        with pytest.raises(UserError) as caught:
            parse_config(["--data", "d", *argv.split()])
        told = str(caught.value)
    assert sentence in told and "\n" not in told


def test_values_that_only_python_can_pass_are_checked() -> None:
    changes: dict[str, Any] = {"threads": 2.5, "skip_broken": True, "eval_crop": "most"}
    of_numpy: dict[str, Any] = {"eval_crop": np.float32(0.5), "threads": np.int64(2)}
    assert ReadConfig("d", **of_numpy)
    for argument, value in changes.items():
        with refused(argument, repr(value)):
            ReadConfig("d", **{argument: value})
