"""Imports TensorFlow and Keras with the settings that the commands need."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from imageshards.commands.command_line import quiet_stderr
from imageshards.errors import UserError

# Environment variables override keras.json. NNX is for JAX and needs another package.
_SETTINGS = {"KERAS_BACKEND": "tensorflow", "KERAS_NNX_ENABLED": "false"}

# Keras's name for pictures of [height, width, channels], the only order that the trainer uses.
CHANNELS_LAST = "channels_last"
CHANNELS_REMEDY = (
    "call keras.config.set_image_data_format('channels_last') before the model is made, or set it "
    "in keras.json"
)
# Keras's defaults. A model depends on them, so they must not depend on a machine's keras.json.
_CONFIG = {"floatx": "float32", "epsilon": 1e-7, "image_data_format": CHANNELS_LAST}


@contextmanager
def quiet_import() -> Iterator[None]:
    """Imports Keras with the trainer's settings, and hides TensorFlow's start-up log.

    The log is shown if the user has set `TF_CPP_MIN_LOG_LEVEL` to another level than 3.
    """
    # TensorFlow would otherwise take all memory of every GPU, also of GPUs that a server uses.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    # Users of tensorflow-transform set this variable in their shell; the trainer needs Keras 3.
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    os.environ.update(_SETTINGS)
    # TensorFlow needs a temporary folder. Without one the error is raised here, as an error inside
    # `quiet_stderr` also prints the hidden log.
    tempfile.gettempdir()
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with nullcontext() if level != "3" or "tensorflow" in sys.modules else quiet_stderr():
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
        yield


@contextmanager
def callers_settings() -> Iterator[None]:
    """Restores Keras's settings at the end, for functions that people call in their program.

    Inside, `quiet_import` may change the settings.

    Raises:
        UserError: The program uses Keras with another backend than TensorFlow.
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
