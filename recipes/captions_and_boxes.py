"""Writes an image table with captions and boxes for drawn images, and checks the records.

    python -m recipes.captions_and_boxes table PICTURES list.jsonl
    python -m recipes.captions_and_boxes show SHARDS
    python -m recipes.captions_and_boxes check SHARDS

PICTURES is the output of scripts/make_demo_images.py. Each image shows one strongly coloured shape,
and the recipe finds the shape by its colour. `table` writes the image table. `show` prints the
features of the first record. `check` finds the shapes in the images of the records and compares
their boxes with the boxes in the records.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

import imageshards

# xmin, xmax, ymin, ymax as fractions (0..1) of the width and the height.
Box = tuple[float, float, float, float]
SIDES = ("xmin", "xmax", "ymin", "ymax")
BBOX = "image/object/bbox/"

# The saturation (0..255) is about 200 in the shapes and about 40 in the background.
SATURATED = 115


def find_box(picture: Image.Image) -> Box | None:
    """Returns the box around the strongly coloured pixels; None without such pixels."""
    saturation = picture.convert("RGB").convert("HSV").getchannel("S")
    found = saturation.point(lambda value: 255 * (value >= SATURATED)).getbbox()
    if found is None:
        return None
    left, upper, right, lower = found
    width, height = picture.size
    return left / width, right / width, upper / height, lower / height


def overlap(a: Box, b: Box) -> float:
    """Returns the intersection over union of two boxes, 0..1."""

    def area(box: Box) -> float:
        return max(0.0, box[1] - box[0]) * max(0.0, box[3] - box[2])

    both = (max(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), min(a[3], b[3]))
    return area(both) / (area(a) + area(b) - area(both) or 1.0)


def row(path: pathlib.Path) -> dict[str, Any]:
    """Returns the table row of an image: a list for every side, empty if the image has no box."""
    label = path.parent.name
    try:
        with Image.open(path) as picture:
            # The box belongs to the stored orientation; the builder turns image and box upright.
            box = find_box(picture)
    except OSError:
        box = None
    share = 0 if box is None else round(100 * (box[1] - box[0]) * (box[3] - box[2]))
    boxes = {BBOX + s: [] if box is None else [v] for s, v in _sides(box)}
    return {
        "image": str(path.resolve()),
        "label": label,
        "caption": f"a {label} in a box of {share} % of the picture"
        if box
        else "nothing in colour",
        "image/object/class/text": [] if box is None else [label],
        **boxes,
    }


def _sides(box: Box | None) -> Iterator[tuple[str, float]]:
    return zip(SIDES, box or (0.0,) * 4, strict=True)


def write_table(pictures: pathlib.Path, output: pathlib.Path) -> None:
    """Writes a table with one row per image of the folders below `pictures`."""
    paths = sorted(p for p in pictures.glob("*/*") if p.suffix.lower() == ".jpg")
    if not paths:
        sys.exit(f"error: no folders with .jpg files in {str(pictures)!r}; expected one per class.")
    output.parent.mkdir(parents=True, exist_ok=True)
    rows = [row(path) for path in paths if not path.name.startswith(".")]
    output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    boxes = sum(bool(row[BBOX + "xmin"]) for row in rows)
    print(f"{len(rows)} rows, {boxes} with a box, in {output}")


def records(shards: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yields the records of all splits."""
    data = imageshards.open(shards)
    return itertools.chain.from_iterable(map(data.source, data.splits))


def show(shards: pathlib.Path) -> None:
    """Prints the features of the first record, one feature per line."""
    for name, values in sorted(next(records(shards)).items()):
        shown = [
            value
            if not isinstance(value, bytes)
            else f"{len(value)} bytes"
            if len(value) > 100
            else value.decode()
            for value in np.atleast_1d(values).tolist()
        ]
        print(f"{name:<26}{shown}")


def check(shards: pathlib.Path) -> None:
    """Prints how well the boxes of the records fit the shapes in their images."""
    fits, cut = [], 0
    for record in records(shards):
        found = find_box(Image.open(io.BytesIO(record["image/encoded"])))
        for xmin, xmax, ymin, ymax in zip(*(record[BBOX + side] for side in SIDES), strict=True):
            # If the crop cuts a shape, the visible part of the shape can be smaller than the
            # clipped box. Such boxes do not count.
            if min(xmin, ymin) <= 0 or max(xmax, ymax) >= 1:
                cut += 1
            elif found:
                fits.append(overlap(found, (xmin, xmax, ymin, ymax)))
    mean, least = sum(fits) / max(1, len(fits)), min(fits, default=0.0)
    print(f"{cut} boxes reach the edge of the crop; overlap of the other {len(fits)} with ", end="")
    print(f"their shapes: mean {mean:.3f}, least {least:.3f}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("table", help="write the image table of drawn images")
    table.add_argument("pictures", type=pathlib.Path)
    table.add_argument("output", type=pathlib.Path)
    for name, what in (("show", "print a record"), ("check", "compare boxes and shapes")):
        commands.add_parser(name, help=what).add_argument("shards", type=pathlib.Path)
    args = parser.parse_args(argv)
    if args.command == "table":
        write_table(args.pictures, args.output)
    else:
        {"show": show, "check": check}[args.command](args.shards)
    return 0


if __name__ == "__main__":
    sys.exit(main())
