"""Sets the environment variables that TensorFlow reads when it is imported.

A Beam worker imports this module before any step (`--beam_plugins`), because a step of
tensorflow-transform imports TensorFlow as soon as the step is unpickled.
"""

from __future__ import annotations

import os

SETTINGS = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # A build needs no GPU, and must not take memory of a GPU on which a model trains.
    "CUDA_VISIBLE_DEVICES": "-1",
    # tensorflow-transform sets this too, but after TensorFlow has imported Keras 3 and matplotlib.
    "TF_USE_LEGACY_KERAS": "1",
}

for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
