"""Describes a dataset for Croissant and for tensorflow-datasets (TFDS), without either package.

`croissant.json` is for search engines and `mlcroissant`.
Croissant 1.1 (https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html) lists files and
describes their records. The format does not know TFRecord, so its records are the rows of `index/`,
which give the shard and place of each record. Of the entries that Croissant requires, a build can
fill in only the name, the files and a description.

`features.json`, `dataset_info.json` and the label names follow the JSON form of TFDS 4.9's
`feature.proto` and `dataset_info.proto`, so that `tfds.builder_from_directory(OUT)` works.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from imageshards.index import COLUMNS, IS_ORIGINAL, OF_LABEL, extra_columns
from imageshards.manifest import (
    INDEX_NAME,
    LABEL_FEATURE,
    NONE,
    SEVERAL,
    TFDS_FEATURES_NAME,
    TFDS_INFO_NAME,
    FeatureSpec,
    Manifest,
    tfds_labels_name,
)
from imageshards.manifest.file import keeps_jpegs, to_json
from imageshards.text import counted

_CONFORMS_TO = "http://mlcommons.org/croissant/1.1"
_CR_TERMS = (
    "arrayShape citeAs column containedIn equivalentProperty extract field fileProperty fileObject "
    "fileSet format includes isArray isLiveDataset jsonPath key md5 parentField path recordSet "
    "references regex repeated replace samplingRate separator source subField transform"
)
# The specification prescribes this context, word for word.
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{term: f"cr:{term}" for term in _CR_TERMS.split()},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
_DATA_TYPES = {"string": "sc:Text", "int64": "cr:Int64", "float32": "cr:Float32"}


def croissant_text(manifest: Manifest, name: str) -> str:
    records = {split: entry.num_records for split, entry in manifest.splits.items()}
    splits = ", ".join(f"{split} {count:,}" for split, count in records.items())
    classes, count = len(manifest.classes), sum(records.values())
    images = counted(count, "labelled JPEG image" if classes else "JPEG image")
    images += f" of {counted(classes, 'class')}" if classes else ""
    shards = [
        {
            "@type": "cr:FileObject",
            "@id": shard.file,
            "name": shard.file,
            "contentUrl": shard.file,
            "contentSize": f"{shard.num_bytes} B",
            "encodingFormat": "application/x-tfrecord",
            "sha256": shard.sha256,
        }
        for _, shard in manifest.shards()
    ]
    return to_json(
        {
            "@context": dict(sorted(_CONTEXT.items())),
            "@type": "sc:Dataset",
            "name": name,
            "description": f"{images} ({splits}) as tf.train.Example records in TFRecord files.",
            "conformsTo": _CONFORMS_TO,
            "version": "1.0.0",
            "distribution": [_INDEX, *shards],
            "recordSet": [*_splits_and_classes(manifest), _records(manifest)],
        }
    )


_INDEX = {
    "@type": "cr:FileSet",
    "@id": INDEX_NAME,
    "name": INDEX_NAME,
    "description": "A row for each record of the shards.",
    "encodingFormat": "application/x-parquet",
    "includes": f"{INDEX_NAME}/*.parquet",
}


def _record_set(name: str, key: str, fields: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "key": {"@id": f"{name}/{key}"},
        "field": fields,
        **more,
    }


def _splits_and_classes(manifest: Manifest) -> Iterator[dict[str, Any]]:
    fields = [_field("splits/name", "sc:Text")]
    splits = [{"splits/name": split} for split in manifest.splits]
    yield _record_set("splits", "name", fields, dataType="cr:Split", data=splits)
    if names := manifest.classes:
        fields = [_field("classes/label", "cr:Int64"), _field("classes/name", "sc:Text")]
        rows = [{"classes/label": n, "classes/name": name} for n, name in enumerate(names)]
        yield _record_set("classes", "label", fields, dataType="sc:Enumeration", data=rows)


def _records(manifest: Manifest) -> dict[str, Any]:
    label = manifest.label
    lists = OF_LABEL if label == SEVERAL else ()
    columns = {n: kind for n, kind in COLUMNS.items() if label != NONE or n not in OF_LABEL}
    columns |= {IS_ORIGINAL: "int64"} if keeps_jpegs(manifest) else {}
    as_list = {"isArray": True, "arrayShape": "-1"}
    fields = [_column(n, kind) | (as_list if n in lists else {}) for n, kind in columns.items()]
    fields[[*columns].index("split")]["references"] = {"field": {"@id": "splits/name"}}
    for name, feature in extra_columns(manifest.features, label).items():
        spec = manifest.features[feature]
        shape = "-1" if spec.shape is None else ",".join(map(str, spec.shape))
        as_array = {"isArray": True, "arrayShape": shape} if shape else {}
        fields.append(_column(name, spec.dtype) | as_array)
    return _record_set("records", "key", fields)


def _column(name: str, dtype: str) -> dict[str, Any]:
    source = {"fileSet": {"@id": INDEX_NAME}, "extract": {"column": name}}
    return _field(f"records/{name}", _DATA_TYPES[dtype]) | {"source": source}


def _field(path: str, data_type: str) -> dict[str, Any]:
    name = path.partition("/")[2]
    return {"@type": "cr:Field", "@id": path, "name": name, "dataType": data_type}


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
    label, names = manifest.roles.label, manifest.classes
    splits = [
        {
            "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}.tfrecord",
            "name": split,
            "numBytes": str(sum(shard.num_bytes for shard in content.shards)),
            "shardLengths": [str(shard.num_records) for shard in content.shards],
        }
        for split, content in manifest.splits.items()
    ]
    supervised = {"tuple": {"items": [{"featureKey": _IMAGE}, {"featureKey": label}]}}
    info = {
        "description": f"JPEG images{' with labels' if label else ''}; see manifest.json.",
        "fileFormat": "tfrecord",
        "moduleName": "beam_pipeline",
        "name": "image_shards",
        "splits": splits,
        **({"supervisedKeys": supervised} if label else {}),
        "version": "1.0.0",
    }
    files = {TFDS_FEATURES_NAME: to_json(described), TFDS_INFO_NAME: to_json(info)}
    # TFDS strips each line and refuses a dataset with equal names; then no names are written.
    stripped = {name.strip() for name in names} - {""}
    if label and len(stripped) == len(names):
        files[tfds_labels_name(label)] = "".join(f"{name}\n" for name in names)
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
