"""The exported transform of a dataset, in tensorflow-transform's layout: written and read.

With labels alone there is nothing to analyse, and the graph that tensorflow-transform traces is the
same for every dataset: it looks labels up in a vocabulary file beside it. So that graph is part of
this package (`label_graph/`, or `labels_graph/` for several labels an image;
`scripts/trace_label_graph.py` makes them), and an export is a copy with another vocabulary. No
process imports TensorFlow for it, which would take seconds of each build.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence

from beam_pipeline.options import ColumnSpec
from imageshards import storage
from imageshards.example import Dtype
from imageshards.manifest import NONE, ONE, SEVERAL, FeatureSpec

LABEL_TEXT = "image/class/text"
# How many labels an image has → what is fed, and the feature that it becomes.
LABEL_COLUMNS = {
    ONE: (ColumnSpec(LABEL_TEXT, "string"),),
    NONE: (),
    SEVERAL: (ColumnSpec(LABEL_TEXT, "string", None),),
}
LABEL_IDS = {ONE: "image/class/label", SEVERAL: "image/class/labels"}
LABEL_VOCABULARY = "label"

TRANSFORM_FN_DIR = "transform_fn"
TRANSFORMED_METADATA_DIR = "transformed_metadata"
RAW_METADATA_DIR = "metadata"

_HERE = pathlib.Path(__file__).parent
LABEL_GRAPHS = {ONE: _HERE / "label_graph", SEVERAL: _HERE / "labels_graph"}
_VOCABULARY_PATH = f"{TRANSFORM_FN_DIR}/assets/{LABEL_VOCABULARY}"
_SCHEMA_PATH = f"{TRANSFORMED_METADATA_DIR}/schema.pbtxt"
# One that is not the label's.
_EXTRA_FEATURE = re.compile(r"^feature \{\s*name: (?!\"image/class/labels?\")", re.MULTILINE)
# The largest id in the label's part of a schema.
_LABEL_MAX = re.compile(rb"(name: \"image/class/labels?\"[^}]*?max: )\d+\n")


def export_labels(
    names: Sequence[str], transform_dir: str, exported: str = "", label: str = ONE
) -> str:
    """Exports a transform from class name to label; returns `transform_dir`.

    It may be done again: the same names give the same files.

    Args:
        exported: Folder of a transform with other classes, whose extra columns stay as they are;
            "" for the one of this package, with labels alone.
        label: How many labels an image has. Without labels there is nothing in the transform but
            such columns.
    """
    folder = exported or str(LABEL_GRAPHS.get(label, ""))
    if folder:
        storage.copy_folder(folder, transform_dir)
    if label == NONE:
        return transform_dir
    storage.write(storage.join(transform_dir, _VOCABULARY_PATH), vocabulary_text(names))
    # The package's own graph was traced with one class, whose id is 0.
    schema = storage.read(storage.join(folder, _SCHEMA_PATH))
    schema = _LABEL_MAX.sub(rb"\g<1>%d\n" % (len(names) - 1), schema)
    storage.write(storage.join(transform_dir, _SCHEMA_PATH), schema)
    return transform_dir


def vocabulary_text(names: Sequence[str]) -> str:
    """The vocabulary file: a name per line, by label."""
    return "".join(f"{name}\n" for name in names)


def exported_classes(transform_dir: str) -> list[str]:
    """Names by label, as exported. Read without TensorFlow."""
    text = storage.read(storage.join(transform_dir, _VOCABULARY_PATH)).decode()
    return text.split("\n")[:-1]


def exported_features(transform_dir: str) -> dict[str, FeatureSpec]:
    """Returns the exported features besides the label, as in the manifest; without TensorFlow."""
    try:
        text = storage.read(storage.join(transform_dir, _SCHEMA_PATH)).decode()
    except FileNotFoundError:  # without labels and columns
        text = ""
    if not _EXTRA_FEATURE.search(text):
        return {}
    # It comes with tensorflow-transform, which a build without extra columns does not need.
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = text_format.Parse(text, schema_pb2.Schema())
    dtypes: dict[int, Dtype] = {
        schema_pb2.INT: "int64",
        schema_pb2.FLOAT: "float32",
        schema_pb2.BYTES: "string",
    }
    features = {}
    for feature in sorted(schema.feature, key=lambda feature: feature.name):
        if feature.name not in LABEL_IDS.values():
            fixed = feature.HasField("shape")
            shape = tuple(dim.size for dim in feature.shape.dim) if fixed else None
            features[feature.name] = FeatureSpec(dtypes[feature.type], shape)
    return features
