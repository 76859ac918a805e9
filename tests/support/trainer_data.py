"""Small datasets as the contract describes them, drawn here: shapes on a noisy ground."""

import hashlib
import json
import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from PIL import Image, ImageDraw

from imageshards.example import Values, decode_example, encode_example
from imageshards.index import IndexRows, index_table, write_index
from imageshards.tfrecord import read_records, write_records
from tests.support import manifests
from tests.support.manifests import typed_features
from tests.support.pictures import saved

CLASSES = ("circle", "square", "triangle")
RECORD_FEATURES: dict[str, Any] = {
    name: manifests.RECORD_FEATURES[name] for name in ("image/encoded", "image/class/label")
}


def draw_shape(kind, rng, size_px) -> Image.Image:
    """A filled shape of random place, size and colour; `size_px` is (height, width)."""
    height, width = size_px
    ground = rng.integers(0, 256, 3)
    colour = (ground + rng.integers(90, 166, 3)) % 256
    noise = rng.normal(0, 12, (height, width, 3))
    image = Image.fromarray(np.clip(ground + noise, 0, 255).astype(np.uint8))
    radius = float(rng.uniform(0.2, 0.35)) * min(height, width)
    x, y = rng.uniform(radius, width - radius), rng.uniform(radius, height - radius)
    draw = ImageDraw.Draw(image)
    fill = tuple(int(c) for c in colour)
    box = (x - radius, y - radius, x + radius, y + radius)
    if kind == 2:
        draw.polygon([(x, y - radius), (x + radius, y + radius), (x - radius, y + radius)], fill)
    else:
        (draw.rectangle if kind else draw.ellipse)(box, fill=fill)
    return image


# Which features of records an adopted dataset names.
ROLES = {
    "image": "image/encoded", "label": "image/class/label", "text": "image/class/text",
    "filename": "image/filename",
}  # fmt: skip


def make_dataset(
    folder, num_records, *, num_shards=3, size_px=((64, 64),), mode="crop", first_label=0, hot=False
) -> pathlib.Path:
    """Writes shards and `manifest.json`; record i is named `<split>-<i>`, of class i % 3.

    Where `hot` is asked for, a column of this name has a 1 for the class, int64 [3].
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    features = RECORD_FEATURES | ({"hot": {"dtype": "int64", "shape": [3]}} if hot else {})
    splits: dict[str, Any] = {}
    means: list[Any] = []
    for split, count in num_records.items():
        shards: list[list[bytes]] = [[] for _ in range(num_shards)]
        for i in range(count):
            image = draw_shape(i % 3, rng, size_px[i % len(size_px)])
            means.append(np.asarray(image).reshape(-1, 3).mean(0) / 255)
            values: dict[str, Values] = {
                "image/encoded": [saved(image, quality=90)],
                "image/class/label": [i % 3 + first_label],
                "image/filename": [f"{split}-{i}".encode()],
                "image/height": [image.height],
                "image/width": [image.width],
            }
            if hot:
                values["hot"] = [int(i % 3 == k) for k in range(3)]
            shards[i % num_shards].append(encode_example(values))
        told = []
        for k, records in enumerate(shards):
            file = f"{split}-{k:05d}-of-{num_shards:05d}.tfrecord"
            told.append(write_shard(folder, split, file, records, features, CLASSES, first_label))
        splits[split] = {"num_records": count, "shards": told}
    size = size_px[0][0] if size_px[0][0] == size_px[0][1] else size_px[0]
    described = {"size": size, "mode": mode, "channels": 3, "std": [0.27] * 3}
    described["mean"] = np.mean(means, 0).tolist()
    adopted = {"first_label": first_label, "adopted": ROLES} if first_label else {}
    write_manifest(folder, splits=splits, features=features, image=described, **adopted)
    return folder


def write_manifest(folder: pathlib.Path, **changes: Any) -> None:
    manifest = {
        "format_version": 1, "classes": list(CLASSES), "features": RECORD_FEATURES, "listed": 0,
        "rejects": {}, "fingerprint": "0" * 64,
    }  # fmt: skip
    manifests.write_manifest(str(folder), manifest | changes)


def write_shard(
    folder, split, file, records, features, classes=CLASSES, first_label=0, written=None
) -> dict[str, Any]:
    """Writes a shard and its index; what the manifest says of them.

    The shard holds `written`, if given, in place of the records that the index describes.
    """
    payloads = records if written is None else written
    num_bytes = write_records(str(folder / file), payloads)
    rows = IndexRows()
    for number, (record, payload) in enumerate(zip(records, payloads, strict=True)):
        own = decode_example(record)
        place = int(own["image/class/label"][0]) - first_label
        told: dict[str, Any] = {
            "image/filename": [f"{file}#{number}".encode()],
            "image/class/text": [(classes[place] if place < len(classes) else "?").encode()],
            "image/key/sha256": [b"0" * 64],
            "image/width": [1],
            "image/height": [1],
        }
        rows.add(told | own, len(payload) + 16, None)
    index = index_table(rows, split, file, typed_features(features))
    return {
        "file": file,
        "num_records": len(records),
        "num_bytes": num_bytes,
        "sha256": hashlib.sha256((folder / file).read_bytes()).hexdigest(),
        "classes": Counter(rows.columns["class_name"]),
        "index": msgspec.to_builtins(write_index(str(folder), file, index)),
    }


def rewrite_shard(folder: pathlib.Path, file: str, payloads: Sequence[bytes]) -> None:
    """Puts other records into a shard, with rows of the index and a manifest that fit them."""
    raw = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    ((split, entry),) = (one for one in manifests.shards_of(raw) if one[1]["file"] == file)
    old = [record.payload for record in read_records(str(folder / file))]
    rows = [old[place % len(old)] for place in range(len(payloads))]
    raw["splits"][split]["num_records"] += len(payloads) - entry["num_records"]
    described = raw["features"], raw["classes"], raw.get("first_label", 0)
    entry |= write_shard(folder, split, file, rows, *described, payloads)
    edit_manifest(folder, splits=raw["splits"])


def edit_manifest(folder: pathlib.Path, **changes: Any) -> None:
    """Replaces keys of an existing manifest; None removes one."""
    old = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    new = {key: value for key, value in (old | changes).items() if value is not None}
    manifests.write_manifest(str(folder), new)


def assert_same(found: Any, expected: Any) -> None:
    """Checks that nested structures of arrays are equal to the last bit."""
    import tensorflow as tf

    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
