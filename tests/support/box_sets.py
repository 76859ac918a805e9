"""Pictures with a red rectangle on a green ground, and the box around it in their records."""

import pathlib
from typing import Any

import numpy as np
from PIL import Image

from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES
from tests.support.dataset_factory import Dataset
from tests.support.pictures import saved

KINDS = ("high", "wide")
Box = tuple[float, float, float, float]


def picture(number: int, size: tuple[int, int]) -> tuple[bytes, Box]:
    """A JPEG of (height, width) pixels, and xmin, ymin, xmax, ymax of its rectangle, 0 to 1.

    The rectangle stays away from the edges: beyond them a rotated picture shows its mirror image.
    """
    rng = np.random.default_rng(number)
    height, width = size
    y, x = (int(rng.uniform(0.25, 0.45) * side) for side in size)
    rows, columns = (int(rng.uniform(0.2, 0.3) * side) for side in size)
    pixels = np.full((height, width, 3), (50, 120, 70), np.uint8)
    pixels[y : y + rows, x : x + columns] = (225, 45, 60)
    encoded = saved(Image.fromarray(pixels), quality=98, subsampling=0)
    return encoded, (x / width, y / height, (x + columns) / width, (y + rows) / height)


def make_boxes(folder: pathlib.Path, size=(160, 160), varies=False, crowd=0):
    """A dataset of 24 pictures in `train` and 8 in `validation`, and the boxes of `train`.

    The first record of each shard has no box, the second one also a box around the whole picture,
    and the third one also a `crowd` of such boxes of another class.
    """
    dataset = Dataset(folder, {"train": 3, "validation": 1}, 8)
    lists = {name: {"dtype": "float32", "shape": None} for name in BOX_FEATURES}
    lists[BOX_CLASS_FEATURE] = {"dtype": "string", "shape": None}
    dataset.manifest["features"] |= lists | {"size": {"dtype": "float32", "shape": []}}
    dataset.manifest["image"] |= {"size": [*size], "mode": "shortest" if varies else "crop"}
    boxes: list[Box] = []

    def draw(number: int) -> dict[str, Any]:
        place = number % 8
        own = (size[0] + 8 * place, size[1] - 5 * place) if varies else size
        encoded, box = picture(number, own)
        boxes.append(box)
        xmin, ymin, xmax, ymax = box
        kind = KINDS[xmax - xmin > ymax - ymin].encode()
        rows = [(xmin, xmax, ymin, ymax, kind)] if place else []
        whole = (0.0, 1.0, 0.0, 1.0, b"wide" if place == 1 else b"crowd")
        rows += [whole] * {1: 1, 2: crowd}.get(place, 0)
        names = (*BOX_FEATURES, BOX_CLASS_FEATURE)
        sides: dict[str, Any] = {name: [row[i] for row in rows] for i, name in enumerate(names)}
        return sides | {"image/encoded": [encoded], "size": [(xmax - xmin) * (ymax - ymin)]}

    dataset.change_records(draw)
    return folder, boxes[:24]
