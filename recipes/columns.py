"""Writes an image table with extra columns: numbers, and the words of a generated caption.

    python -m recipes.columns --input PHOTOS --output list.jsonl

The table has these columns:

- `meta`: width and height in pixels, and the mean of red, green and blue (0..255).
- `caption`: a description of these numbers.
- `tokens`: the number of each word. Numbers begin at 1, because the reader pads short sequences
  with 0.
- `label`: the name of the image's folder. In a flat folder the label is the file name up to the
  first dot.
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
    """Returns 2 to 6 of `WORDS`, which describe an image of `width` x `height` px."""
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
    """Returns the table row of an image."""
    data = path.read_bytes()
    with Image.open(io.BytesIO(data)) as picture:
        width, height = picture.size
        if can_draft(data):
            # A small draft has almost the same mean colour and decodes much faster.
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
    """Writes the table and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--input", required=True, type=pathlib.Path, help="folder of JPEGs")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="image table (.jsonl)")
    args = parser.parse_args(argv)
    paths = sorted(args.input.rglob("*.jpg"))
    if not paths:
        parser.error(f"--input received {str(args.input)!r}; the folder contains no .jpg file.")
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
