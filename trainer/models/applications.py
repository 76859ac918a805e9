"""The architectures of `keras.applications`, with the pixels their weights were published for."""

from __future__ import annotations

import itertools
import re
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import keras

from imageshards.errors import Arg, UserError
from trainer.models.keras_internals import weights_file

# The value of --weights that means what Keras publishes.
IMAGENET = "imagenet"
# Else Keras waits for minutes where nobody answers.
_NETWORK_TIMEOUT_SEC = 20.0
# Of the features of published weights, as in Keras's guide to transfer learning.
_DROPOUT = 0.2
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


class _Scaling(NamedTuple):
    """How pixels 0..255 become what an architecture takes: `pixel * scale + offset`, for all
    channels or one for each; with `reverse` they are blue, green, red.
    """

    scale: float | tuple[float, ...]
    offset: float | tuple[float, ...]
    reverse: bool = False


# The modes of `keras.applications.imagenet_utils.preprocess_input`.
_CAFFE = _Scaling(1.0, (-103.939, -116.779, -123.68), reverse=True)
_TF = _Scaling(1 / 127.5, -1.0)
_TORCH = _Scaling(
    tuple(1 / (255 * std) for std in _IMAGENET_STD),
    tuple(-mean / std for mean, std in zip(_IMAGENET_MEAN, _IMAGENET_STD, strict=True)),
)
# What the larger models of EfficientNetV2 do inside.
_HALVES = _Scaling(1 / 128, -1.0)

# By the module that an architecture is defined in.
_SCALINGS = {
    "convnext": _TORCH,
    "densenet": _TORCH,
    "efficientnet": _TORCH,
    "efficientnet_v2": _TORCH,
    "inception_resnet_v2": _TF,
    "inception_v3": _TF,
    "mobilenet": _TF,
    "mobilenet_v2": _TF,
    "mobilenet_v3": _TF,
    "nasnet": _TF,
    "resnet": _CAFFE,
    "resnet_v2": _TF,
    "vgg16": _CAFFE,
    "vgg19": _CAFFE,
    "xception": _TF,
}
# These scale pixels themselves, some by numbers that are among the published weights.
_SCALES_INSIDE = ("convnext", "efficientnet", "efficientnet_v2", "mobilenet_v3")
_SCALINGS_BY_NAME = dict.fromkeys(
    ("EfficientNetV2S", "EfficientNetV2M", "EfficientNetV2L"), _HALVES
)


def application_names() -> list[str]:
    """The architectures of `keras.applications`, as their functions are called."""
    names = (name for name in dir(keras.applications) if name[0].isupper())
    return sorted(name for name in names if _module(name) in _SCALINGS)


def preprocess(
    name: str, pixels: keras.KerasTensor, weights: str | None = None
) -> keras.KerasTensor:
    """What `preprocess_input` of an architecture's module does, or the architecture itself inside.

    With published weights the latter is left to the architecture. Made of Keras's own layers alone,
    so that a saved model needs no code of ours; in float32 even under mixed precision. `pixels` are
    RGB, symbolic [batch, height, width, 3], 0..255.
    """
    if weights == IMAGENET and _module(name) in _SCALES_INSIDE:
        return keras.ops.cast(pixels, "float32")
    scaling = _SCALINGS_BY_NAME.get(name) or _SCALINGS[_module(name)]
    if scaling.reverse:
        pixels = keras.ops.flip(pixels, axis=-1)
    layer = keras.layers.Rescaling(
        scaling.scale, scaling.offset, name="preprocess", dtype="float32"
    )
    return layer(pixels)


def application_logits(
    name: str, x: keras.KerasTensor, num_classes: int, weights: str | None = None
) -> keras.KerasTensor:
    """The logits of an architecture; `x` is what `preprocess` returned.

    Published weights are those below the head, which is new: the mean of the features, dropout and
    a matrix. All others are random.

    Raises:
        UserError: It refuses pictures of this size, or its weights cannot be had.
    """
    build: Callable[..., keras.Model] = getattr(keras.applications, name)
    shape = tuple(x.shape[1:])
    try:
        if weights == IMAGENET:
            with _published(name):
                body = build(include_top=False, pooling="avg", input_shape=shape)
            for layer in _preprocessing(body):
                layer.dtype_policy = "float32"  # as all that scales pixels
            features = keras.layers.Dropout(_DROPOUT)(body(x))
            return keras.layers.Dense(num_classes, name="predictions")(features)
        application = build(
            weights=None, classes=num_classes, classifier_activation=None, input_shape=shape
        )
    except ValueError as e:
        reason = re.split(r"(?<=[.;]) ", " ".join(str(e).split()))[0].rstrip(".;")
        raise UserError(
            argument="model",
            received=f"{name}, which refuses pictures of {x.shape[1]}x{x.shape[2]} px ({reason})",
            expected="a fitting " + Arg("image_size"),
        ) from e
    return _without_preprocessing(application)(x)


@contextmanager
def _published(name: str) -> Iterator[None]:
    """Says of an architecture's published weights, as a `UserError`, why they cannot be had."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_NETWORK_TIMEOUT_SEC)
    try:
        with warnings.catch_warnings():
            # That those of MobileNet were trained with pictures of another size.
            warnings.simplefilter("ignore")
            yield
    except Exception as e:  # Keras raises Exception itself.
        if (file := weights_file(e)) is None:
            raise
        path, url, digest = file
        reason = " ".join(str(e).split()).rpartition(" -- ")[2]
        failed, remedy = "read", "delete it, and Keras fetches it again"
        if url is not None:
            checked = f" (its hash is {digest})" if digest else ""
            failed, remedy = "fetch", f"copy {url} there{checked} from where there is a network"
        raise UserError(
            argument="weights",
            received=f"{IMAGENET}, of which Keras could not {failed} the file of {name} ({reason})",
            expected=f"the file to be {path}",
            remedy=remedy,
        ) from e
    finally:
        socket.setdefaulttimeout(before)


def _preprocessing(application: keras.Model) -> list[keras.layers.Layer]:
    """The input of an architecture, and the layers with which some scale pixels themselves."""
    kinds = (keras.layers.InputLayer, keras.layers.Rescaling, keras.layers.Normalization)
    return list(itertools.takewhile(lambda x: isinstance(x, kinds), application.layers))


def _without_preprocessing(application: keras.Model) -> keras.Model:
    """The architecture from behind the layers with which some scale pixels themselves.

    EfficientNet's are not right with random weights: its mean and variance are weights, and a
    third layer is there for published weights only.
    """
    last = _preprocessing(application)[-1]
    if isinstance(last, keras.layers.InputLayer):
        return application
    return keras.Model(last.output, application.output, name=application.name)


def _module(name: str) -> str:
    return str(getattr(keras.applications, name).__module__).rpartition(".")[2]
