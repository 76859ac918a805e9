"""The optimizers by name, with what Keras's own leave to be minded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from trainer.config import OptimizerConfig
from trainer.models.schedule import learning_rate_at, make_schedule

__all__ = [
    "averaged_weights",
    "exclude",
    "inner",
    "learning_rate_at",
    "make_optimizer",
]

_NORMS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.RMSNormalization,
)


@keras.saving.register_keras_serializable("imageshards")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Skips a step if the gradients of any replica overflow.

    Keras 3.15 asks the first replica only, before gradients are summed: an overflow on
    another one would reach the weights as NaN.
    """

    def check_finite(self, grads: Any) -> Any:
        """Whether the gradients of all replicas are finite: a bool scalar."""
        finite = super().check_finite(grads)
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return finite
        overflows = tf.cast(tf.logical_not(finite), tf.float32)
        return tf.equal(replica.all_reduce(tf.distribute.ReduceOp.SUM, overflows), 0.0)


def make_optimizer(
    config: OptimizerConfig, batch_size: int, total_steps: int, head: str | None = None
) -> keras.optimizers.Optimizer:
    """An optimizer that is not built yet; create it inside the strategy's scope.

    Weight decay is decoupled: every step takes learning rate · `weight_decay` · weight off.

    Args:
        config: What is asked for.
        batch_size: Global.
        total_steps: Batches of the whole run, which the schedule is laid over.
        head: Path (a pattern) of the last layer, which Muon leaves to AdamW.

    Raises:
        UserError: The warm-up is as long as the run.
    """
    options: dict[str, Any] = {
        "learning_rate": make_schedule(config, batch_size, total_steps),
        "weight_decay": config.weight_decay or None,
        "global_clipnorm": config.clipnorm,
    }
    if config.ema:
        # Keras updates the average after every batch, also where several make one step.
        momentum = config.ema ** (1 / config.accumulate_steps)
        options |= {"use_ema": True, "ema_momentum": momentum}
    if config.accumulate_steps > 1:
        options["gradient_accumulation_steps"] = config.accumulate_steps
    optimizer = _MAKERS[config.optimizer](config, options, head)
    return LossScaleOptimizer(optimizer) if config.precision == "float16" else optimizer


def inner(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """`optimizer` itself or, under loss scaling, the one inside."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def exclude(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> int:
    """Exempts norms, biases and everything else of at most one dimension from weight decay.

    Call it before `optimizer.build`.

    Returns:
        How many variables are exempt.
    """
    norms = {
        id(variable)
        for layer in model._flatten_layers(include_self=False)
        if isinstance(layer, _NORMS)
        for variable in layer.trainable_variables
    }
    exempt = [v for v in model.trainable_variables if len(v.shape) < 2 or id(v) in norms]
    if exempt:
        inner(optimizer).exclude_from_weight_decay(var_list=exempt)
    return len(exempt)


@contextmanager
def averaged_weights(model: keras.Model) -> Iterator[None]:
    """Puts the running average in place of a compiled model's weights for a while.

    Enter it outside `strategy.run`, to validate or to save. Without `ema`, and before the
    first step, when there is no average yet, it does nothing.
    """
    optimizer = inner(model.optimizer)
    if not optimizer.use_ema or not int(optimizer._iterations.numpy()):
        yield
        return
    variables = list(optimizer._trainable_variables)
    kept = [variable.numpy() for variable in variables]
    try:
        for variable, average in zip(
            variables, optimizer._model_variables_moving_average, strict=True
        ):
            variable.assign(average.numpy())
        yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)


def _sgd(config: OptimizerConfig, options: dict[str, Any], head: str | None) -> Any:
    return keras.optimizers.SGD(momentum=float(config.momentum), nesterov=True, **options)


def _adam(config: OptimizerConfig, options: dict[str, Any], head: str | None) -> Any:
    return keras.optimizers.Adam(**options)


def _adamw(config: OptimizerConfig, options: dict[str, Any], head: str | None) -> Any:
    return keras.optimizers.AdamW(**options | {"weight_decay": config.weight_decay})


def _rmsprop(config: OptimizerConfig, options: dict[str, Any], head: str | None) -> Any:
    return keras.optimizers.RMSprop(momentum=config.momentum, **options)


def _lamb(config: OptimizerConfig, options: dict[str, Any], head: str | None) -> Any:
    return keras.optimizers.Lamb(**options)


def _muon(config: OptimizerConfig, options: dict[str, Any], head: str | None) -> Any:
    return keras.optimizers.Muon(
        momentum=config.momentum,
        adam_weight_decay=options["weight_decay"],
        exclude_layers=[head] if head else None,
        **options,
    )


_MAKERS: dict[str, Callable[[OptimizerConfig, dict[str, Any], str | None], Any]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "rmsprop": _rmsprop,
    "lamb": _lamb,
    "muon": _muon,
}
