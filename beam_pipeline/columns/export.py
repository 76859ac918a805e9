"""Writes and reads the exported transform of a dataset, in tensorflow-transform's layout.

Without extra columns, tensorflow-transform would trace the same graph for every dataset: the graph
looks labels up in a vocabulary file. So this package has a copy of that graph (`label_graph/`, or
`labels_graph/` for several labels an image), made by `scripts/trace_label_graph.py`. An export is a
copy with another vocabulary, and no build waits seconds for the import of TensorFlow.
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
# How many labels an image has → the columns that are fed, and the feature with the class ids.
LABEL_COLUMNS = {
    ONE: (ColumnSpec(LABEL_TEXT, "string"),),
    NONE: (),
    SEVERAL: (ColumnSpec(LABEL_TEXT, "string", None),),
}
LABEL_IDS = {ONE: "image/class/label", SEVERAL: "image/class/labels"}
LABEL_VOCABULARY = "label"

TRANSFORM_FN_DIR = "transform_fn"

_HERE = pathlib.Path(__file__).parent
LABEL_GRAPHS = {ONE: _HERE / "label_graph", SEVERAL: _HERE / "labels_graph"}
# Vocabulary of one label, in whose place each export has its own.
PLACEHOLDER = _HERE / LABEL_VOCABULARY
_VOCABULARY_PATH = f"{TRANSFORM_FN_DIR}/assets/{LABEL_VOCABULARY}"
_SCHEMA_PATH = "transformed_metadata/schema.pbtxt"
# Matches a feature that is not the label.
_EXTRA_FEATURE = re.compile(r"^feature \{\s*name: (?!\"image/class/labels?\")", re.MULTILINE)
# Matches the largest class id in the label's part of a schema.
_LABEL_MAX = re.compile(rb"(name: \"image/class/labels?\"[^}]*?max: )\d+\n")


def export_labels(
    names: Sequence[str], transform_dir: str, exported: str = "", label: str = ONE
) -> str:
    """Exports a transform from class names, in the order of their ids; returns `transform_dir`.

    `exported` is the folder of a transform that tensorflow-transform has exported, whose extra
    columns are kept; "" for the graph of this package, which has labels alone. Without labels, a
    transform has only extra columns. A repeated call with the same names writes the same files.
    """
    folder = exported or str(LABEL_GRAPHS.get(label, ""))
    if folder:
        storage.copy_folder(folder, transform_dir)
    if label == NONE:
        return transform_dir
    storage.write(
        storage.join(transform_dir, _VOCABULARY_PATH), "".join(f"{name}\n" for name in names)
    )
    # Each graph was traced with other classes.
    schema = storage.read(storage.join(folder, _SCHEMA_PATH))
    schema = _LABEL_MAX.sub(rb"\g<1>%d\n" % (len(names) - 1), schema)
    storage.write(storage.join(transform_dir, _SCHEMA_PATH), schema)
    return transform_dir


def exported_classes(transform_dir: str) -> list[str]:
    """Reads the exported class names, in the order of their ids, without TensorFlow."""
    return storage.read(storage.join(transform_dir, _VOCABULARY_PATH)).decode().split("\n")[:-1]


def exported_features(transform_dir: str) -> dict[str, FeatureSpec]:
    """Reads the exported features without the label, as in the manifest, without TensorFlow."""
    try:
        text = storage.read(storage.join(transform_dir, _SCHEMA_PATH)).decode()
    except FileNotFoundError:  # a dataset without labels and columns exports nothing
        text = ""
    if not _EXTRA_FEATURE.search(text):
        return {}
    # These packages come with tensorflow-transform, which a build without extra columns lacks.
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
