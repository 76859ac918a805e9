"""Imports of big libraries, made quick.

A third of the time that Beam and TensorFlow take to import is spent by the garbage collector,
which finds nothing.
"""

from __future__ import annotations

import contextlib
import gc
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
