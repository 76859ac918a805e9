"""What TensorFlow reads once, when it is imported; importing this module sets it.

A Beam worker imports it before any step (`--beam_plugins`): a step of tensorflow-transform
imports TensorFlow as soon as it is unpickled, without these settings with Keras 3 and matplotlib
besides.
"""

from __future__ import annotations

import os

SETTINGS = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # A build needs no GPU, and must not take memory of one that is training.
    "CUDA_VISIBLE_DEVICES": "-1",
    # TFT sets it anyway, too late to keep TensorFlow from importing Keras 3 as well.
    "TF_USE_LEGACY_KERAS": "1",
}

for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
