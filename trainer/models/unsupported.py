"""Settings that TensorFlow or Keras take but do not support: refused, or noted where they work."""

from __future__ import annotations

import math
from typing import Any

from imageshards.errors import UserError
from trainer.config import OptimizerConfig, TrainConfig, uneven_batch

# Statistics of fewer pictures than this are mostly noise (Wu and He, arXiv:1803.08494, fig. 1).
FEW_FOR_STATISTICS = 8


def check(config: TrainConfig, replicas: int) -> None:
    """Refuses what would fail in the first step or silently train another model.

    Each of these was seen with TensorFlow 2.21 and Keras 3.15.

    Args:
        config: The run.
        replicas: Devices that share a batch.

    Raises:
        UserError: Names the cause and the remedy.
    """
    optimizer = config.optimizer
    if config.batch_size % replicas:
        raise uneven_batch(config.batch_size, replicas)
    if replicas == 1:
        return
    if optimizer.jit_compile:
        raise UserError(
            f"--jit_compile received true with {replicas} replicas, where TensorFlow cannot "
            "compile a step that sums gradients over devices; leave --jit_compile out, or train "
            "with --replicas 1."
        )
    if optimizer.clipnorm is not None:
        raise UserError(
            f"--clipnorm received {optimizer.clipnorm} with {replicas} replicas, where Keras clips "
            "the gradients of every replica before they are summed, so that the result depends "
            "on the number of replicas; leave --clipnorm out, or train with --replicas 1."
        )
    if optimizer.accumulate_steps > 1:
        raise UserError(
            f"--accumulate_steps received {optimizer.accumulate_steps} with {replicas} replicas, "
            "where Keras cannot decide between accumulating and stepping (merge_call within a "
            "condition); leave --accumulate_steps out, or train with --replicas 1."
        )


def notes(config: TrainConfig, model: Any, total_steps: int, gpus: int = 0) -> list[str]:
    """What is allowed, but may surprise; a sentence each.

    Args:
        config: The run.
        model: The compiled Keras model.
        total_steps: Of the whole run.
        gpus: How many of the devices are GPUs.
    """
    optimizer = config.optimizer
    found = [
        _small_statistics(config.batch_size, model),
        _slow_precision(optimizer.precision, gpus),
        _slow_average(optimizer, total_steps),
        _unfinished_accumulation(optimizer, total_steps),
        _idle_muon(optimizer, model),
    ]
    if optimizer.optimizer == "adamw" and not optimizer.weight_decay:
        found.append("adamw without --weight_decay is adam")
    return [note for note in found if note]


def _small_statistics(batch_size: int, model: Any) -> str | None:
    layers = model._flatten_layers(include_self=False)
    if batch_size >= FEW_FOR_STATISTICS or not any(hasattr(x, "moving_variance") for x in layers):
        return None
    return (
        f"{model.name} normalises by the statistics of {batch_size} pictures, which are noisy; "
        f"--batch_size of {FEW_FOR_STATISTICS} or more is steadier"
    )


def _slow_precision(precision: str, gpus: int) -> str | None:
    if precision == "float32" or gpus:
        return None
    return f"--precision {precision} usually is slower than float32 on a CPU"


def _slow_average(optimizer: OptimizerConfig, total_steps: int) -> str | None:
    if not optimizer.ema:
        return None
    updates = total_steps // optimizer.accumulate_steps
    share = optimizer.ema**updates
    if share < 0.05:
        return None
    fitting = max(0.0, 1 - 5 / max(5, updates))
    return (
        f"--ema {optimizer.ema} over {updates} steps keeps {share:.0%} of the first step's "
        f"weights in the average; --ema {math.floor(fitting * 1e4) / 1e4:g} or less would suit"
    )


def _unfinished_accumulation(optimizer: OptimizerConfig, total_steps: int) -> str | None:
    left = total_steps % optimizer.accumulate_steps
    if not left:
        return None
    return (
        f"{total_steps} steps are no multiple of --accumulate_steps "
        f"{optimizer.accumulate_steps}; the last {left} change no weights"
    )


def _idle_muon(optimizer: OptimizerConfig, model: Any) -> str | None:
    if optimizer.optimizer != "muon":
        return None
    matrices = [v for v in model.trainable_variables if len(v.shape) == 2]
    hidden = [v for v in matrices[:-1] if "embedding" not in v.path.lower()]
    return (
        f"muon steps {len(hidden)} of {len(model.trainable_variables)} variables of {model.name}: "
        "the matrices but the last; adamw steps the others, convolutions too"
    )
