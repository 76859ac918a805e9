"""Writes `features.json`, `dataset_info.json` and label names for tensorflow-datasets (TFDS).

The files follow the JSON form of TFDS 4.9's `feature.proto` and `dataset_info.proto`, so that
`tfds.builder_from_directory(OUT)` works although no build imports TFDS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imageshards.manifest import LABEL_FEATURE, FeatureSpec, Manifest, Split, to_json

FEATURES_NAME, INFO_NAME = "features.json", "dataset_info.json"

_FEATURES = "tensorflow_datasets.core.features."
_IMAGE = "image/encoded"
# Modes in which every picture has the same size, unless `only_shrink` leaves small pictures alone.
_FIXED_SIZE_MODES = ("crop", "stretch", "pad")


def tfds_files(manifest: Manifest) -> dict[str, str]:
    """Returns the files that TFDS needs beside the shards: file name → text."""
    features = {
        feature: _feature(feature, spec, manifest)
        for feature, spec in sorted(manifest.features.items())
    }
    described = {
        "featuresDict": {"features": features},
        "pythonClassName": f"{_FEATURES}features_dict.FeaturesDict",
    }
    files = {FEATURES_NAME: to_json(described), INFO_NAME: to_json(_dataset_info(manifest))}
    names = manifest.classes
    # TFDS strips each line and refuses a dataset with equal names; then no names are written.
    stripped = {name.strip() for name in names} - {""}
    if (label := manifest.roles.label) and len(stripped) == len(names):
        files[f"{label.replace('/', '.')}.labels.txt"] = "".join(f"{name}\n" for name in names)
    return files


def _feature(feature: str, spec: FeatureSpec, manifest: Manifest) -> dict[str, Any]:
    if feature == _IMAGE:
        image = manifest.image
        size = (image.size, image.size) if isinstance(image.size, int) else image.size or ()
        if image.mode not in _FIXED_SIZE_MODES or image.only_shrink:
            size = (-1, -1)
        dims = _shape([*size, image.channels or 3])
        content = {"dtype": "uint8", "encodingFormat": "jpeg", "shape": dims}
        return {"image": content, "pythonClassName": f"{_FEATURES}image_feature.Image"}
    if feature == manifest.roles.label:
        label = {
            "classLabel": {"numClasses": str(len(manifest.classes))},
            "pythonClassName": f"{_FEATURES}class_label_feature.ClassLabel",
        }
        if feature == LABEL_FEATURE:
            return label
        return {
            "pythonClassName": f"{_FEATURES}sequence_feature.Sequence",
            "sequence": {"feature": label, "length": "-1"},
        }
    shape = (-1,) if spec.shape is None else spec.shape
    if spec.dtype == "string" and not shape:
        return {"pythonClassName": f"{_FEATURES}text_feature.Text", "text": {}}
    tensor = {"dtype": spec.dtype, "encoding": "none", "shape": _shape(shape)}
    return {"pythonClassName": f"{_FEATURES}tensor_feature.Tensor", "tensor": tensor}


def _shape(sizes: Sequence[int]) -> dict[str, Any]:
    # int64 is a string in the JSON of a protocol buffer.
    return {"dimensions": [str(size) for size in sizes]} if sizes else {}


def _dataset_info(manifest: Manifest) -> dict[str, Any]:
    label = manifest.roles.label
    supervised = {"tuple": {"items": [{"featureKey": _IMAGE}, {"featureKey": label}]}}
    return {
        "description": f"JPEG images{' with labels' if label else ''}; see manifest.json.",
        "fileFormat": "tfrecord",
        "moduleName": "beam_pipeline",
        "name": "image_shards",
        "splits": [_split(split, content) for split, content in manifest.splits.items()],
        **({"supervisedKeys": supervised} if label else {}),
        "version": "1.0.0",
    }


def _split(split: str, content: Split) -> dict[str, Any]:
    shards = content.shards
    return {
        "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}.tfrecord",
        "name": split,
        "numBytes": str(sum(shard.num_bytes for shard in shards)),
        "shardLengths": [str(shard.num_records) for shard in shards],
    }
