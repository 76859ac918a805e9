"""The learning rate of every step: a warm-up, then one of five shapes."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from imageshards.errors import UserError
from trainer.config import OptimizerConfig

REFERENCE_BATCH = 256


def peak_rate(config: OptimizerConfig, batch_size: int) -> float:
    """The highest learning rate.

    Scaled as Goyal et al., 2017 (arXiv:1706.02677) have it: in proportion to the examples
    behind one change of the weights, accumulated batches included.
    """
    if not config.scale_learning_rate:
        return config.learning_rate
    return config.learning_rate * batch_size * config.accumulate_steps / REFERENCE_BATCH


def learning_rate_at(
    config: OptimizerConfig, batch_size: int, total_steps: int, step: int
) -> float:
    """The learning rate of step `step`, counted from 0; `Schedule` in plain Python."""
    warmup, peak = config.warmup_steps, peak_rate(config, batch_size)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    after = step - warmup
    progress = min(1.0, after / max(1, total_steps - warmup))
    decays = after / _decay_steps(config, total_steps)
    factor = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        "step": config.decay_rate ** math.floor(decays),
        "exponential": config.decay_rate**decays,
    }[config.schedule]
    return peak * factor


@keras.saving.register_keras_serializable("imageshards")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """The same inside the graph.

    Step s of a warm-up over W steps has (s + 1) / (W + 1) of the peak: it rises from 0, but
    no step is wasted on a rate of 0.

    Args:
        peak: The highest rate.
        shape: One of `trainer.config.SCHEDULES`.
        warmup_steps, total_steps, decay_steps, decay_rate: As `OptimizerConfig` has them.
    """

    def __init__(
        self,
        peak: float,
        shape: str,
        warmup_steps: int,
        total_steps: int,
        decay_steps: int,
        decay_rate: float,
    ) -> None:
        super().__init__()
        self.peak = peak
        self.shape = shape
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.decay_steps = decay_steps
        self.decay_rate = decay_rate

    def __call__(self, step: Any) -> Any:
        """int step, counted from 0 → float32 rate."""
        step = ops.cast(step, "float32")
        rate = self.peak * self._factor(step - self.warmup_steps)
        if not self.warmup_steps:
            return rate
        warming = self.peak * (step + 1.0) / (self.warmup_steps + 1.0)
        return ops.where(step < self.warmup_steps, warming, rate)

    def _factor(self, after: Any) -> Any:
        after = ops.maximum(after, 0.0)
        progress = ops.minimum(after / max(1, self.total_steps - self.warmup_steps), 1.0)
        if self.shape == "linear":
            return 1.0 - progress
        if self.shape == "cosine":
            return 0.5 * (1.0 + ops.cos(math.pi * progress))
        if self.shape == "exponential":
            return ops.power(self.decay_rate, after / self.decay_steps)
        if self.shape == "step":
            # The quotient of two floats may fall short of a whole number.
            return ops.power(self.decay_rate, ops.floor((after + 0.5) / self.decay_steps))
        return ops.ones_like(after)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {
            "peak": self.peak,
            "shape": self.shape,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "decay_steps": self.decay_steps,
            "decay_rate": self.decay_rate,
        }


def make_schedule(config: OptimizerConfig, batch_size: int, total_steps: int) -> Schedule:
    """The schedule of a run of `total_steps` batches.

    Raises:
        UserError: The warm-up takes the whole run.
    """
    if config.warmup_steps >= total_steps:
        raise UserError(
            f"--warmup_steps received {config.warmup_steps}, but the run has {total_steps} "
            "step(s) in all; expected fewer."
        )
    return Schedule(
        peak_rate(config, batch_size),
        config.schedule,
        config.warmup_steps,
        total_steps,
        _decay_steps(config, total_steps),
        config.decay_rate,
    )


def _decay_steps(config: OptimizerConfig, total_steps: int) -> int:
    return config.decay_steps or max(1, math.ceil(total_steps / 3))
