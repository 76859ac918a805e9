"""Pictures made on the spot, and ways to look at what became of them."""

from __future__ import annotations

import io

import pytest
from PIL import Image, ImageChops, ImageDraw, ImageStat

from beam_pipeline.images.encode import EncodedImage, encode_image
from beam_pipeline.options import ImageOptions
from imageshards.errors import ImageError

SMALL = ImageOptions(height_px=64, width_px=64)
EXACT = ImageOptions(resize_mode="none", quality=100, subsampling="4:4:4")


def saved(picture: Image.Image, kind: str = "JPEG", **params: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **params)
    return buffer.getvalue()


def scene(width: int = 160, height: int = 120) -> Image.Image:
    """Something with colour, edges and texture, no two corners alike."""
    ramp = Image.linear_gradient("L").resize((width, height))
    picture = Image.merge("RGB", (ramp, ramp.transpose(Image.Transpose.ROTATE_180), ramp))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((width // 8, height // 8, width // 2, height // 2), fill=(220, 30, 40))
    for x in range(0, width, 6):
        draw.line((x, height * 3 // 4, x, height), fill=(250, 250, 20), width=2)
    return picture


JPEG = saved(scene(), quality=95)


def opened(encoded: EncodedImage) -> Image.Image:
    return opened_bytes(encoded.data)


def opened_bytes(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    picture.load()
    return picture


def colour_of(data: bytes, options: ImageOptions = EXACT) -> tuple[int, ...]:
    """The colour in the middle of the result."""
    picture = opened(encode_image(data, options))
    middle = picture.getpixel((picture.width // 2, picture.height // 2))
    return middle if isinstance(middle, tuple) else (int(middle or 0),)


def mean_difference(one: Image.Image, other: Image.Image) -> float:
    return max(ImageStat.Stat(ImageChops.difference(one, other)).mean)


def damaged_jpeg(data: bytes = JPEG) -> bytes:
    """A JPEG in whose entropy-coded data a marker stands that does not belong there.

    Pillow decodes it, as libjpeg only warns: what follows is shifted or grey.
    """
    middle = (data.index(b"\xff\xda") + len(data)) // 2
    return data[:middle] + b"\xff\xd3" + data[middle + 2 :]


def lossless_jpeg(side: int = 512) -> bytes:
    """A legal lossless (SOF3) JPEG, grey, of one value: each difference is one bit, 0."""
    sides = side.to_bytes(2) * 2
    return (
        b"\xff\xd8\xff\xc3\0\x0b\x08" + sides + b"\x01\x01\x11\0"
        b"\xff\xc4\0\x14\0\x01" + bytes(16) + b"\xff\xda\0\x08\x01\x01\0\x01\0\0"
        + bytes(side * side // 8) + b"\xff\xd9"
    )  # fmt: skip


def flat(mode: str, colour: float | tuple[int, ...]) -> Image.Image:
    return Image.new(mode, (24, 24), colour)


def animation(kind: str) -> bytes:
    return saved(flat("RGB", (200, 0, 0)), kind, save_all=True,
                  append_images=[flat("RGB", (0, 0, 200))])  # fmt: skip


def code_of(data: bytes, options: ImageOptions = SMALL) -> str:
    with pytest.raises(ImageError) as caught:
        encode_image(data, options)
    assert caught.value.message
    return caught.value.code
