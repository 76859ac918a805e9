"""Importing TensorFlow without the lines it writes while it starts."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_import() -> Iterator[None]:
    """Keeps TensorFlow's start-up log off the terminal, unless it was asked for.

    Its first lines are written before any log level is read, so the file descriptor itself is
    redirected; if the import fails, they are shown.
    """
    # Else a command takes all memory of every GPU, even where a server or a training uses it.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    # Set by whoever ran tensorflow-transform in this shell; the trainer is Keras 3.
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if level != "3" or "tensorflow" in sys.modules:
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        except Exception:
            log.seek(0)
            os.write(terminal, log.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
