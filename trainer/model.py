"""The models: pixels 0..255 in, one logit per class out, normalisation inside."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable
from typing import Any

import keras

from trainer.errors import UserError
from trainer.manifest import ImageSpec

CNN = "cnn"
# A channel that hardly varies would be blown up to noise.
MIN_STD = 1 / 255
LARGE_PX = 96


def application_names() -> list[str]:
    """The architectures of `keras.applications`, as their functions are called."""
    return sorted(name for name in dir(keras.applications) if name[0].isupper())


def resolve_name(name: str) -> str:
    """`name` as this module spells it: `cnn`, or an architecture in `keras.applications`.

    Case, `_` and `-` do not count: `mobilenet_v2` is `MobileNetV2`.

    Raises:
        UserError: There is no such model; the sentence lists the nearest names.
    """
    names = {_bare(known): known for known in [CNN, *application_names()]}
    if _bare(name) in names:
        return names[_bare(name)]
    near = difflib.get_close_matches(_bare(name), names, n=4, cutoff=0.5)
    hint = f" (near: {', '.join(names[match] for match in near)})" if near else ""
    raise UserError(
        f"--model received {name!r}; expected cnn or a name in keras.applications{hint}, "
        "for example MobileNetV2."
    )


def build_model(
    name: str, size: tuple[int, int], num_classes: int, image: ImageSpec
) -> keras.Model:
    """An uncompiled model with random weights.

    Args:
        name: As `resolve_name` returns it.
        size: (height, width) of the pictures in pixels.
        num_classes: Logits.
        image: Channels, and the mean and standard deviation to normalise by.

    Returns:
        uint8 or float [batch, *size, channels] with values 0..255 → float32
        [batch, num_classes], not passed through softmax.

    Raises:
        UserError: The architecture refuses this size.
    """
    inputs = keras.Input((*size, image.channels), dtype="uint8", name="image")
    x = keras.layers.Rescaling(1 / 255, name="to_unit")(inputs)
    variance = [max(std, MIN_STD) ** 2 for std in image.std]
    x = keras.layers.Normalization(mean=list(image.mean), variance=variance, name="normalise")(x)
    if name == CNN:
        logits = _cnn(x, num_classes)
    else:
        logits = _application(name, x, num_classes)
    # Under mixed precision the loss still wants full precision.
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(logits)
    return keras.Model(inputs, logits, name=name)


def compile_model(model: keras.Model, learning_rate: float) -> None:
    """Adam on the cross-entropy, with metrics that respect the weight of each example.

    `crossentropy` is there for evaluation: where a batch was filled up with examples of
    weight 0, Keras's own `loss` divides by all of them.
    """
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="crossentropy"),
        ],
    )


def has_dropout(model: keras.Model) -> bool:
    """Whether `model`, or a model inside it, has a dropout layer that drops anything."""
    return any(
        getattr(layer, "rate", 0) > 0
        for layer in model._flatten_layers(include_self=False)
        if isinstance(layer, keras.layers.Dropout)
    )


def _cnn(x: Any, num_classes: int) -> Any:
    """Four convolutions, each normalised and pooled, then two poolings and a dense layer.

    Batch statistics are taken over all replicas together, so that one replica and several
    learn the same. There is no dropout: under `MirroredStrategy` Keras gives every replica
    the same mask.
    """
    # Larger pictures are halved at once: full resolution is most of the work, least of use.
    strides = 2 if min(x.shape[1:3]) >= LARGE_PX else 1
    for filters in (16, 32, 64, 128):
        x = keras.layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        # A short run has few steps: at Keras's momentum of 0.99 the averages lag behind.
        x = keras.layers.BatchNormalization(momentum=0.9, synchronized=True)(x)
        x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D(padding="same")(x)
        strides = 1
    # The mean tells how much of something there is; the maximum, that it is there at all.
    mean = keras.layers.GlobalAveragePooling2D()(x)
    peak = keras.layers.GlobalMaxPooling2D()(x)
    return keras.layers.Dense(num_classes)(keras.layers.Concatenate()([mean, peak]))


def _application(name: str, x: Any, num_classes: int) -> Any:
    build: Callable[..., keras.Model] = getattr(keras.applications, name)
    options: dict[str, Any] = {"weights": None, "classes": num_classes}
    options |= {"classifier_activation": None, "input_shape": tuple(x.shape[1:])}
    if "include_preprocessing" in inspect.signature(build).parameters:
        options["include_preprocessing"] = False
    try:
        application = build(**options)
    except ValueError as e:
        reason = re.split(r"(?<=[.;]) ", " ".join(str(e).split()))[0].rstrip(".;")
        raise UserError(
            f"--model received {name}, which refuses pictures of {x.shape[1]}x{x.shape[2]} px "
            f"({reason}); expected a fitting --image_size."
        ) from e
    for layer in application.layers:
        # EfficientNet (V1) insists on dividing by 255 itself: let it find pixels to divide.
        if isinstance(layer, keras.layers.Rescaling):
            x = keras.layers.Rescaling(1 / layer.scale, name="undo_rescaling")(x)
            break
    return application(x)


def _bare(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
