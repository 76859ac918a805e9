"""`gs://` shards, which TensorFlow reads in place, and those that have to be copied first."""

from __future__ import annotations

import os
from typing import cast

from imageshards import storage

# Names an emulator of gs:// to Google's libraries; TensorFlow's own client does not know it.
_EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
# Read by TensorFlow's client: what it asks for at a time, and whether it asks for credentials
# of the machine, ten times and with growing waits.
_READ_AHEAD_VARIABLE, _READ_AHEAD_MIB = "GCS_READ_CACHE_BLOCK_SIZE_MB", "8"
_NO_METADATA_VARIABLE = "NO_GCE_CHECK"


def needs_copy(path: str) -> bool:
    """Whether TensorFlow cannot read a file where it is: on `s3://`, or in an emulator."""
    if path.startswith("gs://"):
        return bool(os.environ.get(_EMULATOR_VARIABLE))
    return path.startswith("s3://")


def check_readable(path: str, flag: str) -> None:
    """Finds out at once whether the bucket of a path can be used, before TensorFlow waits for it.

    TensorFlow's own client of `gs://` is set up on the way.

    Raises:
        UserError: It cannot; the sentence names `flag`.
    """
    storage.check_bucket(path, flag, must_list=False)
    if path.startswith("gs://") and not needs_copy(path):
        from imageshards.storage.gcs import GcsBackend

        # TensorFlow reads 64 MiB of every open file ahead, and the reader has up to 16 open.
        os.environ.setdefault(_READ_AHEAD_VARIABLE, _READ_AHEAD_MIB)
        if cast(GcsBackend, storage.backend(path)).is_anonymous:
            os.environ[_NO_METADATA_VARIABLE] = "true"
