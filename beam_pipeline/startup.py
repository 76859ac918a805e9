"""Big libraries imported without the garbage collector.

Without the garbage collector Beam is imported in 0.4 to 0.7 CPU s less (of 2.5), TensorFlow with
tensorflow-transform in 0.7 to 1.0 (of 4.2): minima of 6 to 8 rounds, Python 3.11 on 2 shared cores.
Each full collection afterwards would look through 215,000 objects in 0.3 s, were they not frozen.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Stops the garbage collector for a while; what was imported by then is never collected."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
