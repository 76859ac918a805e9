"""Weights from a file, as far as they fit."""

from __future__ import annotations

import warnings
import zipfile
from typing import Any

import keras
import numpy as np

from imageshards import storage
from imageshards.errors import UserError

_KINDS = (".keras", ".weights.h5", ".h5")
_HDF5 = b"\x89HDF\r\n\x1a\n"


def load_weights(model: keras.Model, path: str) -> str:
    """Loads what fits into `model`, or into the architecture inside it.

    Layers are matched by their place (`.keras`, `.weights.h5`) or their name (the `.h5` files
    `keras.applications` publishes); those whose shape differs, such as a head for other
    classes, keep their values.

    Args:
        model: As `trainer.models.model.build_model` makes it.
        path: A file, local or in a store.

    Returns:
        A sentence: how many variables came from the file, and which layers keep random ones.

    Raises:
        UserError: There is no such file, it is none of these kinds, or nothing in it fits.
    """
    local_path = _local(path)
    inside = [layer for layer in model.layers if isinstance(layer, keras.Model)]
    variables = _weights(model)
    initial = {id(variable): variable.numpy() for variable in variables}
    best: dict[int, Any] = {}
    for target in [model, *inside]:
        found = _try(target, local_path, initial)
        best = max(best, found, key=len)
    for variable in variables:
        variable.assign(best.get(id(variable), initial[id(variable)]))
    if not best:
        raise UserError(
            f"--weights received {path!r}, in which nothing fits --model {model.name}; expected "
            "weights of the same architecture."
        )
    sentence = f"weights  {path}: {len(best)} of {len(variables)} variables"
    missing = [v.path.rpartition("/")[0] for v in variables if id(v) not in best]
    if layers := list(dict.fromkeys(missing)):
        more = ", …" if len(layers) > 4 else ""
        sentence += f"; left random: {', '.join(layers[:4])}{more}"
    return sentence


def _try(target: keras.Model, path: str, initial: dict[int, Any]) -> dict[int, Any]:
    """The values of those variables that `path` changes, by the variable's id."""
    variables = _weights(target)
    for variable in variables:
        # Keras does not say what it loaded: what is still NaN afterwards, it did not.
        variable.assign(np.full(variable.shape, np.nan, variable.dtype))
    options = {} if path.endswith((".keras", ".weights.h5")) else {"by_name": True}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.load_weights(path, skip_mismatch=True, **options)
    except (ValueError, KeyError):
        # Keras tolerates other shapes, but not every other structure.
        pass
    values = {id(variable): variable.numpy() for variable in variables}
    for variable in variables:
        variable.assign(initial[id(variable)])
    return {key: value for key, value in values.items() if not np.isnan(value).any()}


def _weights(model: keras.Model) -> list[Any]:
    """The weights that are numbers, each once."""
    return list({id(v): v for v in model.weights if "float" in v.dtype}.values())


def _is_hdf5(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_HDF5)) == _HDF5


def _local(path: str) -> str:
    """The file on this machine, looked at; one in a store is copied."""
    if not path.endswith(_KINDS):
        raise UserError(
            f"--weights received {path!r}; expected a file that ends in .keras, .weights.h5 or .h5."
        )
    try:
        storage.check_bucket(path, "--weights", must_list=False)
        if not storage.exists(path):
            raise UserError(f"--weights received {path!r}, which is not there; expected a file.")
        local_path = storage.local_copy(path)
        sound = (zipfile.is_zipfile if path.endswith(".keras") else _is_hdf5)(local_path)
    except OSError as e:
        raise UserError(
            f"--weights received {path!r}, which cannot be read ({e.strerror or e}); expected a "
            "file that may be read."
        ) from e
    if not sound:
        kind = "Keras archive" if path.endswith(".keras") else "HDF5 file"
        raise UserError(
            f"--weights received {path!r}, which is no {kind}; expected one: was it copied whole?"
        )
    return local_path
