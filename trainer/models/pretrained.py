"""Loads the weights of a file that fit a model."""

from __future__ import annotations

import contextlib
import json
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import h5py
import keras
import numpy as np

from imageshards import storage
from imageshards.errors import UserError
from imageshards.typed import convert
from trainer.dataset.spec import CARD_FILE, ModelCard

_KINDS = (".keras", ".weights.h5", ".h5")


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
