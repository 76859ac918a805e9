"""Pictures made on the spot, and ways to look at what became of them."""

import io
import pathlib
import random

import pillow_heif
import pytest
from PIL import Image, ImageChops, ImageDraw, ImageStat

from imageshards.errors import ImageError
from imageshards.images.encode import EncodedImage, encode_image
from imageshards.images.options import ImageOptions
from scripts.make_demo_images import STORED

pillow_heif.register_heif_opener()  # so that `saved` writes HEIC

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


def lossless_jpeg(side: int = 512) -> bytes:
    """A legal lossless (SOF3) JPEG, grey, of one value: each difference is one bit, 0."""
    return (
        b"\xff\xd8\xff\xc3\0\x0b\x08" + side.to_bytes(2) * 2 + b"\x01\x01\x11\0"
        b"\xff\xc4\0\x14\0\x01" + bytes(16) + b"\xff\xda\0\x08\x01\x01\0\x01\0\0"
        + bytes(side * side // 8) + b"\xff\xd9"
    )  # fmt: skip


def flat(mode: str, colour: float | tuple[int, ...]) -> Image.Image:
    return Image.new(mode, (24, 24), colour)


def animation(kind: str) -> bytes:
    red, blue = flat("RGB", (200, 0, 0)), flat("RGB", (0, 0, 200))
    return saved(red, kind, save_all=True, append_images=[blue])


def code_of(data: bytes, options: ImageOptions = SMALL) -> str:
    with pytest.raises(ImageError) as caught:
        encode_image(data, options)
    assert caught.value.message
    return caught.value.code


def draw_photos(folder: pathlib.Path, count: int = 26) -> None:
    """`cat.N.jpg` and `dog.N.jpg`, of the sizes that cameras and web sites give photos."""
    sizes = [(500, 375), (320, 240), (375, 499), (1050, 702), (144, 175)]
    for number in range(count):
        width, height = sizes[number % len(sizes)]
        hue, saturation, value = scene(width // 2, height // 2).convert("HSV").split()
        turned = hue.point(lambda x, by=9 * number: (x + by) % 256)
        picture = Image.merge("HSV", (turned, saturation, value)).convert("RGB")
        name = f"{'dog' if number % 2 else 'cat'}.{number}.jpg"
        # Magnified, as a photo has no edges of one pixel.
        photo = picture.resize((width, height), Image.Resampling.BICUBIC)
        (folder / name).write_bytes(saved(photo, quality=92))


def stored(upright: Image.Image, orientation: int) -> Image.Image:
    """A picture as it lies in a file that an EXIF orientation turns upright."""
    return upright.transpose(STORED[orientation]) if orientation in STORED else upright


def draw_orientations(folder: pathlib.Path) -> None:
    """Two pictures in all nine EXIF orientations, 0 to 8: upright they are alike."""
    for name, width, height in (("Landscape", 225, 150), ("Portrait", 150, 225)):
        upright = scene(width, height).resize((8 * width, 8 * height), Image.Resampling.BICUBIC)
        for orientation in range(9):
            tag = Image.Exif()
            tag[0x0112] = orientation
            data = saved(stored(upright, orientation), quality=92, exif=tag)
            (folder / f"{name}_{orientation}.jpg").write_bytes(data)


def draw_broken(folder: pathlib.Path) -> None:
    """Files of all kinds that try a JPEG decoder, some of which one can decode."""
    grey, size_at = saved(scene().convert("L")), JPEG.index(b"\xff\xc0") + 5
    kinds = {
        "baseline": JPEG, "progressive": saved(scene(), progressive=True), "grey": grey,
        "cmyk": saved(scene().convert("CMYK")), "restarts": saved(scene(), restart_marker_blocks=4),
    }  # fmt: skip
    files = {
        "empty": b"", "text": b"these are words", "start": JPEG[:2], "zeros": bytes(500),
        "absurd size": JPEG[:size_at] + b"\xff\xff\xff\xff" + JPEG[size_at + 4 :],
        "no size": JPEG[:size_at] + bytes(4) + JPEG[size_at + 4 :],
        "two": JPEG + JPEG, "noise behind": JPEG + bytes(range(256)), "png": saved(scene(), "PNG"),
        "lossless": lossless_jpeg(64),
    }  # fmt: skip
    rng = random.Random(1)
    for kind, data in kinds.items():
        # In its entropy-coded data: libjpeg only warns, and what follows is shifted or grey.
        middle = (data.index(b"\xff\xda") + len(data)) // 2
        files[f"{kind} with a marker"] = data[:middle] + b"\xff\xd3" + data[middle + 2 :]
        for tenth in range(1, 10):
            files[f"{kind} cut at {tenth}"] = data[: len(data) * tenth // 10]
        for number in range(8):
            garbled = bytearray(data)
            # In the head (odd numbers), where tables are, or anywhere.
            for _ in range(4):
                garbled[rng.randrange(2, 300 if number % 2 else len(data))] = rng.randrange(256)
            files[f"{kind} garbled {number}"] = bytes(garbled)
    for name, data in files.items():
        (folder / f"{name}.jpg").write_bytes(data)
