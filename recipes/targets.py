"""Writes an image table whose columns are targets: colour, lightness and words of each photo.

    python -m recipes.targets --input PHOTOS --output list.jsonl

The table has these columns:

- `colour`: the mean of red, green and blue (0..1).
- `light`: the quarter of the photos, sorted by lightness, that the photo belongs to: from 0 (dark)
  to 3.
- `words`: the label, and the words of `recipes.columns` that describe the photo.
- `label`: the name of the photo's folder. In a flat folder the label is the file name up to the
  first dot.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from recipes.columns import WORDS, row

QUARTERS = 4


def targets(path: pathlib.Path, label: str) -> dict[str, Any]:
    """Returns the table row of a photo without `light`, which depends on all photos."""
    described: dict[str, Any] = row(path, label)
    colour = [round(value / 255, 4) for value in described["meta"][2:]]
    applies = [word for word in WORDS if word in str(described["caption"]).split()]
    return {
        "image": described["image"],
        "label": label,
        "colour": colour,
        "words": [label, *(word for word in applies if word not in ("a", "picture"))],
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
    rows = []
    for path in paths:
        flat = path.parent == args.input
        rows.append(targets(path, path.name.partition(".")[0] if flat else path.parent.name))
    rows.sort(key=lambda one: (sum(one["colour"]), one["image"]))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with args.output.open("w", encoding="utf-8") as f:
        for rank, one in enumerate(rows):
            f.write(json.dumps(one | {"light": rank * QUARTERS // len(rows)}) + "\n")
    print(f"{len(paths)} rows in {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
