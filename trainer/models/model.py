"""Builds models: pixels 0..255 in, a logit for each class or values out, normalisation inside."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from imageshards.errors import Arg, UserError
from imageshards.text import counted
from trainer.config import OptimizerConfig
from trainer.dataset.batch import model_input
from trainer.dataset.spec import BOXES, IMAGE_INPUT, ImageSpec, MeanStd, ModelInputs, input_name
from trainer.models import user_model
from trainer.models.keras_internals import layers_of, optimizers_of
from trainer.models.metrics import make_metrics
from trainer.models.optimizer import exempt_from_decay, make_loss, make_optimizer
from trainer.models.pretrained import (
    IMAGENET,
    application_logits,
    application_names,
    load_weights,
    preprocess,
)

CNN = "cnn"
# Dividing by a smaller deviation would turn a channel that hardly varies into noise.
MIN_STD = 1 / 255
LARGE_PX = 96


def resolve_name(name: str) -> str:
    """Returns `name` as this module spells it: `cnn`, an architecture, or `module:function`.

    Case, `_` and `-` do not matter: `mobilenet_v2` is `MobileNetV2`. A module is imported.

    Raises:
        UserError: The model does not exist; the message lists the nearest names.
    """
    if user_model.is_user_model(name):
        user_model.load_function(name)
        return name
    names = {_bare(known): known for known in [CNN, *application_names()]}
    if _bare(name) in names:
        return names[_bare(name)]
    near = difflib.get_close_matches(_bare(name), names, n=4, cutoff=0.5)
    hint = f" (near: {', '.join(names[match] for match in near)})" if near else ""
    raise UserError(
        argument="model",
        received=repr(name),
        expected=f"cnn or a name in keras.applications{hint}, for example MobileNetV2, or "
        "module:function, or keras_hub:NAME",
    )


@dataclasses.dataclass(frozen=True)
class Head:
    """What a model returns.

    Attributes:
        num_outputs: Number of logits or values.
        target: Kind of the target: `class`, `labels`, `values` or `boxes`.
        mean_std: For values, the last layer turns numbers around 0 into numbers of this mean and
            deviation, so that the unit of a quantity does not matter for learning.
        names: Names of the outputs. Initial weights for as many other outputs leave the head
            random.
    """

    num_outputs: int
    target: str = "class"
    mean_std: MeanStd | None = None
    names: Sequence[str] = ()


def build_model(
    name: str,
    inputs: ModelInputs,
    head: Head,
    weights: str | None = None,
    precision: str = "float32",
    sync_batchnorm: bool = False,
) -> keras.Model:
    """Builds a model to compile, or the user's compiled model. Call it in the strategy's scope.

    Args:
        name: The result of `resolve_name`.
        inputs: The model's inputs.
        head: The model's outputs.
        weights: File with initial weights, see `trainer.models.pretrained`, or `imagenet` for
            published weights; None for random weights. A printed line says which fit.
        precision: A name in `trainer.config.PRECISIONS`, for the arithmetic. Weights, the
            normalisation of pixels, and logits are float32 in any case.
        sync_batchnorm: Computes batch statistics over all replicas; not for a user's model.

    Returns:
        A model from uint8 or float [batch, *size, channels], 0..255, to float32 [batch,
        num_outputs], without softmax or sigmoid. With further inputs it takes a dictionary,
        keyed by `image` and by the `input_name` of each feature; features have the shape
        [batch, *shape], or [batch, length] for a variable length. A user's compiled model is
        returned as it is: it takes the same inputs, and has its own outputs, loss and metrics.

    Raises:
        UserError: The architecture refuses this size or these inputs, or weights do not fit.
    """
    if weights == IMAGENET and (name not in application_names() or inputs.image.channels != 3):
        raise UserError(
            argument="weights",
            received=f"{weights} for "
            + Arg("model", name)
            + f" and pictures of {counted(inputs.image.channels, 'channel')}",
            expected="a name in keras.applications, for which such weights are published, and "
            "colours",
        )
    with _dtype_policy(precision):
        tensors = input_tensors(inputs)
        normalised = tensors | {
            IMAGE_INPUT: _normalise(name, tensors[IMAGE_INPUT], inputs.image, weights)
        }
        logits = _logits(name, normalised, head, weights)
        if isinstance(logits, keras.Model):
            model = logits
        else:
            # The loss needs full precision, also under mixed precision.
            last = keras.layers.Activation("linear", dtype="float32", name="logits")
            if (unit := head.mean_std) is not None:
                last = keras.layers.Rescaling(
                    list(unit.std), list(unit.mean), dtype="float32", name="target_unit"
                )
            own_name = re.sub(r"\W+", "_", name.partition(":")[2] or name).strip("_")
            model = keras.Model(model_input(tensors), last(logits), name=own_name)
            norms = [x for x in layers_of(model) if isinstance(x, keras.layers.BatchNormalization)]
            if sync_batchnorm and not norms:
                why = "True with " + Arg("model", name) + ", which has no BatchNormalization"
                raise UserError(argument="sync_batchnorm", received=why, remedy="leave it out")
            for norm in norms if sync_batchnorm else ():
                norm.synchronized = True
    if weights == IMAGENET:
        print(f"weights  {weights}, as Keras publishes them: all but the head, which is random")
    elif weights:
        print(load_weights(model, weights, head.names), flush=True)
    return model


def compile_model(
    model: keras.Model,
    head: Head,
    config: OptimizerConfig,
    batch_size: int,
    total_steps: int,
    metrics: Sequence[str] = (),
) -> None:
    """Gives `model` an optimizer, and the loss and metrics of its target.

    Builds all variables, so that a checkpoint can be restored immediately. Call it inside the
    strategy's scope. The arguments are as for `build_model` and `make_schedule`.

    Raises:
        UserError: The warm-up is as long as the run, there is only one class, or a metric or loss
            does not fit the target.
    """
    if head.num_outputs < 2 and head.target == "class":
        raise UserError(
            argument="classes",
            received="one class, or "
            + Arg("data")
            + " has no other: every answer would be right, and nothing learnt",
            expected="at least two classes to tell apart",
        )
    optimizer = make_optimizer(config, batch_size, total_steps)
    # Keras accepts exemptions only before the optimizer is built.
    exempt_from_decay(optimizer, model)
    model.compile(
        optimizer=optimizer,
        loss=make_loss(config, head.target, head.num_outputs, head.mean_std),
        weighted_metrics=make_metrics(metrics, head.num_outputs, head.target),
        jit_compile=config.jit_compile,
    )
    optimizer.build(model.trainable_variables)


def state_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of a compiled model that a checkpoint stores, always in the same order.

    These are weights, states of random layers, all variables of the optimizer (averages,
    accumulated gradients, loss scale, counters) and the metrics of the epoch so far. Assigned to a
    model that was built and compiled in the same way, their values (of every replica, if they
    differ) continue a run bit for bit: see `trainer.training.checkpoint`.
    """
    variables = [*model.variables, *model.metrics_variables]
    variables += [v for optimizer in optimizers_of(model) for v in optimizer.variables]
    return list({id(variable): variable for variable in variables}.values())


def check_optimizers(model: keras.Model) -> None:
    """Refuses a model with an optimizer that has no variables before the first step."""
    # A checkpoint is restored before the first step, and would not find these variables.
    for name, value in vars(model).items():
        if isinstance(value, keras.optimizers.Optimizer) and not value.built:
            raise UserError(
                argument="model",
                received=f"{model.name}, whose optimizer {name!r} has no variables before the "
                "first step, when they are restored",
                remedy="call build(variables) of the optimizer where the model is compiled",
            )


@contextmanager
def _dtype_policy(precision: str) -> Iterator[None]:
    # The user's module may have set a policy, which "float32", the default, must not replace.
    if precision == "float32":
        yield
        return
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(f"mixed_{precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def input_tensors(inputs: ModelInputs) -> dict[str, Any]:
    """Returns the symbolic inputs of a model, by name."""
    shape = (*inputs.size, inputs.image.channels)
    tensors = {IMAGE_INPUT: keras.Input(shape, dtype="uint8", name=IMAGE_INPUT)}
    for feature, spec in inputs.features.items():
        name = input_name(feature)
        feature_shape = (inputs.sequence_length,) if spec.shape is None else spec.shape
        tensors[name] = keras.Input(feature_shape, dtype=spec.dtype, name=name)
    if BOXES in inputs.names:
        most = inputs.sequence_length
        tensors[BOXES] = {
            "boxes": keras.Input((most, 4), dtype="float32", name=input_name(f"{BOXES}/boxes")),
            "labels": keras.Input((most,), dtype="int64", name=input_name(f"{BOXES}/labels")),
        }
    return tensors


def _normalise(
    name: str, pixels: keras.KerasTensor, image: ImageSpec, weights: str | None
) -> keras.KerasTensor:
    # The architectures' scaling is for RGB. Grey pictures get the dataset's mean and deviation.
    if name in application_names() and image.channels == len("RGB"):
        return preprocess(name, pixels, weights)
    if user_model.is_preset(name):
        return pixels
    # Float32 also under mixed precision: a scaled pixel has more digits than bfloat16.
    x = keras.layers.Rescaling(1 / 255, name="to_unit", dtype="float32")(pixels)
    variance = [max(std, MIN_STD) ** 2 for std in image.std]
    layer = keras.layers.Normalization(
        mean=list(image.mean), variance=variance, name="normalise", dtype="float32"
    )
    normalised = layer(x)
    # A keras.Model that the user's function makes from it has an input of this name.
    normalised.name = IMAGE_INPUT
    return normalised


def _logits(
    name: str,
    inputs: Mapping[str, keras.KerasTensor],
    head: Head,
    weights: str | None,
) -> keras.KerasTensor | keras.Model:
    if user_model.is_user_model(name) and not (user_model.is_preset(name) and len(inputs) > 1):
        function = user_model.load_function(name)
        return user_model.call_function(name, function, inputs, head.num_outputs, head.target)
    if head.target == "boxes":
        raise UserError(
            argument="target",
            received=f"{BOXES}, which " + Arg("model", name) + " cannot find",
            expected=Arg("model", "module:function")
            + " that returns a compiled model of your own, or ims.fit in Python",
        )
    if len(inputs) > 1:
        others = sorted(set(inputs) - {IMAGE_INPUT})
        raise UserError(
            argument="inputs",
            received=f"{', '.join(others)}, which " + Arg("model", name) + " would ignore",
            expected=Arg("model", "module:function")
            + " that uses all inputs, see recipes/multi_input.py",
        )
    x = inputs[IMAGE_INPUT]
    if name == CNN:
        return _cnn(x, head.num_outputs)
    return application_logits(name, x, head.num_outputs, weights)


def _cnn(x: keras.KerasTensor, num_outputs: int) -> keras.KerasTensor:
    """Builds four convolutions, each normalised and pooled, then two poolings and a dense layer."""
    # The first layer halves large pictures: full resolution costs most of the work and helps least.
    strides = 2 if min(x.shape[1:3]) >= LARGE_PX else 1
    for filters in (16, 32, 64, 128):
        x = keras.layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        # A short run has few steps, in which averages with Keras's momentum of 0.99 lag behind.
        x = keras.layers.BatchNormalization(momentum=0.9)(x)
        x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D(padding="same")(x)
        strides = 1
    # The mean says how much of a feature a picture has; the maximum says whether it has any.
    mean = keras.layers.GlobalAveragePooling2D()(x)
    peak = keras.layers.GlobalMaxPooling2D()(x)
    return keras.layers.Dense(num_outputs)(keras.layers.Concatenate()([mean, peak]))


def _bare(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
