"""Makes the loss, the learning rate of every step, and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from imageshards.commands.options import refuse_idle
from imageshards.errors import Arg, UserError
from trainer.config import LOSSES, OptimizerConfig
from trainer.dataset.spec import MeanStd
from trainer.models.keras_internals import (
    clips,
    layers_of,
    optimizers_of,
    trained_variables,
    without_loss_scale,
)

# The global batch size to which --scale_learning_rate relates --learning_rate.
REFERENCE_BATCH = 256

# Losses that are the same in any unit of the values.
WITHOUT_UNIT = ("mean_absolute_percentage_error", "mean_squared_logarithmic_error")
_CLASSES: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "sgd": keras.optimizers.SGD,
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "rmsprop": keras.optimizers.RMSprop,
}
_NORMS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.RMSNormalization,
)


@keras.saving.register_keras_serializable("imageshards")
class CrossEntropy(keras.losses.Loss):
    """Cross-entropy of logits, averaged over the batch; an example of weight 0 counts as loss 0.

    `label_smoothing` is the share of every label that is spread evenly over all classes.
    """

    def __init__(
        self, num_classes: int, label_smoothing: float = 0.0, name: str = "cross_entropy"
    ) -> None:
        # The divisor is the number of examples, not the sum of their weights: replicas with lighter
        # examples would otherwise weigh more, and results would depend on the number of replicas.
        super().__init__(name=name, reduction="sum_over_batch_size")
        self.num_classes = num_classes
        self.label_smoothing = label_smoothing

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the loss, float32 [b], of logits [b, K] for class ids [b] or shares [b, K]."""
        if len(y_true.shape) < 2 and not self.label_smoothing:
            return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        # Keras smooths one-hot labels only.
        if len(y_true.shape) < 2:
            y_true = ops.one_hot(ops.cast(y_true, "int32"), self.num_classes)
        return keras.losses.categorical_crossentropy(
            y_true, y_pred, from_logits=True, label_smoothing=self.label_smoothing
        )

    def get_config(self) -> dict[str, str | float]:
        names = ("num_classes", "label_smoothing", "name")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable("imageshards")
class InDeviations(keras.losses.Loss):
    """A loss of errors divided by the standard deviation of the values, so that it has no unit.

    `name` is a function in `keras.losses` that depends on the difference of true and predicted
    values alone, for example the squared error.
    """

    def __init__(self, name: str, std: Sequence[float]) -> None:
        super().__init__(name=name, reduction="sum_over_batch_size")
        self.std = list(std)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the loss, float32 [b], of outputs [b, k] for values [b] or [b, k]."""
        y_true = ops.reshape(ops.cast(y_true, y_pred.dtype), ops.shape(y_pred))
        # Errors are divided before the square, as the square of a large unit overflows float32.
        errors = (y_pred - y_true) / ops.convert_to_tensor(self.std, y_pred.dtype)
        return getattr(keras.losses, self.name)(ops.zeros_like(errors), errors)

    def get_config(self) -> dict[str, str | list[float]]:
        return {"name": self.name, "std": self.std}


def make_loss(
    config: OptimizerConfig, target: str, num_outputs: int, mean_std: MeanStd | None = None
) -> keras.losses.Loss:
    """Returns the loss of a model's outputs for its kind of target.

    The deviations of values in `mean_std` take the unit out of the loss.

    Raises:
        UserError: The loss belongs to another kind of target, or label smoothing is set for values.
    """
    names = LOSSES[target]
    if config.loss is not None and config.loss not in names:
        raise UserError(
            argument="loss",
            received=f"{config.loss!r}, but the target is {target}",
            expected=" or ".join(names) or "none, as classes are told apart by cross-entropy",
        )
    if target == "class":
        return CrossEntropy(num_outputs, config.label_smoothing)
    if target == "values":
        refuse_idle(config, "label_smoothing", "with a target of numbers", "a class or labels")
    name = config.loss or names[0]
    if mean_std is not None and name not in WITHOUT_UNIT:
        return InDeviations(name, mean_std.std)
    options: dict[str, Any] = {"name": name}
    if target == "labels":
        options |= {"from_logits": True, "label_smoothing": config.label_smoothing}
    return getattr(keras.losses, name.title().replace("_", ""))(**options)


def make_schedule(
    config: OptimizerConfig, batch_size: int, total_steps: int
) -> LearningRateSchedule:
    """Returns Keras's schedule for a run of `total_steps` batches.

    The peak is scaled as in Goyal et al., 2017 (arXiv:1706.02677): in proportion to the examples
    behind one change of the weights, accumulated batches included. Step s of a warm-up over W steps
    has (s + 1) / (W + 1) of the peak, so that no step is wasted on a rate of 0.

    Raises:
        UserError: The warm-up takes the whole run.
    """
    warmup_steps = config.warmup_steps
    if warmup_steps >= total_steps:
        raise UserError(
            argument="warmup_steps",
            received=f"{warmup_steps}, but the run has {total_steps} step(s) in all",
            expected="fewer steps",
        )
    peak = config.learning_rate
    if config.scale_learning_rate:
        peak *= batch_size * config.accumulate_steps / REFERENCE_BATCH
    schedules, first = keras.optimizers.schedules, peak / (warmup_steps + 1)
    # A polynomial of degree 1 rises to the peak, and then keeps it.
    if config.schedule == "constant":
        return schedules.PolynomialDecay(first, max(1, warmup_steps), peak)
    # `OptimizerConfig` refuses a warm-up with this schedule.
    if config.schedule == "linear":
        return schedules.PolynomialDecay(peak, total_steps, 0.0)
    target = peak if warmup_steps else None
    return schedules.CosineDecay(
        first, total_steps - warmup_steps, warmup_target=target, warmup_steps=warmup_steps
    )


def make_optimizer(
    config: OptimizerConfig, batch_size: int, total_steps: int
) -> keras.optimizers.Optimizer:
    """Returns an optimizer that is not built yet. Call it inside the strategy's scope.

    Weight decay is decoupled: every step takes learning rate · `weight_decay` · weight off.
    """
    several = config.accumulate_steps if config.accumulate_steps > 1 else None
    options: dict[str, Any] = {
        "learning_rate": make_schedule(config, batch_size, total_steps),
        "weight_decay": config.weight_decay or None,
        "global_clipnorm": config.clipnorm,
        "gradient_accumulation_steps": several,
    }
    if config.ema:
        # Keras updates the average after every batch, also if several batches make one step.
        momentum = config.ema ** (1 / config.accumulate_steps)
        options |= {"use_ema": True, "ema_momentum": momentum}
    if config.optimizer in ("sgd", "rmsprop"):
        options["momentum"] = float(config.momentum)
    if config.optimizer == "sgd":
        options["nesterov"] = True
    # AdamW is the only optimizer that refuses None.
    if config.optimizer == "adamw":
        options["weight_decay"] = config.weight_decay
    optimizer = _CLASSES[config.optimizer](**options)
    is_scaled = config.precision == "float16"
    return keras.optimizers.LossScaleOptimizer(optimizer) if is_scaled else optimizer


def check_replicas(model: keras.Model, replicas: int) -> None:
    """Refuses a compiled model with which several replicas would fail, or train differently.

    Raises:
        UserError: XLA compiles the model, or its optimizer accumulates gradients,
            overwrites weights by their average, or clips inside of loss scaling.
    """
    # TensorFlow and Keras check none of these problems, seen with TensorFlow 2.21 and Keras 3.15.
    problem = "jit_compile, but XLA cannot compile sums over replicas" if model.jit_compile else ""
    for optimizer in optimizers_of(model):
        inner = without_loss_scale(optimizer)
        for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
            if value := getattr(inner, name, None):
                problem = f"{name}={value} of the optimizer, but Keras fails there"
        if inner is not optimizer and clips(inner):
            problem = "clipping and float16, but loss scaling takes gradients before their sum"
    if problem and replicas > 1:
        raise UserError(
            argument=Arg("replicas", python="the strategy of model"),
            received=f"{replicas} with {problem}",
            expected="one replica, or no such setting",
        )


def exempt_from_decay(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> None:
    """Exempts norms, biases and all variables of at most one dimension from weight decay.

    Call it before `optimizer.build`.
    """
    norms = {
        id(variable)
        for layer in layers_of(model)
        if isinstance(layer, _NORMS)
        for variable in layer.trainable_variables
    }
    exempt = [v for v in model.trainable_variables if len(v.shape) < 2 or id(v) in norms]
    if exempt:
        without_loss_scale(optimizer).exclude_from_weight_decay(var_list=exempt)


def use_average(model: keras.Model) -> None:
    """Replaces the weights of a compiled model by their running average, if it has one.

    As Keras does at the end of `fit`. Before the first step there is no average yet.
    """
    if model.optimizer is not None and int(ops.convert_to_numpy(model.optimizer.iterations)):
        # The weights of frozen layers have averages, too.
        variables = trained_variables(model) or model.trainable_variables
        model.optimizer.finalize_variable_values(variables)
