"""Imports of big libraries: quick and quiet.

A third of the time that Beam and TensorFlow take to import is spent by the garbage collector,
which finds nothing; and TensorFlow prints lines no log level silences.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Rests the garbage collector; what was imported is never looked at again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def import_tensorflow_transform() -> None:
    """Imports TensorFlow and tensorflow-transform without their start-up lines.

    The lines are written by native code before any log level is read, so the file
    descriptor is turned aside; if the import fails they are shown after all.
    """
    if "tensorflow_transform" in sys.modules:
        return
    from beam_pipeline.columns import tensorflow_settings  # noqa: F401  # in the environment

    sys.stderr.flush()
    real = os.dup(2)
    with tempfile.TemporaryFile() as aside, quick_imports():
        os.dup2(aside.fileno(), 2)
        try:
            import tensorflow_transform  # noqa: F401
        except BaseException:
            aside.seek(0)
            os.write(real, aside.read())
            raise
        finally:
            os.dup2(real, 2)
            os.close(real)
