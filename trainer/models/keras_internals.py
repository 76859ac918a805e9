"""Uses the parts of Keras that Keras does not promise to keep.

ARCHITECTURE.md lists the files of the training loop that use a few more private names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from imageshards.errors import UserError
from trainer.imports import CHANNELS_LAST, CHANNELS_REMEDY

# The only minor release of Keras that pyproject.toml allows, with which this package was tested.
TESTED = "3.15"
# The methods of an optimizer that `adapt_to_replicas` replaces.
_ADAPTED = ("check_finite", "_backend_apply_gradients", "_all_reduce_sum_gradients")


def check_keras() -> None:
    """Refuses an untested release of Keras, and settings with which a model trains differently."""
    if (backend := keras.config.backend()) != "tensorflow":
        raise UserError(
            argument="KERAS_BACKEND",
            received=repr(backend),
            expected="tensorflow, the only backend that ims.fit trains with",
            remedy="set KERAS_BACKEND before Keras is imported, or read the same batches as NumPy "
            "arrays by train.as_numpy()",
        )
    # Layers that expect the channels first would take the rows of a picture for its channels.
    if (order := keras.config.image_data_format()) != CHANNELS_LAST:
        raise UserError(
            f"Keras's image_data_format is {order!r}",
            expected=f"{CHANNELS_LAST!r}, as pictures are [height, width, channels]",
            remedy=CHANNELS_REMEDY,
        )
    # A release with other private parts might not fail: if it summed gradients elsewhere, replicas
    # would sum them twice, or never.
    if not keras.__version__.startswith(f"{TESTED}."):
        raise UserError(
            f"Keras {keras.__version__} is installed",
            expected=f"{TESTED}, whose private parts this release of imageshards uses",
            remedy=f"pip install 'keras=={TESTED}.*'",
        )


def clips(optimizer: keras.optimizers.Optimizer | None) -> bool:
    """Returns whether an optimizer clips gradients."""
    names = ("clipnorm", "clipvalue", "global_clipnorm")
    return any(getattr(optimizer, name, None) for name in names)


def reads_logs(callbacks: Sequence[keras.callbacks.Callback], kind: str) -> bool:
    """Returns whether a callback has a hook for the end of each batch of `kind`, train or test.

    Keras converts the logs for every hook, which waits for the devices, so no hook means no wait.
    """
    names = [f"on_{kind}_batch_end", *["on_batch_end"] * (kind == "train")]
    return any(not hasattr(getattr(c, name), "_is_default") for c in callbacks for name in names)


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Returns the model, its layers, and the layers inside of them, at any depth."""
    return list(model._flatten_layers())


def seed_generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    """Returns the seed generators of every random layer of a model."""
    return [generator for layer in layers_of(model) for generator in layer._seed_generators]


def applies(name: str, output: keras.KerasTensor) -> bool:
    """Returns whether the symbolic tensor `output` comes from the activation or layer `name`."""
    made_by = output._keras_history.operation
    if isinstance(made_by, keras.Model):
        return any(applies(name, one) for one in getattr(made_by, "outputs", None) or [])
    is_layer = name == "softmax" and isinstance(made_by, keras.layers.Softmax)
    return is_layer or getattr(made_by, "activation", None) is keras.activations.get(name)


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns a model's optimizers; a model with its own `train_step` may have several."""
    found = [model.optimizer, *vars(model).values()]
    found = [one for one in found if isinstance(one, keras.optimizers.Optimizer)]
    return list({id(one): one for one in found}.values())


def trained_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables that the optimizer changes, or will change when no layer is frozen."""
    return getattr(without_loss_scale(model.optimizer), "_trainable_variables", [])


def without_loss_scale(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer inside a loss-scaling one, or `optimizer` itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def last_learning_rate(optimizer: keras.optimizers.Optimizer | None) -> float | None:
    """Returns the learning rate of the last change of the weights; None before the first change."""
    if optimizer is None:
        return None
    optimizer = without_loss_scale(optimizer)
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        # Keras counts batches. With accumulation, only every n-th batch changes the weights.
        batches = int(keras.ops.convert_to_numpy(optimizer._iterations))
        last = batches - batches % (optimizer.gradient_accumulation_steps or 1) - 1
        if last < 0:
            return None
        rate = rate(last)
    return float(keras.ops.convert_to_numpy(rate() if callable(rate) else rate))


def adapt_to_replicas(optimizer: keras.optimizers.Optimizer) -> None:
    """Lets an optimizer train several replicas as one replica would.

    Gradients are summed over replicas before they are clipped, and a loss-scaling optimizer skips a
    step if the gradients of any replica overflow.
    """
    # The methods come from the class, as an earlier run may have replaced those of the instance.
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        is_finite = functools.partial(type(optimizer).check_finite, optimizer)

        def all_finite(gradients: list[tf.Tensor]) -> tf.Tensor:
            # Keras asks the first replica alone, before gradients are summed: an overflow on
            # another replica would reach the weights as NaN.
            replica = tf.distribute.get_replica_context()
            overflows = tf.cast(tf.logical_not(is_finite(gradients)), tf.float32)
            return tf.equal(replica.all_reduce(tf.distribute.ReduceOp.SUM, overflows), 0.0)

        optimizer.check_finite = all_finite
    elif clips(optimizer):
        # Keras clips each replica's gradients and sums them afterwards, so that the result would
        # depend on the number of replicas.
        apply = functools.partial(type(optimizer)._backend_apply_gradients, optimizer)

        def apply_sums(gradients: list[tf.Tensor], variables: list[keras.Variable]) -> None:
            replica = tf.distribute.get_replica_context()
            apply(list(replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)), variables)

        optimizer._backend_apply_gradients = apply_sums
        optimizer._all_reduce_sum_gradients = lambda pairs: pairs


def restore_methods(optimizer: keras.optimizers.Optimizer) -> None:
    """Restores Keras's methods of an optimizer, for Keras's own `fit`."""
    for name in _ADAPTED:
        vars(optimizer).pop(name, None)


def check_weights(
    model: keras.Model, step: int, gather: Callable[[str, list[int]], list[list[int]]]
) -> None:
    """Refuses to go on if the replicas have different trainable weights after `step` steps.

    `gather` returns the values of all hosts, given a name and this host's value.
    """
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    # A variable has a part for each replica; with one replica on this host it has no parts.
    parts = [getattr(v.value, "values", (v.value,)) for v in model.trainable_variables]
    by_replica = zip(*parts, strict=True)
    mine = [int(tf.add_n([_sum_of_bits(one) for one in weights])) for weights in by_replica]
    if len({one for of_host in gather("weights", mine) for one in of_host}) > 1:
        raise UserError(
            f"The weights of the replicas differ after step {step}, with Keras {keras.__version__}",
            expected="the same weights on all replicas, so nothing is saved",
            remedy="look for a train_step, an optimizer or a callback of your own that changes "
            f"weights on one replica only, install keras=={TESTED}.*, or train on one replica",
        )


def _sum_of_bits(variable: tf.Variable) -> tf.Tensor:
    # Integers sum exactly, in any order in which a device adds them; floats do not.
    kinds = {2: tf.int16, 4: tf.int32, 8: tf.int64}
    bits = tf.bitcast(variable, kinds[variable.dtype.size])
    return tf.reduce_sum(tf.cast(bits, tf.int64))
