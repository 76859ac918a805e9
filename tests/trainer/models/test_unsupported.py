"""What is refused: that it does fail in the installed versions, and that it is refused."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from imageshards.errors import UserError
from tests.support import replica_run
from trainer.config import DataConfig, OptimizerConfig, TrainConfig
from trainer.models import unsupported


def _config(batch_size: int = 32, **options: Any) -> TrainConfig:
    return TrainConfig(
        DataConfig("shards"), "out", OptimizerConfig(**options), batch_size=batch_size
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"jit_compile": True}, "--jit_compile received true with 2 replicas.*--replicas 1"),
        ({"clipnorm": 1.0}, "--clipnorm received 1.0 with 2 replicas.*before they are summed"),
        ({"accumulate_steps": 4}, "--accumulate_steps received 4 with 2 replicas.*merge_call"),
        ({"batch_size": 7}, "--batch_size received 7, which 2 replicas cannot share"),
    ],
)
def test_what_goes_wrong_on_two_replicas_is_refused_there_only(
    options: dict[str, Any], reason: str
) -> None:
    config = _config(**options)
    unsupported.check(config, 1)
    with pytest.raises(UserError, match=reason):
        unsupported.check(config, 2)


def test_an_ordinary_run_is_not_refused() -> None:
    unsupported.check(
        _config(ema=0.9, weight_decay=0.1, precision="float16", label_smoothing=0.1), 4
    )


class _Model:
    """As much of a Keras model as is looked at."""

    name = "fake"

    def __init__(self, **attributes: Any) -> None:
        self._layer = type("Layer", (), attributes | {"name": "odd"})()
        self.trainable_variables: list[Any] = []

    def _flatten_layers(self, include_self: bool) -> list[Any]:
        return [self._layer]


@pytest.mark.parametrize(
    ("options", "steps", "expected"),
    [
        ({}, 100, None),
        ({"batch_size": 4}, 100, "statistics of 4 pictures"),
        ({"precision": "bfloat16"}, 100, "slower than float32 on a CPU"),
        ({"ema": 0.9}, 100, None),
        ({"ema": 0.999}, 100, "keeps 90% of the first step's weights .* --ema 0.95 or less"),
        ({"accumulate_steps": 3}, 100, "the last 1 change no weights"),
        ({"accumulate_steps": 4}, 100, None),
        ({"optimizer": "adamw"}, 100, "adamw without --weight_decay is adam"),
        ({"optimizer": "adamw", "weight_decay": 0.1}, 100, None),
        ({"optimizer": "muon"}, 100, "muon steps 0 of 0 variables"),
    ],
)
def test_what_might_surprise_is_told(
    options: dict[str, Any], steps: int, expected: str | None
) -> None:
    found = unsupported.notes(_config(**options), _Model(moving_variance=1), steps)
    assert len(found) == (0 if expected is None else 1)
    if expected is not None:
        assert re.search(expected, found[0])


def test_a_gpu_is_made_for_low_precision() -> None:
    config = _config(precision="bfloat16")
    assert not unsupported.notes(config, _Model(), 100, gpus=1)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What happens on two replicas without the refusals."""
    pytest.importorskip("tensorflow")
    kinds = ["masks:stock", "masks:ours", "overflow:stock", "overflow:ours", "unsupported:clipnorm"]
    kinds += ["unsupported:uneven", "unsupported:accumulate_steps", "unsupported:jit_compile"]
    found: dict[str, Any] = replica_run.run_checks(2, *kinds)
    return found


@pytest.mark.slow
def test_what_is_refused_does_fail(found: dict[str, Any]) -> None:
    """Where one of these no longer fails, TensorFlow or Keras has repaired it: lift the refusal."""
    assert "merge_call" in found["unsupported:accumulate_steps"]
    assert "merge_call" in found["unsupported:jit_compile"]
    import tensorflow as tf

    for name in ("accumulate_steps", "jit_compile"):
        alone = replica_run.check(tf.distribute.get_strategy(), f"unsupported:{name}")
        assert np.isfinite(alone).all(), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clipnorm", "uneven"])
def test_what_is_refused_does_train_something_else(found: dict[str, Any], name: str) -> None:
    import tensorflow as tf

    alone = replica_run.check(tf.distribute.get_strategy(), f"unsupported:{name}")
    assert np.abs(np.array(found[f"unsupported:{name}"]) - np.array(alone)).max() > 1e-4


@pytest.mark.slow
def test_every_replica_draws_its_own_dropout_mask(found: dict[str, Any]) -> None:
    for first, second in found["masks:stock"]:
        assert first == second
    for stock, ours in zip(found["masks:stock"], found["masks:ours"], strict=True):
        assert ours[0] != ours[1]
        assert ours[0] == stock[0]  # one replica draws what Keras draws
    assert found["masks:ours"][0] != found["masks:ours"][1]


@pytest.mark.slow
def test_an_overflow_on_any_replica_skips_the_step(found: dict[str, Any]) -> None:
    assert found["overflow:stock"] == [False, 4.0]
    assert found["overflow:ours"] == [True, 2.0]


def test_configurations_are_not_changed_by_the_checks() -> None:
    config = _config(ema=0.5)
    unsupported.check(config, 2)
    assert dataclasses.asdict(config) == dataclasses.asdict(_config(ema=0.5))
