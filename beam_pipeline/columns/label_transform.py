"""The transform of a data set that has labels alone, in tensorflow-transform's layout.

Its graph looks a label up in a vocabulary file, so it is the same for every list of classes.
TensorFlow, which takes seconds to import, traces it once for each of its versions and keeps it
in the user's cache folder; from then on an export is a copy with another vocabulary. Where
there is none yet, a process of its own makes it while the build lists, plans and encodes
(`python -m beam_pipeline.columns.label_transform`); hence this module does not import Beam.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
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

# The process that makes the template, while there is one.
_maker: subprocess.Popen[bytes] | None = None


def export_labels(classes: Sequence[str], transform_dir: str) -> str:
    """Exports a transform from label to class id; returns `transform_dir`.

    Args:
        classes: Class names by class id.
        transform_dir: Folder, on this machine or in a store.
    """
    with tempfile.TemporaryDirectory(prefix="imageshards-") as folder:
        target = pathlib.Path(folder, "transform")
        shutil.copytree(_template(), target)
        vocabulary = target / TRANSFORM_FN_DIR / "assets" / LABEL_VOCABULARY
        vocabulary.write_text("".join(f"{name}\n" for name in classes), "utf-8")
        # The template has one class, with id 0.
        schema = target / TRANSFORMED_METADATA_DIR / "schema.pbtxt"
        text = schema.read_text("utf-8")
        schema.write_text(re.sub(r"\bmax: 0\b", f"max: {len(classes) - 1}", text), "utf-8")
        if storage.is_local(transform_dir):
            shutil.rmtree(transform_dir, ignore_errors=True)
            shutil.copytree(target, transform_dir)
        else:
            storage.copy_folder(str(target), transform_dir)
    return transform_dir


@contextlib.contextmanager
def template_in_the_making() -> Iterator[None]:
    """Has the template made by another process meanwhile, unless it is there."""
    global _maker
    if _cached().is_dir():
        yield
        return
    _maker = subprocess.Popen(
        [sys.executable, "-m", "beam_pipeline.columns.label_transform"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C is this process's to handle
    )  # fmt: skip
    try:
        yield
    finally:
        _maker.kill()
        _maker.wait()
        _maker = None


def _template() -> pathlib.Path:
    """Folder of the transform of one class, made if need be."""
    if _maker is not None:
        _maker.wait()  # if it failed or was killed, the template is made here
    return _cached() if _cached().is_dir() else make_template()


def _cached() -> pathlib.Path:
    """Where the template is kept: its graph depends on the versions that trace it."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    versions = [importlib.metadata.version(p) for p in ("tensorflow-transform", "tensorflow")]
    return pathlib.Path(cache, "imageshards", "label_transform-" + "-".join(versions))


def make_template() -> pathlib.Path:
    """Traces the transform of one class with TensorFlow; returns where it is."""
    cached = _cached()
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(prefix="label_transform.tmp-", dir=cached.parent)
    except OSError:  # no home, or one that cannot be written
        return _trace(_own_folder())
    _trace(pathlib.Path(made))
    try:
        os.rename(made, cached)
    except OSError:  # another process was first
        shutil.rmtree(made, ignore_errors=True)
    return cached


@functools.cache
def _own_folder() -> pathlib.Path:
    import atexit

    folder = tempfile.mkdtemp(prefix="imageshards-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return pathlib.Path(folder)


def _trace(folder: pathlib.Path) -> pathlib.Path:
    import_tensorflow_transform()
    import tensorflow as tf
    from tensorflow_transform import impl_helper

    spec = {LABEL_TEXT: tf.io.FixedLenFeature([], tf.string)}
    type_specs = {LABEL_TEXT: tf.TensorSpec([None], tf.string)}
    vocabulary = folder / LABEL_VOCABULARY
    vocabulary.write_text("label\n", "utf-8")

    def preprocess(inputs: dict[str, Any]) -> dict[str, Any]:
        return {LABEL_ID: label_id(inputs[LABEL_TEXT], str(vocabulary))}

    # Nothing is left to analyse, so it traces in place.
    impl_helper.analyze_in_place(preprocess, False, spec, type_specs, str(folder))
    vocabulary.unlink()
    write_raw_metadata(spec, str(folder))
    return folder


def label_id(text: Any, vocabulary: Any) -> Any:
    """Tensor of class ids, int64; -1 for a label outside the vocabulary file."""
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


if __name__ == "__main__":
    make_template()
