"""Pictures with one coloured rectangle each, and boxes around it."""

from typing import Any

import numpy as np
from PIL import Image

from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES
from tests.support.dataset_factory import Dataset
from tests.support.pictures import saved

RED, GREEN = (225, 45, 60), (50, 120, 70)
KINDS = ("high", "wide")


def _picture(number, size):
    """A JPEG of (height, width) pixels, and xmin, ymin, xmax, ymax of its rectangle, 0 to 1.

    The rectangle stays away from the edges: beyond them a rotated picture shows its mirror image.
    """
    rng = np.random.default_rng(number)
    height, width = size
    y, x = (int(rng.uniform(0.25, 0.45) * side) for side in size)
    rows, columns = (int(rng.uniform(0.2, 0.3) * side) for side in size)
    pixels = np.full((height, width, 3), GREEN, np.uint8)
    pixels[y : y + rows, x : x + columns] = RED
    encoded = saved(Image.fromarray(pixels), quality=98, subsampling=0)
    return encoded, (x / width, y / height, (x + columns) / width, (y + rows) / height)


def make_boxes(folder, size=(160, 160), varies=False, crowd=0, each=8, kinds=KINDS):
    """A dataset of 3 shards of `each` pictures to train, one to validate, and the boxes of `train`.

    The first record of each shard has no box, the second one also a box around the whole picture,
    and the third one before its own a `crowd` of such boxes of another class.
    """
    dataset = Dataset(folder, {"train": 3, "validation": 1}, each)
    lists = {name: {"dtype": "float32", "shape": None} for name in BOX_FEATURES}
    lists[BOX_CLASS_FEATURE] = {"dtype": "string", "shape": None}
    dataset.manifest["features"] |= lists | {"size": {"dtype": "float32", "shape": []}}
    dataset.manifest["image"] |= {"size": [*size], "mode": "shortest" if varies else "crop"}
    boxes: list[Any] = []

    def features_of(number):
        place = number % each
        own = (size[0] + 8 * place, size[1] - 5 * place) if varies else size
        encoded, box = _picture(number, own)
        xmin, ymin, xmax, ymax = box
        kind = kinds[xmax - xmin > ymax - ymin].encode()
        whole = (0.0, 1.0, 0.0, 1.0)
        rows: list[Any] = [(*whole, b"crowd")] * (crowd * (place == 2))
        rows += [(xmin, xmax, ymin, ymax, kind)] * (place > 0) + [(*whole, b"wide")] * (place == 1)
        names = (*BOX_FEATURES, BOX_CLASS_FEATURE)
        boxes.append(box)
        sides: dict[str, Any] = {side: [row[i] for row in rows] for i, side in enumerate(names)}
        return sides | {"image/encoded": [encoded], "size": [(xmax - xmin) * (ymax - ymin)]}

    dataset.change_records(features_of)
    return folder, boxes[: 3 * each]
