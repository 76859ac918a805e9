"""What a worker of the pool is asked to do, in a module that it can import."""

from __future__ import annotations

import pathlib
import time

WAIT_SEC = 60.0


def wait_for_file(path: str) -> str:
    """Keeps a job running until a file is there."""
    deadline = time.monotonic() + WAIT_SEC
    while not pathlib.Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.01)
    return path
