"""`croissant.json`: what a data set is, as search engines and `mlcroissant` read it.

Croissant 1.1 (https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html) lists files and
says what records there are in them. It knows no TFRecord, so the records are the rows of `index/`,
which say where each one is in which shard. Of what it requires only its name, its files and a
description follow from a build; license, creator, address and date are given by flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageshards.index import COLUMNS, extra_columns
from imageshards.manifest import INDEX_NAME, first_label_of, shards_of, to_json
from imageshards.text import counted

_CONFORMS_TO = "http://mlcommons.org/croissant/1.1"
_CR_TERMS = (
    "arrayShape citeAs column containedIn equivalentProperty extract field fileProperty fileObject "
    "fileSet format includes isArray isLiveDataset jsonPath key md5 parentField path recordSet "
    "references regex repeated replace samplingRate separator source subField transform"
)
# The context that the specification prescribes, word for word.
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
_DATA_TYPES = {
    "string": "sc:Text",
    "int64": "cr:Int64",
    "float32": "cr:Float32",
}

_COLUMNS_SAY = {
    "key": "Path of the image below the input, or its id.",
    "split": "Split of the data set.",
    "class_name": "Name of the class.",
    "label": "Label in the record.",
    "shard": "TFRecord file that holds the record.",
    "record": "Number of the record in its file, from 0.",
    "offset": "Byte at which its frame begins.",
    "num_bytes": "Size of its frame in bytes.",
    "source_sha256": "SHA-256 of the original file.",
    "source_bytes": "Size of the original file in bytes.",
    "width": "Width of the picture in the record, in pixels.",
    "height": "Height of the picture in the record, in pixels.",
}


def croissant_text(manifest: Mapping[str, Any], name: str) -> str:
    """The text of `croissant.json`.

    Args:
        manifest: `manifest.json` as a dict, with what `--license` and the like gave in `about`.
        name: Of the data set.
    """
    about = dict(manifest.get("about", {}))
    creators = about.pop("creator", ())
    described: dict[str, Any] = {
        "@context": dict(sorted(_CONTEXT.items())),
        "@type": "sc:Dataset",
        "name": name,
        "description": about.pop("description", _description(manifest)),
        "conformsTo": _CONFORMS_TO,
        "version": "1.0.0",
        **about,
    }
    if creators:
        # --creator does not say whether a name is a person's or an organisation's.
        described["creator"] = [{"@type": "sc:Organization", "name": name} for name in creators]
    described["distribution"] = _files(manifest)
    described["recordSet"] = [_splits(manifest), _classes(manifest), _records(manifest)]
    return to_json(described)


def _description(manifest: Mapping[str, Any]) -> str:
    records = {split: entry["num_records"] for split, entry in manifest["splits"].items()}
    splits = ", ".join(f"{split} {count:,}" for split, count in records.items())
    return (
        f"{counted(sum(records.values()), 'labelled JPEG image')} of "
        f"{counted(len(manifest['classes']), 'class')} "
        f"({splits}) as tf.train.Example records in TFRecord files."
    )


def _files(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    index = {
        "@type": "cr:FileSet",
        "@id": INDEX_NAME,
        "name": INDEX_NAME,
        "description": "A row for each record of the shards.",
        "encodingFormat": "application/x-parquet",
        "includes": f"{INDEX_NAME}/*.parquet",
    }
    shards = [
        {
            "@type": "cr:FileObject",
            "@id": shard["file"],
            "name": shard["file"],
            "contentUrl": shard["file"],
            "contentSize": f"{shard['num_bytes']} B",
            "encodingFormat": "application/x-tfrecord",
            "sha256": shard["sha256"],
        }
        for _, shard in shards_of(manifest)
    ]
    return [index, *shards]


def _splits(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": "splits",
        "name": "splits",
        "dataType": "cr:Split",
        "key": {"@id": "splits/name"},
        "field": [_field("splits/name", "sc:Text")],
        "data": [{"splits/name": split} for split in manifest["splits"]],
    }


def _classes(manifest: Mapping[str, Any]) -> dict[str, Any]:
    first = first_label_of(manifest)
    return {
        "@type": "cr:RecordSet",
        "@id": "classes",
        "name": "classes",
        "dataType": "sc:Enumeration",
        "key": {"@id": "classes/label"},
        "field": [_field("classes/label", "cr:Int64"), _field("classes/name", "sc:Text")],
        "data": [
            {"classes/label": label, "classes/name": name}
            for label, name in enumerate(manifest["classes"], first)
        ],
    }


def _records(manifest: Mapping[str, Any]) -> dict[str, Any]:
    fields = [
        _column(name, _DATA_TYPES[kind]) | {"description": _COLUMNS_SAY[name]}
        for name, kind in COLUMNS.items()
    ]
    fields[list(COLUMNS).index("split")]["references"] = {"field": {"@id": "splits/name"}}
    for name, feature in extra_columns(manifest["features"]).items():
        spec = manifest["features"][feature]
        field = _column(name, _DATA_TYPES[spec["dtype"]])
        if spec["shape"]:
            field |= {"isArray": True, "arrayShape": ",".join(map(str, spec["shape"]))}
        fields.append(field)
    return {
        "@type": "cr:RecordSet",
        "@id": "records",
        "name": "records",
        "key": {"@id": "records/key"},
        "field": fields,
    }


def _column(name: str, data_type: str) -> dict[str, Any]:
    source = {"fileSet": {"@id": INDEX_NAME}, "extract": {"column": name}}
    return _field(f"records/{name}", data_type) | {"source": source}


def _field(path: str, data_type: str) -> dict[str, Any]:
    name = path.partition("/")[2]
    return {"@type": "cr:Field", "@id": path, "name": name, "dataType": data_type}
