"""Our decoder against a full decode and resize, in one process, photo by photo.

Prints one JSON object per round: kind of photo → [our seconds, their seconds].
"""

from __future__ import annotations

import collections
import io
import json
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from PIL import Image

from beam_pipeline.images.encode import encode_image, tune_allocator
from beam_pipeline.options import ImageOptions

OPTIONS = ImageOptions()


def ours(data: bytes) -> bytes:
    """The picture of a record."""
    return encode_image(data, OPTIONS).data


def full_decode(data: bytes) -> bytes:
    """Every pixel decoded, then centre crop and resize by the same filter, then encoded."""
    with Image.open(io.BytesIO(data)) as image:
        picture = image.convert("RGB")
    side = min(picture.size)
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    size = (OPTIONS.width_px, OPTIONS.height_px)
    filter_ = Image.Resampling[OPTIONS.filter.upper()]
    small = picture.resize(size, filter_, box=(left, top, left + side, top + side))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=OPTIONS.quality, subsampling=OPTIONS.subsampling)
    return out.getvalue()


def _seconds(encode: Callable[[bytes], bytes], data: bytes) -> float:
    begun = time.perf_counter()
    encode(data)
    return time.perf_counter() - begun


def main(argv: Sequence[str]) -> int:
    """Measures the photos of the folder `argv[1:]`, `argv[0]` times."""
    tune_allocator()  # for both sides
    photos = [
        (path.name.partition("_")[0], path.read_bytes()) for path in map(pathlib.Path, argv[1:])
    ]
    for _, data in photos[:2]:
        ours(data), full_decode(data)
    for _ in range(int(argv[0])):
        spent: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
        for kind, data in photos:
            spent[kind][0] += _seconds(ours, data)
            spent[kind][1] += _seconds(full_decode, data)
        print(json.dumps(spent))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
