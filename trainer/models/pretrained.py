"""Builds the architectures of `keras.applications`, and loads weights, published or of a file.

The architectures get the pixels that their published weights expect.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import h5py
import keras
import numpy as np

from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.typed import convert
from trainer.dataset.spec import CARD_FILE, ModelCard

# The value of --weights for the weights that Keras publishes.
IMAGENET = "imagenet"
_KINDS = (".keras", ".weights.h5", ".h5")
# Without a timeout, Keras waits for minutes for a server that does not answer.
_NETWORK_TIMEOUT_SEC = 20.0
# Dropout of the features below a new head, as in Keras's guide to transfer learning.
_DROPOUT = 0.2
# The mean and deviation of each channel of ImageNet, as PyTorch's models use them.
_IMAGENET = ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))


class _Scaling(NamedTuple):
    """The pixels that an architecture takes, from pixels 0..255: `pixel * scale + offset`.

    `scale` and `offset` are for all channels, or for each; `reverse` turns RGB into BGR.
    """

    scale: float | tuple[float, ...]
    offset: float | tuple[float, ...]
    reverse: bool = False


# The modes of `keras.applications.imagenet_utils.preprocess_input`.
_CAFFE = _Scaling(1.0, (-103.939, -116.779, -123.68), reverse=True)
_TF = _Scaling(1 / 127.5, -1.0)
_TORCH = _Scaling(
    tuple(1 / (255 * std) for _, std in _IMAGENET), tuple(-mean / std for mean, std in _IMAGENET)
)
# The scaling inside the larger models of EfficientNetV2.
_HALVES = _Scaling(1 / 128, -1.0)

_TF_MODULES = (
    "inception_resnet_v2", "inception_v3", "mobilenet", "mobilenet_v2", "mobilenet_v3", "nasnet",
    "resnet_v2", "xception",
)  # fmt: skip
# The scaling of each module that defines architectures.
_SCALINGS = {
    **dict.fromkeys(("convnext", "densenet", "efficientnet", "efficientnet_v2"), _TORCH),
    **dict.fromkeys(("resnet", "vgg16", "vgg19"), _CAFFE),
    **dict.fromkeys(_TF_MODULES, _TF),
}
# These modules scale pixels themselves, some by numbers that are among the published weights.
_SCALES_INSIDE = ("convnext", "efficientnet", "efficientnet_v2", "mobilenet_v3")
_SCALINGS_BY_NAME = {f"EfficientNetV2{size}": _HALVES for size in "SML"}


def application_names() -> list[str]:
    """Returns the architectures of `keras.applications`, by the names of their functions."""
    names = (name for name in dir(keras.applications) if name[0].isupper())
    return sorted(name for name in names if _module(name) in _SCALINGS)


def preprocess(
    name: str, pixels: keras.KerasTensor, weights: str | None = None
) -> keras.KerasTensor:
    """Scales pixels, RGB [batch, height, width, 3], 0..255, as an architecture expects them.

    Does the same as `preprocess_input` of the architecture's module, or as the architecture itself.
    With `weights="imagenet"`, an architecture that scales pixels itself gets them as they are.
    """
    if weights == IMAGENET and _module(name) in _SCALES_INSIDE:
        return keras.ops.cast(pixels, "float32")
    scaling = _SCALINGS_BY_NAME.get(name) or _SCALINGS[_module(name)]
    if scaling.reverse:
        pixels = keras.ops.flip(pixels, axis=-1)
    # A layer of Keras, so that a saved model needs no code of ours. A scaled pixel has more digits
    # than float16 or bfloat16, so it is float32 under mixed precision, too.
    layer = keras.layers.Rescaling(
        scaling.scale, scaling.offset, name="preprocess", dtype="float32"
    )
    return layer(pixels)


def application_logits(
    name: str, x: keras.KerasTensor, num_classes: int, weights: str | None = None
) -> keras.KerasTensor:
    """Returns the logits of an architecture for `x`, the result of `preprocess`.

    With published weights, the head alone is random: the mean of the features, dropout and a
    matrix. Without them, all weights are random.

    Raises:
        UserError: The architecture refuses pictures of this size, or its weights cannot be fetched.
    """
    build: Callable[..., keras.Model] = getattr(keras.applications, name)
    shape = tuple(x.shape[1:])
    try:
        if weights == IMAGENET:
            with _published(name):
                body = build(include_top=False, pooling="avg", input_shape=shape)
            # Everything that scales pixels is float32.
            for layer in _preprocessing(body):
                layer.dtype_policy = "float32"
            features = keras.layers.Dropout(_DROPOUT)(body(x))
            return keras.layers.Dense(num_classes, name="predictions")(features)
        # Without an activation, the architecture returns logits.
        application = build(
            weights=None, classes=num_classes, classifier_activation=None, input_shape=shape
        )
    except ValueError as e:
        # Keras's message is long; its first sentence says which size would fit.
        reason = re.split(r"(?<=[.;]) ", " ".join(str(e).split()))[0].rstrip(".;")
        raise UserError(
            argument="model",
            received=f"{name}, which refuses pictures of {x.shape[1]}x{x.shape[2]} px ({reason})",
            expected="a fitting " + Arg("image_size"),
        ) from e
    # With random weights, the layers with which EfficientNet scales pixels itself are wrong: mean
    # and variance are among the weights, and a third layer corrects the published weights only.
    last = _preprocessing(application)[-1]
    if not isinstance(last, keras.layers.InputLayer):
        application = keras.Model(last.output, application.output, name=application.name)
    return application(x)


@contextlib.contextmanager
def _published(name: str) -> Iterator[None]:
    """Turns a failure to fetch or read published weights into a `UserError`."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_NETWORK_TIMEOUT_SEC)
    try:
        with warnings.catch_warnings():
            # Keras warns if MobileNet's weights were trained with pictures of another size.
            warnings.simplefilter("ignore")
            yield
    except Exception as e:
        # Keras raises a bare Exception if a download fails, and a ValueError for a wrong size.
        if isinstance(e, ValueError) and "corrupted" not in str(e):
            raise
        reason = " ".join(str(e).split())
        raise UserError(
            argument="weights",
            received=f"{IMAGENET}, of which Keras could not fetch or read the file of {name} "
            f"({reason})",
            expected="a network, or the whole file in ~/.keras/models (models of KERAS_HOME): "
            "delete a damaged file there",
        ) from e
    finally:
        socket.setdefaulttimeout(before)


def _preprocessing(application: keras.Model) -> list[keras.layers.Layer]:
    """Returns the input of an architecture and the layers with which it may scale pixels itself."""
    kinds = (keras.layers.InputLayer, keras.layers.Rescaling, keras.layers.Normalization)
    return list(itertools.takewhile(lambda x: isinstance(x, kinds), application.layers))


def _module(name: str) -> str:
    return str(getattr(keras.applications, name).__module__).rpartition(".")[2]


def load_weights(model: keras.Model, path: str, outputs: Sequence[str] = ()) -> str:
    """Loads the weights that fit into `model`, or into the architecture inside it.

    Layers are matched by their place (`.keras`, `.weights.h5`) or their name (`.h5` files that
    `keras.applications` publishes). Layers with another shape, for example a head for other
    classes, keep their values. So does the head if a model card in the file names as many outputs,
    but not `outputs`.

    Returns:
        A sentence that says how many layers were loaded.

    Raises:
        UserError: The file does not exist, has another format, or nothing in it fits.
    """
    local_path = _local(path)
    variables = {id(v): v for v in model.weights if "float" in v.dtype}
    initial = {key: variable.numpy() for key, variable in variables.items()}
    best: dict[int, Any] = {}
    for target in [model, *(layer for layer in model.layers if isinstance(layer, keras.Model))]:
        _load(target, local_path)
        # Keras does not always warn about a skipped variable, so an unchanged variable counts as
        # skipped. Constants, for example zeros, may be equal in the file and do not count below.
        values = {key: variable.numpy() for key, variable in variables.items()}
        found = {k: value for k, value in values.items() if not np.array_equal(value, initial[k])}
        # The file may be of the whole model, or of the architecture: the better match wins.
        best = max(best, found, key=len)
        for key, variable in variables.items():
            variable.assign(initial[key])
    trained_for = _outputs_in(local_path)
    # A head for as many classes fits by its shape, but its outputs mean the classes of the file.
    if outputs and trained_for and tuple(outputs) != trained_for:
        head = next(layer for layer in reversed(model.layers) if layer.weights)
        best = {k: v for k, v in best.items() if k not in {id(weight) for weight in head.weights}}
    for key, value in best.items():
        variables[key].assign(value)
    random = [key for key, value in initial.items() if np.ptp(value) > 0]
    layers = {key: variables[key].path.rpartition("/")[0] for key in random}
    left = list(dict.fromkeys(layers[key] for key in random if key not in best))
    # Only constants may fit another architecture, for example its biases of 0.
    if len(left) == (total := len(set(layers.values()))):
        why = f", in which nothing fits the model {model.name}"
        raise _refused(path, why, "weights of the same architecture")
    shown = ", ".join([*left[:4], *["…"] * (len(left) > 4)])
    random_layers = f"; left random: {shown}" if left else ""
    return f"weights  {path}: {total - len(left)} of {total} layers{random_layers}"


def _outputs_in(path: str) -> tuple[str, ...]:
    """Returns the output names that the model card of a file records; none without our head."""
    try:
        with zipfile.ZipFile(path) as members:
            card = convert(json.loads(members.read(CARD_FILE)), ModelCard)
            return () if card.compiled else card.names
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return ()


def _load(target: keras.Model, path: str) -> None:
    # Only the old format matches layers by name; Keras refuses the option for newer formats.
    options = {} if path.endswith((".keras", ".weights.h5")) else {"by_name": True}
    # `skip_mismatch` covers other shapes, but not every other structure.
    with warnings.catch_warnings(), contextlib.suppress(ValueError, KeyError):
        warnings.simplefilter("ignore")
        target.load_weights(path, skip_mismatch=True, **options)


def _local(path: str) -> str:
    """Checks the file and returns its local path, after a copy if it is in a store."""
    if not path.endswith(_KINDS):
        raise _refused(path, "", "a file that ends in .keras, .weights.h5 or .h5")
    try:
        storage.check_bucket(path, "weights", must_list=False)
        if not storage.exists(path):
            raise _refused(path, ", which is not there", "a file")
        local_path = storage.local_copy(path)
        sound = zipfile.is_zipfile(local_path) or h5py.is_hdf5(local_path)
    except OSError as e:
        why = f", which cannot be read ({e.strerror or e})"
        raise _refused(path, why, "a file that may be read") from e
    # A file that was cut off keeps its name, so the content is checked, too.
    if not sound:
        expected = "a Keras archive or an HDF5 file: copy the whole file again"
        raise _refused(path, ", which is no Keras archive and no HDF5 file", expected)
    return local_path


def _refused(path: str, why: str, expected: str) -> UserError:
    return UserError(argument="weights", received=f"{path!r}{why}", expected=expected)
