"""Traces the transform from label to class id that `beam_pipeline/columns/label_graph` holds.

Run it when setup.py admits another tensorflow-transform or TensorFlow:

    .venv/bin/python -m scripts.trace_label_graph
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from typing import Any

from beam_pipeline.columns.export import (
    LABEL_GRAPH,
    LABEL_ID,
    LABEL_TEXT,
    LABEL_VOCABULARY,
    TRANSFORM_FN_DIR,
)
from beam_pipeline.columns.preprocessing import (
    import_tensorflow_transform,
    label_id,
    write_raw_metadata,
)


def trace(folder: pathlib.Path) -> None:
    """Writes the transform of one class, as tensorflow-transform exports it, into a new folder."""
    import_tensorflow_transform()
    import tensorflow as tf
    from tensorflow_transform import impl_helper

    spec = {LABEL_TEXT: tf.io.FixedLenFeature([], tf.string)}
    type_specs = {LABEL_TEXT: tf.TensorSpec([None], tf.string)}

    def preprocess(inputs: dict[str, Any]) -> dict[str, Any]:
        return {LABEL_ID: label_id(inputs[LABEL_TEXT], LABEL_VOCABULARY)}

    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        # A relative path: the graph keeps it as a name.
        pathlib.Path(LABEL_VOCABULARY).write_text("label\n", "utf-8")
        impl_helper.analyze_in_place(preprocess, False, spec, type_specs, str(folder))
    write_raw_metadata(spec, str(folder))
    # Every export brings its own vocabulary; the fingerprint is of this one.
    os.remove(folder / TRANSFORM_FN_DIR / "fingerprint.pb")
    shutil.rmtree(folder / TRANSFORM_FN_DIR / "assets")


def main() -> None:
    """Replaces the graph in the package."""
    shutil.rmtree(LABEL_GRAPH, ignore_errors=True)
    trace(LABEL_GRAPH)


if __name__ == "__main__":
    main()
