"""The flags' values, and the checks that need no data."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from imageshards.errors import UserError, naming_flags
from trainer.commands.flags import parse_config
from trainer.config import OptimizerConfig, ReadConfig, default_output, parse_image_size


def test_image_size_is_a_side_or_height_x_width() -> None:
    sizes = [parse_image_size(text) for text in ("256", "192x256", "8X4")]
    assert sizes == [(256, 256), (192, 256), (8, 4)]


def test_default_output_stands_beside_the_data_whatever_the_slashes() -> None:
    assert default_output("/data/shards/") == default_output("/data/shards") == "/data/shards-model"
    assert default_output(".") == os.getcwd() + "-model"
    assert default_output("gs://bucket/shards") == "trained"


def test_flags_reach_the_part_of_the_configuration_they_belong_to(tmp_path: Any) -> None:
    names = tmp_path / "names.txt"
    names.write_text("cat, big\n\ndog\n", encoding="utf-8")
    argv = "--data d --image_size 8x9 --classes b,a --where x>=3 --where y==1 --cache pixels "
    argv += "--eval_crop 0.5 --inputs image,age --augment strong "
    argv += "--optimizer sgd --ema 0.99 --schedule cosine --steps 7 --output o"
    config = parse_config(argv.split())
    by_file = parse_config(["--data", "d", "--classes", str(names)])
    assert by_file.read.classes == ("cat, big", "dog")
    told: dict[str, Any] = {"image_size": (8, 9), "classes": ("b", "a"), "where": ("x>=3", "y==1")}
    told |= {"cache": "pixels", "eval_crop": 0.5, "inputs": ("image", "age"), "augment": "strong"}
    assert config.read == ReadConfig("d", **told)
    assert config.optimizer == OptimizerConfig(optimizer="sgd", ema=0.99, schedule="cosine")
    assert (config.steps, config.output) == (7, "o")


# What `imageshards train` refuses before it looks at data: each value once.
@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("", "The following arguments are required: --data; see imageshards train --help."),
        ("--data d --bach_size 3", "'--bach_size', which is no flag of imageshards train; did you"),
        ("--data d --optimiser sgd", "no flag of imageshards train; did you mean --optimizer?"),
        ("--data d surplus", "Received 'surplus', which is no flag"),
        ("--data d --epochs many", "--epochs: invalid int value: 'many'"),
        ("--data d --optimizer sdg", "--optimizer: invalid choice: 'sdg'"),
        ("--data d --steps 3 --epochs 1", "--steps received 3 together with --epochs 1"),
        ("--data d --batch_size 10 --replicas 3", "--batch_size received 10, which 3 replicas"),
        ("--data d --batch_size 1 --replicas 4", "--batch_size received 1, which 4 replicas"),
        ("--data d --sync_batchnorm --model a:b", "--sync_batchnorm received True with"),
        ("--data d --freeze all", "--freeze received all without --weights"),
        ("--data d --freeze 0", "--freeze received '0'"),
        ("--data d --freeze most", "--freeze received 'most'"),
        ("--data d --freeze none --unfreeze_after 2", "--unfreeze_after received 2 without"),
        ("--data d --seed -1", "--seed received -1; expected 0 to"),
        ("--data d --seed 2147483648", "--seed received 2147483648; expected 0 to"),
        ("--data d --cluster_port 0", "--cluster_port received 0; expected 1 to 65535."),
        *((f"--data d --cluster_timeout {sec}", f"--cluster_timeout received {sec}; expected 1 to "
           "604800.") for sec in (0, 604801)),
        *((f"--data d --{name} 0", f"--{name} received 0; expected at least 1.") for name in (
            "epochs", "steps", "batch_size", "replicas", "checkpoint_steps", "keep_checkpoints",
            "unfreeze_after", "accumulate_steps", "threads",
            "sequence_length")),
        *((f"--data d --{name} odd", f"--{name}: invalid choice: 'odd'") for name in (
            "cluster", "augment", "augment_on", "schedule", "precision", "cache", "balance")),
        *((f"--data d --{name} {value}", f"--{name} received {value}; expected more than 0.")
          for name in ("learning_rate", "clipnorm")
          for value in ("0.0", "-1.0", "nan", "inf")),
        *((f"--data d --{name} {value}", f"--{name} received {value}; expected at least 0 and "
           "less than 1.") for name in ("momentum", "label_smoothing", "ema")
          for value in ("1.0", "-0.1", "nan")),
        ("--data d --weight_decay -0.1", "--weight_decay received -0.1; expected at least 0."),
        ("--data d --weight_decay inf", "--weight_decay received inf; expected at least 0."),
        ("--data d --warmup_steps -1", "--warmup_steps received -1; expected at least 0."),
        (
            "--data d --warmup_steps 2 --schedule linear",
            "--warmup_steps received 2 with --schedule linear",
        ),
        *((f"--data d --image_size={text}", f"--image_size received {text!r}")
          for text in ("", "x", "12.5", "-3", "1x2x3")),
        *((f"--data d --image_size {text}", f"--image_size received {text}; expected 1 to 16384")
          for text in ("0", "99999", "64x0")),
        ("--data d --eval_crop 0", "--eval_crop received 0.0; expected more than 0 and at most"),
        ("--data d --eval_crop 1.1", "--eval_crop received 1.1; expected more than 0 and at"),
        ("--data d --skip_broken -1", "--skip_broken received -1; expected at least 0."),
        ("--data d --cache_folder gs://b/c", "--cache_folder received 'gs://b/c'"),
        ("--data d --classes ,", "classes received ','"),
        ("--data d --classes a,a", "--classes received 'a,a'"),
        ("--data d --inputs image,image", "--inputs received 'image,image'"),
        ("--data x/a --data y", "imageshards build --input x/a --input y --output ALL"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(argv: str, sentence: str) -> None:
    with naming_flags():
        with pytest.raises(UserError) as caught:
            parse_config(argv.split())
        told = str(caught.value)
    assert sentence in told and "\n" not in told


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"threads": 2.5}, "threads received 2.5"),
        ({"skip_broken": True}, "skip_broken received True"),
        ({"eval_crop": "most"}, "eval_crop received 'most'"),
        ({"cache": "tape"}, "cache received 'tape'"),
    ],
)
def test_what_python_alone_can_say_is_checked_too(changes: dict[str, Any], sentence: str) -> None:
    of_numpy: dict[str, Any] = {"eval_crop": np.float32(0.5), "threads": np.int64(2)}
    assert ReadConfig("d", **of_numpy)
    with pytest.raises(UserError) as caught:
        ReadConfig("d", **changes)
    assert str(caught.value).startswith(sentence)
