"""Exports the graphs in `beam_pipeline/columns` that map labels to class ids.

The graph `label_graph` is for images with one label, and `labels_graph` for images with several
labels. Run this script when pyproject.toml admits another version of tensorflow-transform or
TensorFlow:

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
    LABEL_COLUMNS,
    LABEL_GRAPHS,
    LABEL_IDS,
    LABEL_TEXT,
    LABEL_VOCABULARY,
    TRANSFORM_FN_DIR,
)
from beam_pipeline.columns.preprocessing import (
    import_tensorflow_transform,
    label_id,
    raw_feature_spec,
    write_raw_metadata,
)
from imageshards.manifest import ONE


def trace(folder: pathlib.Path, label: str = ONE) -> None:
    """Writes the transform of a dataset with one class into a new folder.

    Args:
        folder: New folder, in the format of tensorflow-transform.
        label: Number of labels per image: one or several.
    """
    import_tensorflow_transform()
    import tensorflow as tf
    from tensorflow_transform import impl_helper

    spec = raw_feature_spec(LABEL_COLUMNS[label])
    one, several = tf.TensorSpec([None], tf.string), tf.SparseTensorSpec([None, None], tf.string)
    type_specs = {LABEL_TEXT: one if label == ONE else several}

    def preprocess(inputs: dict[str, Any]) -> dict[str, Any]:
        return {LABEL_IDS[label]: label_id(inputs[LABEL_TEXT], LABEL_VOCABULARY)}

    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        # The path must be relative, because the graph stores the path as the name of the file.
        pathlib.Path(LABEL_VOCABULARY).write_text("label\n", "utf-8")
        impl_helper.analyze_in_place(preprocess, False, spec, type_specs, str(folder))
    write_raw_metadata(None, LABEL_COLUMNS[label], str(folder))
    # Every export adds its own vocabulary, and the fingerprint only matches the dummy vocabulary.
    os.remove(folder / TRANSFORM_FN_DIR / "fingerprint.pb")
    shutil.rmtree(folder / TRANSFORM_FN_DIR / "assets")


def main() -> None:
    """Replaces both graphs in the package."""
    for label, folder in LABEL_GRAPHS.items():
        shutil.rmtree(folder, ignore_errors=True)
        trace(folder, label)


if __name__ == "__main__":
    main()
