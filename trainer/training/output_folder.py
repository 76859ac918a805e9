"""The output folder of a run: what may be replaced there, and what is added at the end."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Any

from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import TRANSFORM_NAME
from trainer.dataset.spec import DataSet
from trainer.serving.model_file import MODEL_FILE, TRANSFORM_FOLDER

CHECKPOINTS_FOLDER = "checkpoints"
METRICS_FILE = "metrics.jsonl"
BEST_MODEL_FILE = "best.keras"
DIGEST_FILE = "weights.sha256"

# What a run writes, and --overwrite removes; nothing else in the folder is touched.
_RUN_FILES = (
    CHECKPOINTS_FOLDER,
    MODEL_FILE,
    BEST_MODEL_FILE,
    DIGEST_FILE,
    METRICS_FILE,
    TRANSFORM_FOLDER,
    "report",
    "tensorboard",
    "repaired",
    "broken.json",
)


def prepare_output(output: str) -> None:
    """Creates the folder and checks, before any training, that files can be written there.

    Raises:
        UserError: The folder cannot be made or written to.
    """
    probe = os.path.join(output, f".probe-{os.getpid()}")
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


def check_no_model(output: str) -> None:
    """Refuses to replace a trained model whose checkpoints are gone.

    Raises:
        UserError: There is one.
    """
    if os.path.exists(os.path.join(output, MODEL_FILE)):
        raise UserError(
            f"--output received {output!r}, which holds a {MODEL_FILE} but no checkpoint to "
            "resume from; use another --output, or --overwrite to replace it."
        )


def remove_run(output: str) -> None:
    """Removes everything an earlier run wrote to `output`, and nothing else.

    Raises:
        UserError: Something cannot be removed.
    """
    for name in _RUN_FILES:
        path = os.path.join(output, name)
        try:
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.lexists(path):
                os.remove(path)
        except OSError as e:
            raise UserError(
                f"--overwrite cannot remove {path} ({e.strerror}); remove it, or use another "
                "--output."
            ) from e


def write_digest(output: str, model: Any) -> None:
    """Writes weights.sha256 of a Keras model, whole or not at all.

    It is the SHA-256 of `b"".join(w.tobytes() for w in model.get_weights())`: every weight as
    little-endian numbers in C order, one after the other.

    Raises:
        UserError: It cannot be written, for example to a full disk.
    """
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(weight.astype(weight.dtype.newbyteorder("<"), copy=False).tobytes())
    try:
        storage.write(os.path.join(output, DIGEST_FILE), f"{digest.hexdigest()}  {MODEL_FILE}\n")
    except OSError as e:
        raise UserError(
            f"--output received {output!r}, where {DIGEST_FILE} cannot be written ({e.strerror}); "
            "make room, then run the same command again."
        ) from e


def copy_transform(dataset: DataSet, output: str) -> None:
    """Copies the data set's tensorflow-transform graph beside the model, for serving.

    Does nothing for a data set without one.

    Raises:
        UserError: It cannot be copied.
    """
    source = os.path.join(dataset.data, TRANSFORM_NAME, TRANSFORM_FOLDER)
    target = os.path.join(output, TRANSFORM_FOLDER)
    if not dataset.has_manifest or os.path.isdir(target):
        return
    partial = f"{target}.{os.getpid()}"
    try:
        if not storage.is_folder(source):
            return
        storage.copy_folder(source, partial)
        os.replace(partial, target)
    except OSError as e:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(
            f"--data received {dataset.data!r}, whose {TRANSFORM_FOLDER} cannot be copied to "
            f"{target} ({e.strerror or e}); run the same command again."
        ) from e
