"""Weights from a file, as far as they fit."""

from __future__ import annotations

import contextlib
import warnings
import zipfile
from typing import Any

import h5py
import keras
import numpy as np

from imageshards import storage
from imageshards.errors import UserError

_KINDS = (".keras", ".weights.h5", ".h5")


def load_weights(model: keras.Model, path: str) -> str:
    """Loads what fits into `model`, or into the architecture inside it; returns a sentence on it.

    Layers are matched by their place (`.keras`, `.weights.h5`) or their name (the `.h5` files
    `keras.applications` publishes); those whose shape differs, such as a head for other
    classes, keep their values.

    Raises:
        UserError: There is no such file, it is none of these kinds, or nothing in it fits.
    """
    local_path = _local(path)
    variables = {id(v): v for v in model.weights if "float" in v.dtype}
    initial = {key: variable.numpy() for key, variable in variables.items()}
    best: dict[int, Any] = {}
    for target in [model, *(layer for layer in model.layers if isinstance(layer, keras.Model))]:
        _load(target, local_path)
        # Keras tells by warnings alone, and not always, what it skipped: what is the same
        # afterwards was. Constants such as zeros may be those of the file, so they do not tell.
        values = {key: variable.numpy() for key, variable in variables.items()}
        found = {k: value for k, value in values.items() if not np.array_equal(value, initial[k])}
        best = max(best, found, key=len)
        for key, variable in variables.items():
            variable.assign(initial[key])
    for key, value in best.items():
        variables[key].assign(value)
    random = [key for key, value in initial.items() if np.ptp(value) > 0]
    layers = {key: variables[key].path.rpartition("/")[0] for key in random}
    left = list(dict.fromkeys(layers[key] for key in random if key not in best))
    if not best:
        raise UserError(
            argument="weights",
            received=f"{path!r}, in which nothing fits the model {model.name}",
            expected="weights of the same architecture",
        )
    total = len(set(layers.values()))
    sentence = f"weights  {path}: {total - len(left)} of {total} layers"
    if left:
        more = ", …" if len(left) > 4 else ""
        sentence += f"; left random: {', '.join(left[:4])}{more}"
    return sentence


def _load(target: keras.Model, path: str) -> None:
    """Loads what fits."""
    options = {} if path.endswith((".keras", ".weights.h5")) else {"by_name": True}
    # Keras tolerates other shapes, but not every other structure.
    with warnings.catch_warnings(), contextlib.suppress(ValueError, KeyError):
        warnings.simplefilter("ignore")
        target.load_weights(path, skip_mismatch=True, **options)


def _local(path: str) -> str:
    """The file on this machine, looked at; one in a store is copied."""
    if not path.endswith(_KINDS):
        raise UserError(
            argument="weights",
            received=repr(path),
            expected="a file that ends in .keras, .weights.h5 or .h5",
        )
    try:
        storage.check_bucket(path, "weights", must_list=False)
        if not storage.exists(path):
            raise UserError(
                argument="weights", received=f"{path!r}, which is not there", expected="a file"
            )
        local_path = storage.local_copy(path)
        sound = zipfile.is_zipfile(local_path) or h5py.is_hdf5(local_path)
    except OSError as e:
        raise UserError(
            argument="weights",
            received=f"{path!r}, which cannot be read ({e.strerror or e})",
            expected="a file that may be read",
        ) from e
    if not sound:
        raise UserError(
            argument="weights",
            received=f"{path!r}, which is no Keras archive and no HDF5 file",
            expected="a Keras archive or an HDF5 file",
            remedy="copy the whole file again",
        )
    return local_path
