"""Importing TensorFlow and Keras as the commands need them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from imageshards.commands.command_line import quiet_stderr
from imageshards.errors import UserError

# They have the last word over keras.json. NNX is for JAX, and needs a package of its own.
_SETTINGS = {"KERAS_BACKEND": "tensorflow", "KERAS_NNX_ENABLED": "false"}

# Keras's name for the order of the axes that every picture here has.
CHANNELS_LAST = "channels_last"
CHANNELS_REMEDY = (
    "call keras.config.set_image_data_format('channels_last') before the model is made, or set it "
    "in keras.json"
)
# What Keras's configuration is set to.
_CONFIG = {"floatx": "float32", "epsilon": 1e-7, "image_data_format": CHANNELS_LAST}


@contextmanager
def quiet_import() -> Iterator[None]:
    """Imports Keras, and keeps TensorFlow's start-up log off the terminal, unless it was asked for.

    Keras's settings are the same on every machine: what the shell and keras.json say of them would
    change a model without a word.
    """
    # Else a command takes all memory of every GPU, even where a server or a training uses it.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    # Set by whoever ran tensorflow-transform in this shell; the trainer is Keras 3.
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    os.environ.update(_SETTINGS)
    tempfile.gettempdir()  # TensorFlow needs a temporary folder; without one its log would be shown
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with nullcontext() if level != "3" or "tensorflow" in sys.modules else quiet_stderr():
        _import_keras()
        yield


@contextmanager
def callers_settings() -> Iterator[None]:
    """Puts Keras's settings back at the end, for functions that people call in their own program.

    Inside they may be those of `quiet_import`.

    Raises:
        UserError: The program uses Keras with another backend.
    """
    keras = sys.modules.get("keras")
    if keras is None:
        yield
        return
    if (backend := keras.config.backend()) != "tensorflow":
        raise UserError(
            argument="KERAS_BACKEND",
            received=repr(backend),
            expected="tensorflow, the backend of saved models",
            remedy="set KERAS_BACKEND before Keras is imported",
        )
    before = {name: getattr(keras.config, name)() for name in _CONFIG}
    try:
        yield
    finally:
        for name, value in before.items():
            getattr(keras.config, f"set_{name}")(value)


def _import_keras() -> None:
    try:
        import keras
    except ValueError as e:
        raise UserError(
            f"Keras's settings cannot be used ({e})",
            remedy="correct or remove keras.json, which is in ~/.keras or in the folder that "
            "KERAS_HOME names",
        ) from e
    for name, value in _CONFIG.items():
        getattr(keras.config, f"set_{name}")(value)
