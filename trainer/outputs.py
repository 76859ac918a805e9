"""The output folder: `model.keras`, whole or not at all, and `metrics.jsonl`."""

from __future__ import annotations

import os
from typing import Any

from trainer.errors import UserError

MODEL_FILE = "model.keras"
METRICS_FILE = "metrics.jsonl"


def prepare_output(output: str) -> None:
    """Creates the folder and proves, before any training, that files can be written there.

    An earlier run's files stay until this one replaces them.

    Raises:
        UserError: The folder cannot be made or written to.
    """
    probe = _temporary(output)
    try:
        os.makedirs(output, exist_ok=True)
        with open(probe, "wb") as f:
            f.write(b"\0")
        os.remove(probe)
    except OSError as e:
        raise UserError(
            f"--output received {output!r}, which cannot be written ({e.strerror}); "
            "expected a folder, or a name for a new one, where you may write."
        ) from e


def save_model(model: Any, output: str) -> str:
    """Saves a Keras model as `output`/model.keras by way of a temporary name.

    Returns:
        The path written.

    Raises:
        UserError: It cannot be written, for example to a full disk.
    """
    path = os.path.join(output, MODEL_FILE)
    temporary = _temporary(output)
    try:
        model.save(temporary)
        os.replace(temporary, path)
    except OSError as e:
        raise UserError(
            f"--output received {output!r}, where {MODEL_FILE} cannot be written ({e.strerror}); "
            "make room, then train again."
        ) from e
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
    return path


def _temporary(output: str) -> str:
    return os.path.join(output, f".model-{os.getpid()}.keras")
