"""Random numbers where Keras keeps published weights, in the same kind of file."""

import pathlib

import h5py
import keras
import numpy as np
from keras.src.legacy.saving.legacy_h5_format import save_weights_to_hdf5_group


def publish(name: str, path: pathlib.Path, size_px: int = 32) -> None:
    """Writes weights of an architecture of `keras.applications`, those below its head."""
    build = getattr(keras.applications, name)
    donor = build(weights=None, include_top=False, input_shape=(size_px, size_px, 3))
    for layer in donor.layers:
        if isinstance(layer, keras.layers.Normalization) and layer.weights:
            layer.set_weights([np.array([0.1, 0.6, 0.3]), np.array([0.3, 0.1, 0.2]), np.array(0)])
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        save_weights_to_hdf5_group(file, donor)
