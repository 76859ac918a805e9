"""Writes an image table with columns beside the picture: numbers, and words of a generated caption.

    python -m recipes.columns --input PHOTOS --output list.jsonl

Columns: `meta`, width and height in pixels and the mean of red, green and blue (0..255);
`caption`, a description of these numbers; `tokens`, the number of each word, from 1, because
shorter sequences are padded with 0. The label is the picture's folder or, in a flat folder, its
name up to the first dot.
"""

from __future__ import annotations

import argparse
import io
import json
import pathlib
import sys
from collections.abc import Sequence

from PIL import Image, ImageStat

from imageshards.jpeg import can_draft

WORDS = ("a", "picture", "small", "large", "wide", "tall", "dark", "bright", "warm", "cold")


def caption(width: int, height: int, colour: Sequence[float]) -> list[str]:
    """The words that describe a picture of `width` x `height` px: 2 to 6 of `WORDS`."""
    red, _, blue = colour
    brightness = sum(colour) / 3
    applies = {
        "small": width * height < 300**2,
        "large": width * height > 450**2,
        "wide": width > 1.2 * height,
        "tall": height > 1.2 * width,
        "dark": brightness < 90,
        "bright": brightness > 140,
        "warm": red > 1.1 * blue,
        "cold": blue > 1.1 * red,
    }
    return ["a", *(word for word in WORDS if applies.get(word)), "picture"]


def row(path: pathlib.Path, label: str) -> dict[str, object]:
    """The table's row of one picture."""
    data = path.read_bytes()
    with Image.open(io.BytesIO(data)) as picture:
        width, height = picture.size
        if can_draft(data):
            # A small draft has the same mean, and takes a fraction of the time.
            picture.draft("RGB", (64, 64))
        colour = [round(x, 2) for x in ImageStat.Stat(picture.convert("RGB")).mean]
    words = caption(width, height, colour)
    return {
        "image": str(path.resolve()),
        "label": label,
        "meta": [float(width), float(height), *colour],
        "tokens": [1 + WORDS.index(word) for word in words],
        "caption": " ".join(words),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--input", required=True, type=pathlib.Path, help="folder of JPEGs")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="table, .jsonl")
    args = parser.parse_args(argv)
    paths = sorted(args.input.rglob("*.jpg"))
    if not paths:
        parser.error(f"--input received {str(args.input)!r}, below which there is no .jpg file.")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with args.output.open("w", encoding="utf-8") as f:
        for path in paths:
            flat = path.parent == args.input
            label = path.name.partition(".")[0] if flat else path.parent.name
            f.write(json.dumps(row(path, label)) + "\n")
    print(f"{len(paths)} rows in {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
