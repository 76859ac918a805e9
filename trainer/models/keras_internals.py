"""What this package uses of Keras that Keras does not promise.

The training loop uses a few names more: ARCHITECTURE.md says in which files.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable

import keras
import tensorflow as tf

from imageshards.errors import UserError
from trainer.imports import CHANNELS_LAST, CHANNELS_REMEDY

# The minor release of Keras that this package was tested with; setup.py allows no other.
TESTED = "3.15"
# What `sum_before_clipping` replaces in an optimizer.
_HOOKS = ("_backend_apply_gradients", "_all_reduce_sum_gradients")


def check_keras() -> None:
    """Refuses another release of Keras, and settings that would train another model.

    A release whose private parts differ might not fail by itself: were gradients summed elsewhere,
    replicas would sum them twice, or never. Layers that expect the channels first would take the
    rows of a picture for its channels.
    """
    if (backend := keras.config.backend()) != "tensorflow":
        raise UserError(
            argument="KERAS_BACKEND",
            received=repr(backend),
            expected="tensorflow, the only backend that ims.fit trains with",
            remedy="set KERAS_BACKEND before Keras is imported, or read the same batches as NumPy "
            "arrays by train.as_numpy()",
        )
    if (order := keras.config.image_data_format()) != CHANNELS_LAST:
        raise UserError(
            f"Keras's image_data_format is {order!r}",
            expected=f"{CHANNELS_LAST!r}, as pictures are [height, width, channels]",
            remedy=CHANNELS_REMEDY,
        )
    if not keras.__version__.startswith(f"{TESTED}."):
        raise UserError(
            f"Keras {keras.__version__} is installed",
            expected=f"{TESTED}, whose private parts this release of imageshards uses",
            remedy=f"pip install 'keras=={TESTED}.*'",
        )


def clips(optimizer: keras.optimizers.Optimizer | None) -> bool:
    """Whether an optimizer clips gradients."""
    names = ("clipnorm", "clipvalue", "global_clipnorm")
    return any(getattr(optimizer, name, None) for name in names)


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """The model, its layers, and those inside of them, at any depth."""
    return list(model._flatten_layers())


def seed_generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    """Those of every random layer of a model."""
    return [generator for layer in layers_of(model) for generator in layer._seed_generators]


def applies(name: str, output: keras.KerasTensor) -> bool:
    """Whether what made `output`, a symbolic tensor, ends with `softmax` or `sigmoid`, by name."""
    made_by = output._keras_history.operation
    if isinstance(made_by, keras.Model):
        return any(applies(name, one) for one in getattr(made_by, "outputs", None) or [])
    is_layer = name == "softmax" and isinstance(made_by, keras.layers.Softmax)
    return is_layer or getattr(made_by, "activation", None) is keras.activations.get(name)


def trained_variables(model: keras.Model) -> list[keras.Variable]:
    """What the optimizer of a compiled model changes, or will when it is no longer frozen."""
    return getattr(without_loss_scale(model.optimizer), "_trainable_variables", [])


def without_loss_scale(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """`optimizer` itself or, under loss scaling, the one inside."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def last_learning_rate(optimizer: keras.optimizers.Optimizer | None) -> float | None:
    """The rate with which weights were changed last; None where they never were."""
    if optimizer is None:
        return None
    optimizer = without_loss_scale(optimizer)
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        # Keras counts batches; with accumulation only every n-th of them changes the weights.
        batches = int(keras.ops.convert_to_numpy(optimizer._iterations))
        last = batches - batches % (optimizer.gradient_accumulation_steps or 1) - 1
        if last < 0:
            return None
        rate = rate(last)
    return float(keras.ops.convert_to_numpy(rate() if callable(rate) else rate))


def sum_before_clipping(optimizer: keras.optimizers.Optimizer) -> None:
    """Lets an optimizer without loss scaling sum gradients over the replicas before it clips them.

    Keras clips what each replica has and sums afterwards, so that the result depends on their
    number.
    """
    # Of the class: a step made for another run may have replaced that of the instance.
    apply = functools.partial(type(optimizer)._backend_apply_gradients, optimizer)

    def apply_sums(gradients: list[tf.Tensor], variables: list[keras.Variable]) -> None:
        replica = tf.distribute.get_replica_context()
        apply(list(replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)), variables)

    for name, function in zip(_HOOKS, (apply_sums, lambda pairs: pairs), strict=True):
        setattr(optimizer, name, function)


def undo_sum_before_clipping(optimizer: keras.optimizers.Optimizer) -> None:
    """Leaves an optimizer as Keras has it, for Keras's own `fit`."""
    for name in _HOOKS:
        vars(optimizer).pop(name, None)


def weights_file(error: Exception) -> tuple[str, str | None, str | None] | None:
    """The file of published weights that Keras failed with: only frames of its own know.

    Its path; where it could not be fetched, also the URL, and the hash if Keras checks that.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        found = frame.f_locals
        if path := found.get("download_target") or found.get("weights_path"):
            return path, found.get("origin"), found.get("file_hash")
    return None


def check_weights(
    model: keras.Model, step: int, gather: Callable[[str, list[int]], list[list[int]]]
) -> None:
    """Ends a run whose replicas have come to have other trainable weights.

    `gather` returns the values of all hosts, given a name and this host's value.
    """
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    # TensorFlow's variable of every replica; the variable itself where a host has one.
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
    """As whole numbers: exact, in whatever order a device adds."""
    kinds = {2: tf.int16, 4: tf.int32, 8: tf.int64}
    bits = tf.bitcast(variable, kinds[variable.dtype.size])
    return tf.reduce_sum(tf.cast(bits, tf.int64))
