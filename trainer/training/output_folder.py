"""Manages the output folder of a run: its lock, what may be replaced, and the files at the end."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from imageshards import storage
from imageshards.commands.output_folder import (
    foreign_files,
    foreign_files_error,
    output_errors,
)
from imageshards.errors import Arg, OutputError, UserError
from imageshards.manifest import TRANSFORM_NAME
from imageshards.storage.lease import output_lock
from trainer.dataset.open import CACHE_FOLDER
from trainer.dataset.spec import DatasetSpec
from trainer.serving.model_file import BEST_MODEL_FILE, MODEL_FILE, SAVING_PREFIX, TRANSFORM_FOLDER

if TYPE_CHECKING:
    import keras

CHECKPOINTS_FOLDER = "checkpoints"
CHECKPOINT_FILE = re.compile(r"step-(\d+)\.npz")
METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
OTHER_OUTPUT = "use another " + Arg("output") + ", or start over with " + Arg("overwrite", True)
DIGEST_FILE = "weights.sha256"

_LOCK_FOLDER = ".lock"
# A lease ends within this time unless its holder renews it.
LEASE_ENDS_SEC = 100.0
# The first file of a run, which marks all later files of the folder as the run's files.
_RUN_MARK = ".run"
# A run writes these files and folders, and --overwrite removes them and no further files.
_RUN_FILES = (
    CHECKPOINTS_FOLDER,
    MODEL_FILE,
    BEST_MODEL_FILE,
    DIGEST_FILE,
    METRICS_FILE,
    TENSORBOARD_FOLDER,
    TRANSFORM_FOLDER,
    "report",
    "broken.json",
    _RUN_MARK,
)


@contextmanager
def hold_output(output: str) -> Iterator[None]:
    """Locks the folder against further runs: by a lock of the kernel, or by a lease in a store."""
    folder = storage.join(output, _LOCK_FOLDER)
    deadline_sec = time.monotonic() + (0.0 if storage.is_local(output) else LEASE_ENDS_SEC)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(output_lock(storage.join(folder, "run")))
                break
            except UserError as e:
                # A chief whose machine was lost leaves a lease, for which its successor waits.
                if isinstance(e, OutputError) or time.monotonic() >= deadline_sec:
                    raise
                print(f"waiting: {e}", file=sys.stderr)
                time.sleep(LEASE_ENDS_SEC / 10)
        if storage.is_local(output):
            stack.callback(storage.delete_folder, folder)
        yield


@contextmanager
def begin_run(output: str, overwrite: bool) -> Iterator[None]:
    """Locks the folder for a run that begins or continues; refuses folders with foreign files."""
    check_only_ours(output)
    with hold_output(output):
        if overwrite:
            remove_run(output)
        _remove_unfinished(output)
        with output_errors(output, _RUN_MARK):
            storage.write(storage.join(output, _RUN_MARK), "")
        yield


def check_only_ours(output: str) -> None:
    """Refuses a missing bucket, and a folder with files of no run, even with --overwrite."""
    storage.check_bucket(output, "output")
    try:
        names = [entry.name for entry in storage.list_folder(output)]
    except OSError:
        return  # the attempt to lock the folder gives a better error
    # Runs may share a cache that was filled before the first run began.
    foreign = [name for name in foreign_files(names) if name != CACHE_FOLDER]
    if foreign and not _holds_run(output):
        raise foreign_files_error("output", output, foreign, "former run")


def _holds_run(output: str) -> bool:
    """Returns whether a run has begun in the folder, by a command or by `imageshards.fit`."""
    if storage.exists(storage.join(output, _RUN_MARK)):
        return True
    # The mark is hidden, so a copy of a run may lack it.
    saved = storage.list_folder(storage.join(output, CHECKPOINTS_FOLDER))
    return any(CHECKPOINT_FILE.fullmatch(file.name) for file in saved)


def check_no_model(output: str) -> None:
    """Refuses to replace a run that cannot be resumed, because its checkpoints are missing."""
    if storage.exists(storage.join(output, MODEL_FILE)):
        raise UserError(
            argument="output",
            received=f"{output!r}, which holds a {MODEL_FILE} but no checkpoint to resume from",
            remedy=OTHER_OUTPUT,
        )


def remove_run(output: str) -> None:
    """Removes everything that an earlier run wrote to `output`, if there was a run."""
    if not _holds_run(output):
        return
    for name in _RUN_FILES:
        path = storage.join(output, name)
        try:
            if storage.is_folder(path):
                storage.delete_folder(path)
            else:
                storage.delete([path])
        except OSError as e:
            raise UserError(
                argument="overwrite",
                received=f"True, but {path} cannot be removed ({e.strerror or e})",
                remedy=f"remove {path}, or use another " + Arg("output"),
            ) from e


def _remove_unfinished(output: str) -> None:
    """Removes files that killed runs left unfinished; stores have no such files."""
    # This run holds the lock, so no process is writing these files.
    storage.delete_unfinished(output, *_RUN_FILES)
    if storage.is_local(output):
        with contextlib.suppress(OSError):
            for one in storage.list_folder(output):
                if one.name.startswith(SAVING_PREFIX):
                    storage.delete_folder(one.path)


def write_digest(output: str, model: keras.Model) -> None:
    """Writes weights.sha256 of a Keras model, whole or not at all.

    The digest is the SHA-256 of `b"".join(w.tobytes() for w in model.get_weights())`: every weight
    as little-endian numbers in C order.
    """
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(weight.astype(weight.dtype.newbyteorder("<"), copy=False).tobytes())
    with output_errors(output, DIGEST_FILE):
        storage.write(storage.join(output, DIGEST_FILE), f"{digest.hexdigest()}  {MODEL_FILE}\n")


def copy_transform(dataset: DatasetSpec, output: str) -> None:
    """Copies the dataset's tensorflow-transform graph, if any, beside the model, for serving."""
    source = storage.join(dataset.data, TRANSFORM_NAME, TRANSFORM_FOLDER)
    target = storage.join(output, TRANSFORM_FOLDER)
    with output_errors(output, TRANSFORM_FOLDER):
        if storage.is_folder(source):
            storage.copy_folder(source, target)
