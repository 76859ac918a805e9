"""Where tensorflow-transform keeps its files while it analyses columns."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator

from beam_pipeline.inputs.manifest import ManifestSchema
from beam_pipeline.options import BuildOptions
from imageshards import storage
from imageshards.errors import UserError

TFT_TEMP = "tft_temp"


@contextlib.contextmanager
def transform_folder(
    options: BuildOptions, schema: ManifestSchema | None, is_local_run: bool, staging: str
) -> Iterator[str]:
    """A folder that TensorFlow on every worker can read and write; gone afterwards.

    TensorFlow knows folders of its machine and gs://. With labels alone nothing is put there.

    Args:
        options: What is asked.
        schema: Of a manifest input.
        is_local_run: Whether this machine does the work.
        staging: Folder of the unfinished data set.

    Raises:
        UserError: There is no such folder unless --transform_temp_dir gives one.
    """
    given = options.transform_temp_dir
    if given is None and storage.is_local(staging):
        yield storage.join(staging, TFT_TEMP)
    elif given is None and is_local_run:
        with tempfile.TemporaryDirectory(prefix="imageshards-") as folder:
            yield folder
    elif given is None and (_tensorflow_reads(staging) or not _is_needed(options, schema)):
        yield storage.join(staging, TFT_TEMP)
    elif given is None:
        raise UserError(
            f"--output {options.output!r} is in a store that TensorFlow does not read, and "
            "tensorflow-transform needs a folder that every worker sees for the extra columns; "
            "give one on a shared mount or gs:// by --transform_temp_dir."
        )
    else:
        folder = storage.join(given, f"imageshards-{uuid.uuid4().hex[:8]}")
        try:
            yield folder
        finally:
            storage.delete_folder(folder)


def _tensorflow_reads(path: str) -> bool:
    # Its own client for gs:// does not know of emulators.
    return path.startswith("gs://") and not os.environ.get("STORAGE_EMULATOR_HOST")


def _is_needed(options: BuildOptions, schema: ManifestSchema | None) -> bool:
    return options.transform_module is not None or bool(schema and schema.columns)
