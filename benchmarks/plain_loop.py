"""Builds shards in a plain loop, as a good engineer would write the loop by hand.

The benchmark `build_vs_loop` compares the builder with this loop. The loop lists and shuffles the
images and deals them to shards, with one process per core. The loop has no plan, no quarantine, no
resume and no manifest. The records are identical to the builder's records, because both programs
encode images with the same function. The module does not import Beam, so that the loop starts as
fast as a custom script.

    python -m benchmarks.plain_loop --input photos/ --output shards/ --num_shards 64
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
from collections.abc import Sequence

from beam_pipeline.options import ImageOptions
from imageshards.example import Values, encode_example
from imageshards.images.encode import encode_image
from imageshards.tfrecord import frame_record

Image = tuple[str, str, str, int]
"""Path, key, label and class id of an image."""

Shard = tuple[str, list[Image]]
"""Path and images of a shard."""

OPTIONS = ImageOptions()


def list_images(root: str) -> list[Image]:
    """Lists the images below `root/<class>/`."""
    images = []
    for class_id, label in enumerate(sorted(os.listdir(root))):
        folder = os.path.join(root, label)
        images += [(os.path.join(folder, n), f"{label}/{n}", label, class_id)
                   for n in os.listdir(folder)]  # fmt: skip
    return images


def features_of(data: bytes, key: str, label: str, class_id: int) -> dict[str, Values]:
    """Returns the features of a record."""
    encoded = encode_image(data, OPTIONS)
    return {
        "image/encoded": [encoded.data],
        "image/format": [b"JPEG"],
        "image/height": [encoded.height_px],
        "image/width": [encoded.width_px],
        "image/channels": [encoded.channels],
        "image/colorspace": [encoded.colorspace.encode()],
        "image/class/label": [class_id],
        "image/class/text": [label.encode()],
        "image/filename": [key.encode()],
        "image/key/sha256": [hashlib.sha256(data).hexdigest().encode()],
    }


def write_shard(shard: Shard) -> int:
    """Writes a shard and returns the number of records."""
    target, images = shard
    with open(target, "wb", buffering=1 << 20) as out:
        for path, key, label, class_id in images:
            with open(path, "rb") as file:
                data = file.read()
            payload = encode_example(features_of(data, key, label, class_id))
            out.write(frame_record(payload))
    return len(images)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the shards and prints the number of records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--num_shards", type=int, default=64)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args(argv)
    images = list_images(args.input)
    random.Random(0).shuffle(images)
    os.makedirs(args.output)
    shards = [
        (
            os.path.join(args.output, f"train-{i:05d}-of-{args.num_shards:05d}.tfrecord"),
            images[i :: args.num_shards],
        )
        for i in range(args.num_shards)
    ]
    with multiprocessing.Pool(args.workers) as pool:
        print(sum(pool.imap_unordered(write_shard, shards)), "records")
        pool.close()
        pool.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
