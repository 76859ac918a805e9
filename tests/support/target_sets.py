"""Pictures of one colour, and columns that are functions of it: something to find for a model."""

import pathlib
from typing import Any

import numpy as np
from PIL import Image

from imageshards.example import decode_example
from imageshards.manifest.file import load_manifest
from imageshards.tfrecord import read_records
from tests.support.dataset_factory import Dataset
from tests.support.pictures import opened_bytes, saved

COLUMNS: dict[str, dict[str, Any]] = {
    "bright": {"dtype": "float32", "shape": []},
    "one": {"dtype": "float32", "shape": [1]},
    "rgb": {"dtype": "float32", "shape": [3]},
    "shade": {"dtype": "int64", "shape": []},
    "name": {"dtype": "string", "shape": []},
    "channels": {"dtype": "int64", "shape": None},
    "words": {"dtype": "string", "shape": None},
    "weight": {"dtype": "float32", "shape": []},
    "gap": {"dtype": "float32", "shape": []},
    "hole": {"dtype": "float32", "shape": [2]},
    "far": {"dtype": "float32", "shape": []},
    "lost": {"dtype": "float32", "shape": []},
    "wide": {"dtype": "float32", "shape": [17]},
    "price": {"dtype": "float32", "shape": []},
}
# Of `channels` and `words`, in the order of the classes.
CHANNELS, WORDS = (3, 5, 20), ("blue", "green", "red")


def columns_of(number: int) -> dict[str, Any]:
    """A picture of the colour of seed `number`, and what the columns say of it."""
    colour = np.random.default_rng(number).integers(0, 256, 3)
    flat = np.broadcast_to(colour.astype(np.uint8), (16, 16, 3))
    encoded = saved(Image.fromarray(flat), quality=95)
    rgb = np.asarray(opened_bytes(encoded)).reshape(-1, 3).mean(0) / 255
    high = np.flatnonzero(rgb > 0.5).tolist()
    shade = int(rgb[0] * 3)
    return {
        "image/encoded": [encoded],
        "bright": [float(rgb.mean())], "one": [float(rgb[0])], "rgb": rgb.tolist(),
        "shade": [(-5, 9, 10)[shade]], "name": [(b"dark", b"grey", b"light")[shade]],
        # Those that are high, the first of them twice.
        "channels": [CHANNELS[i] for i in (*high[:1], *high)],
        "words": [WORDS[2 - i].encode() for i in high],
        "weight": [number % 3 / 2], "price": [float(round(1e5 + 4e5 * rgb.mean()))],
        "far": [float("inf") if number == 6 else 1.0],
        # Record 4 says that values are missing, record 5 lacks them.
        "gap": {4: [float("nan")], 5: []}.get(number, [1.0]), "lost": [float("nan")],
        "wide": [float(number)] * 16 + [-1.0],
        "hole": {4: [1.0, float("nan")], 5: [1.0]}.get(number, [1.0, 1.0]),
    }  # fmt: skip


def make_targets(folder: pathlib.Path, shards: dict[str, int], per_shard: int = 8) -> pathlib.Path:
    """A dataset with these columns; record i has the colour of seed i."""
    dataset = Dataset(folder, shards, per_shard)
    dataset.manifest["features"] |= COLUMNS
    dataset.change_records(columns_of)
    return folder


def read_columns(folder: pathlib.Path, split: str) -> list[dict[str, Any]]:
    """The features of each record of a split, read alone."""
    files = [shard.file for shard in load_manifest(str(folder)).splits[split].shards]
    records = [record for file in files for record in read_records(str(folder / file))]
    return [dict(decode_example(record.payload)) for record in records]
