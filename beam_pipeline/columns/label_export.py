"""Exports the transform of a data set without extra columns; runs beside a build.

Once the classes are known nothing is left for tensorflow-transform to analyse, so it traces
in place. TensorFlow takes seconds to import; on one machine a process of its own does that
while the build imports Beam, lists and plans: `python -m beam_pipeline.columns.label_export`. Hence
this module does not import Beam.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from beam_pipeline.imports import import_tensorflow_transform
from imageshards import storage

LABEL_TEXT = "image/class/text"
LABEL_ID = "image/class/label"
LABEL_VOCABULARY = "label"

TRANSFORM_FN_DIR = "transform_fn"
TRANSFORMED_METADATA_DIR = "transformed_metadata"
RAW_METADATA_DIR = "metadata"


def export_labels(classes: Sequence[str], transform_dir: str) -> str:
    """Exports a transform from label to class id in TFT's layout; returns `transform_dir`."""
    if not storage.is_local(transform_dir):
        with tempfile.TemporaryDirectory(prefix="imageshards-") as folder:
            export_labels(classes, folder)
            storage.copy_folder(folder, transform_dir)
        return transform_dir
    import_tensorflow_transform()
    import tensorflow as tf
    from tensorflow_transform import impl_helper

    spec = {LABEL_TEXT: tf.io.FixedLenFeature([], tf.string)}
    type_specs = {LABEL_TEXT: tf.TensorSpec([None], tf.string)}
    with _temporary_dir(transform_dir) as temporary:
        vocabulary = os.path.join(temporary, LABEL_VOCABULARY)
        with tf.io.gfile.GFile(vocabulary, "w") as file:
            file.write("".join(f"{name}\n" for name in classes))

        def preprocess(inputs: dict[str, Any]) -> dict[str, Any]:
            return {LABEL_ID: label_id(inputs[LABEL_TEXT], vocabulary)}

        impl_helper.analyze_in_place(preprocess, False, spec, type_specs, temporary)
        for name in (TRANSFORMED_METADATA_DIR, TRANSFORM_FN_DIR):
            _replace_dir(os.path.join(temporary, name), os.path.join(transform_dir, name))
    return write_raw_metadata(spec, transform_dir)


def label_id(text: Any, vocabulary: Any) -> Any:
    """Tensor of class ids; -1 for a label outside the vocabulary file."""
    import tensorflow_transform as tft

    tft.annotate_asset(LABEL_VOCABULARY, LABEL_VOCABULARY)
    return tft.apply_vocabulary(text, vocabulary)


def write_raw_metadata(feature_spec: dict[str, Any], transform_dir: str) -> str:
    """Writes what the exported graph is fed, as `TFTransformOutput.raw_metadata` reads it."""
    import tensorflow_transform as tft
    from tensorflow_transform.tf_metadata import metadata_io

    metadata = tft.DatasetMetadata.from_feature_spec(feature_spec)
    metadata_io.write_metadata(metadata, os.path.join(transform_dir, RAW_METADATA_DIR))
    return transform_dir


@contextlib.contextmanager
def _temporary_dir(parent: str) -> Iterator[str]:
    """A new directory in `parent`, gone afterwards: renames stay on one filesystem."""
    import tensorflow as tf

    path = os.path.join(parent, f"tmp-{uuid.uuid4().hex}")
    tf.io.gfile.makedirs(path)
    try:
        yield path
    finally:
        tf.io.gfile.rmtree(path)


def _replace_dir(source: str, target: str) -> None:
    import tensorflow as tf

    if tf.io.gfile.exists(target):
        tf.io.gfile.rmtree(target)
    tf.io.gfile.rename(source, target)


class LabelExporter:
    """A process that has imported TensorFlow by the time the classes are known.

    It reads one request from its standard input and ends with it, or when this process does.
    """

    def __init__(self) -> None:
        self._request: tuple[list[str], str] | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "beam_pipeline.columns.label_export"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    def __enter__(self) -> LabelExporter:
        global _exporter
        _exporter = self
        return self

    def __exit__(self, *error: object) -> None:
        global _exporter
        _exporter = None
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def ask(self, classes: Sequence[str], transform_dir: str) -> None:
        """Asks for an export; `wait` tells when it is there."""
        self._request = (list(classes), transform_dir)
        stdin = self._process.stdin
        with contextlib.suppress(OSError):  # it was killed; `wait` finds out
            if stdin is not None:
                stdin.write(json.dumps(self._request).encode() + b"\n")
                stdin.close()

    def wait(self) -> None:
        """Waits for the export; does it here if the process was killed or failed."""
        if self._request is not None and self._process.wait() != 0:
            export_labels(*self._request)
        self._request = None


_exporter: LabelExporter | None = None


def begin_export(classes: Sequence[str], transform_dir: str) -> str:
    """Exports beside this process if an exporter is there, else at once."""
    if _exporter is None:
        return export_labels(classes, transform_dir)
    _exporter.ask(classes, transform_dir)
    return transform_dir


def await_export() -> None:
    """Returns when what was begun is exported."""
    if _exporter is not None:
        _exporter.wait()


def main() -> int:
    """Imports TensorFlow, then serves one request from standard input."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    import_tensorflow_transform()
    request = sys.stdin.readline()
    if request:
        classes, transform_dir = json.loads(request)
        export_labels(classes, transform_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
