"""Boxes in a manifest: four columns of sides, and others with one value per box."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from beam_pipeline.options import ColumnSpec
from beam_pipeline.shards.record import BOX_FEATURES, OBJECT_PREFIX
from imageshards.errors import UserError

# Boxes may reach a little out of the picture; farther out they were given in pixels.
_BOX_MARGIN = 1.0


def of_boxes(column: ColumnSpec) -> ColumnSpec:
    """What is inferred is what boxes need: their number differs from image to image.

    A column that is none of boxes stays as it is.
    """
    if not column.name.startswith(OBJECT_PREFIX):
        return column
    kind = "float" if column.name in BOX_FEATURES else column.kind
    return dataclasses.replace(column, kind=kind, shape=None)


def check_box_columns(path: str, columns: Sequence[ColumnSpec]) -> None:
    """Checks the columns of boxes among those of a manifest.

    Raises:
        UserError: One has a type that boxes cannot have, or a side is missing.
    """
    for column in columns:
        if column != of_boxes(column) or column.name in BOX_FEATURES and column.scale != "none":
            raise UserError(
                f"--columns received another type for {column.name!r}; expected "
                f"{column.name}:{of_boxes(column).kind}[], one value per box."
            )
    sides = [column.name for column in columns if column.name in BOX_FEATURES]
    absent = [name for name in BOX_FEATURES if name not in sides]
    if sides and absent:
        raise UserError(
            f"--input {path!r} gives {sides[0]!r} without {absent[0]!r}; expected all of "
            f"{', '.join(BOX_FEATURES)}, or none."
        )


def check_boxes(where: object, sides: Mapping[str, Sequence[float]]) -> None:
    """Checks the boxes of one row.

    Args:
        where: The row, for a person.
        sides: Column → its values.

    Raises:
        UserError: Sides of different number, or not relative to the picture.
    """
    lengths = {name: len(values) for name, values in sides.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise UserError(
            f"{where} has boxes with sides of different number ({counts}); expected one value of "
            "each per box: fix the row."
        )
    for name, values in sides.items():
        bad = [v for v in values if not -_BOX_MARGIN <= v <= 1 + _BOX_MARGIN]
        if bad:
            raise UserError(
                f"{where} has {bad[0]:g} in column {name!r}; expected 0 to 1, relative to the "
                "picture: divide pixels by its width or height."
            )
