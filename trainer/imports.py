"""Importing TensorFlow without the lines it writes while it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from imageshards.commands.command_line import quiet_stderr


@contextmanager
def quiet_import() -> Iterator[None]:
    """Keeps TensorFlow's start-up log off the terminal, unless it was asked for."""
    # Else a command takes all memory of every GPU, even where a server or a training uses it.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    # Set by whoever ran tensorflow-transform in this shell; the trainer is Keras 3.
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if level != "3" or "tensorflow" in sys.modules:
        yield
    else:
        with quiet_stderr():
            yield
