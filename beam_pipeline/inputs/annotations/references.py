"""Turns annotated pictures into references, as rows of an image table with lists of boxes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from beam_pipeline.inputs.annotations.beside import SIDES, beside_rows
from beam_pipeline.inputs.annotations.coco import coco_rows
from beam_pipeline.inputs.annotations.places import Place
from beam_pipeline.inputs.annotations.refused import kind_of
from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.labels import split_word
from beam_pipeline.inputs.tables.references import refs_of_row
from beam_pipeline.inputs.tables.roles import TableSchema
from beam_pipeline.inputs.tables.schema import schema_of_rows
from beam_pipeline.options import COCO, PIXELS, RELATIVE, VOC, XYWH, YOLO, InputOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards.manifest import BOX_FEATURES
from imageshards.text import key_of

# Format → columns of a box, and their unit.
_SIZES = ("x", "y", "width", "height")
_BOXES = {COCO: (_SIZES, XYWH), YOLO: (SIDES, RELATIVE), VOC: (SIDES, PIXELS)}


def annotated_schema(source: InputOptions) -> TableSchema:
    """Returns the columns of a detection dataset: `image`, `key`, a box's sides and `category`."""
    sides, bbox_format = _BOXES[source.layout]
    numbers = [[0.0], [0.0], [1.0], [1.0]] if bbox_format == RELATIVE else [[9.0]] * len(sides)
    row: dict[str, Any] = dict.fromkeys(("image", "key"), "x") | {"category": ["x"]}
    row |= dict(zip(sides, numbers, strict=True))
    table = dataclasses.replace(source, bbox_format=bbox_format)
    return dataclasses.replace(schema_of_rows(table, [("", row)]), form=source.layout)


def annotated_refs(
    place: Place, source: InputOptions, schema: TableSchema
) -> Iterator[ImageRef | Skipped]:
    """Yields the references of a place, and a `Skipped` for all that a warning counts or names.

    Raises `UserError` if annotations are damaged, or no picture of a file is found.
    """
    is_coco = place.form == COCO
    rows = coco_rows(place) if is_coco else beside_rows(place, source, bool(schema.class_names))
    for row in rows:
        if isinstance(row, Skipped):
            yield row
            continue
        where, boxes, names, ref = row
        lists = map(list, zip(*boxes, strict=True)) if boxes else ([] for _ in SIDES)
        cells: dict[str, Any] = dict(zip(_BOXES[place.form][0], lists, strict=True))
        path = ref.key if is_coco else ref.uri[len(place.root) :].lstrip("/")
        cells |= {"category": names, "image": key_of(path), "key": _short_key(ref.key)}
        for found in refs_of_row(where, cells, schema, ref):
            if isinstance(found, ImageRef) and found.columns:
                sides = (tuple(found.columns.get(name, ())) for name in BOX_FEATURES)
                found = found._replace(sides=tuple(sides))
            yield found


def _short_key(path: str) -> str:
    """Returns the path of a picture without folders of all pictures or of a split at its beginning.

    So the same picture has one key in all formats.
    """
    first, slash, behind = path.partition("/")
    is_above = slash and (kind_of(first) == "images" or split_word(first))
    return _short_key(behind) if is_above else key_of(path)
