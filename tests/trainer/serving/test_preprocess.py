import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from imageshards.images import geometry
from imageshards.images.encode import encode_image
from imageshards.images.geometry import exif_orientation
from imageshards.images.options import RESIZE_MODES, ImageOptions
from tests.support.pictures import lossless_jpeg, saved, scene
from trainer.serving import preprocess

ENTRY = st.tuples(
    st.sampled_from([0x0112, 0x010F, 0x011A]),
    st.sampled_from([1, 3, 4, 9]),
    st.integers(0, 10) | st.integers(0, 2**32 - 1),
)
orientation = tf.function(preprocess.orientation, [tf.TensorSpec((), tf.string)], autograph=False)
# The most pixels that are off, and by how much.
FILTERS = {
    "nearest": (0, 0), "bicubic": (0.002, 1), "lanczos": (0.002, 1), "bilinear": (0.02, 1),
    "box": (0.15, 128),
}  # fmt: skip
NOT_DECODED = {
    "bilevel png": saved(scene().convert("1"), "PNG"), "tiff": saved(scene(), "TIFF"),
    "few colours": saved(scene().quantize(12), "PNG"), "avif": saved(scene(), "AVIF"),
    "palette bmp": saved(scene().convert("P"), "BMP"), "lossless jpeg": lossless_jpeg(64),
    "bilevel bmp": saved(scene().convert("1"), "BMP"),
}  # fmt: skip


def with_exif(block: bytes, before: bytes = b"") -> bytes:
    """The head of a JPEG with an EXIF segment."""
    body = b"Exif\0\0" + block
    size = struct.pack(">H", len(body) + 2)
    return b"\xff\xd8" + before + b"\xff\xe1" + size + body + b"\xff\xda"


def tiff(order: str, entries: list[tuple[int, int, int]], offset: int = 8) -> bytes:
    """A TIFF header and its directory: (tag, type, value) each."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    parts = [mark, struct.pack(order + "L", offset), bytes(offset - 8),
             struct.pack(order + "H", len(entries))]  # fmt: skip
    for tag, kind, value in entries:
        field = {1: "B3x", 3: "Hxx", 4: "L"}.get(kind, "Hxx")
        limit = {1: 255, 4: 2**32 - 1}.get(kind, 65535)
        parts.append(struct.pack(order + "HHL" + field, tag, kind, 1, value & limit))
    return b"".join(parts)


@settings(max_examples=150)
@given(st.sampled_from("<>"), st.lists(ENTRY, max_size=4), st.integers(8, 20))
def test_orientation_is_what_the_builder_finds(order, entries, offset):
    block = tiff(order, entries, offset)
    assert int(orientation(tf.constant(with_exif(block)))) == exif_orientation(block)


@settings(max_examples=150)
@given(st.binary(max_size=40), st.integers(0, 60))
def test_orientation_of_random_bytes_is_valid(noise: bytes, keep: int) -> None:
    block = tiff(">", [(0x0112, 3, 6)])
    for data in (noise, b"\xff\xd8" + noise, with_exif(block)[:keep], with_exif(noise)):
        assert 1 <= int(orientation(tf.constant(data))) <= 8


def test_the_exif_segment_is_found_after_others() -> None:
    long = b"\xff\xe0" + struct.pack(">H", 60_000) + bytes(59_998)
    for before in (b"", b"\xff\xe1\x00\x08Other\0", long):
        data = with_exif(tiff("<", [(0x010F, 4, 1), (0x0112, 3, 8)]), before)
        assert int(orientation(tf.constant(data))) == 8


@settings(max_examples=60)
@given(
    st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 600), st.integers(1, 600),
    st.sampled_from(RESIZE_MODES), st.booleans(),
)  # fmt: skip
def test_the_geometry_is_the_builders_layout(width, height, wide, tall, mode, only_shrink):
    tall = wide if mode == "shortest" else tall
    options = ImageOptions(height_px=tall, width_px=wide, resize_mode=mode, only_shrink=only_shrink)
    layout = geometry.canvas_layout(width, height, options)
    found = preprocess.resize_geometry(tf.constant(height), tf.constant(width), options)
    assert tuple(float(x) for x in found.crop) == pytest.approx(layout.crop, abs=1e-9)
    assert tuple(int(x) for x in found.content) == layout.content[::-1]
    assert tuple(int(x) for x in found.canvas) == layout.canvas[::-1]
    assert float(found.shrink) == pytest.approx(layout.shrink)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_resampling_is_pillows(name: str, channels: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (61, 83, channels), np.uint8)
    image = Image.fromarray(noise.squeeze())
    for size, box in (
        ((40, 30), (0, 0, 83, 61)), ((130, 150), (0, 0, 83, 61)), ((61, 83), (0, 0, 83, 61)),
        ((20, 25), (10.5, 0.25, 72.5, 60.75)), ((64, 64), (11, 0, 72, 61)), ((1, 1), (3, 4, 5, 6)),
    ):  # fmt: skip
        expected = np.asarray(image.resize(size[::-1], Image.Resampling[name.upper()], box=box))
        edges = tuple(tf.constant(float(x), tf.float64) for x in box)
        found = preprocess.resize(tf.constant(noise), size, edges, name).numpy()
        off = np.abs(found.reshape(expected.shape).astype(int) - expected)
        share, most = FILTERS[name]
        assert (off > 0).mean() <= share and off.max() <= most, str((size, box))


MODES = [
    ImageOptions(height_px=64, width_px=64),
    ImageOptions(height_px=20, width_px=30, filter="bilinear"),
    ImageOptions(height_px=90, width_px=300, resize_mode="pad", background=(9, 200, 30)),
    ImageOptions(height_px=50, width_px=50, resize_mode="shortest", filter="lanczos"),
    ImageOptions(height_px=70, width_px=35, resize_mode="stretch", quality=60),
    ImageOptions(resize_mode="none", subsampling="4:4:4"),
    ImageOptions(resize_mode="none"),
    ImageOptions(height_px=256, width_px=200, only_shrink=True),
    ImageOptions(height_px=40, width_px=64, resize_mode="pad", colorspace="grey"),
    ImageOptions(height_px=33, width_px=33, filter="nearest"),
]


@pytest.mark.parametrize("options", MODES, ids=lambda o: f"{o.resize_mode}-{o.filter}-{o.quality}")
@pytest.mark.one_row
def test_records_made_in_the_graph_are_the_builders(options: ImageOptions) -> None:
    make = tf.function(
        lambda data: preprocess.record_jpeg(data, options),
        [tf.TensorSpec((), tf.string)], autograph=False,
    )  # fmt: skip
    # Small, and large enough to be decoded at 1/2, 1/4 and 1/8 of its size, sides odd.
    for number, (width, height) in enumerate([(160, 120), (331, 221), (801, 1203), (23, 17)]):
        tag = Image.Exif()
        tag[0x0112] = 1 + (3 * number + 5) % 8
        data = saved(scene(width, height), quality=95, exif=tag)
        expected = tf.io.decode_jpeg(encode_image(data, options).data).numpy()
        found = tf.io.decode_jpeg(make(tf.constant(data))).numpy()
        off = np.abs(found.astype(int) - expected)
        assert off.max() <= 8 and off.mean() < 1, f"{width}x{height}"


def see_through() -> Image.Image:
    picture = scene().convert("RGBA")
    picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    return picture


OTHERS = {
    "png": saved(scene(), "PNG"), "grey": saved(scene().convert("L"), "PNG"),
    "palette": saved(scene().convert("P"), "PNG"), "alpha": saved(see_through(), "PNG"),
    "webp": saved(scene(), "WEBP"), "alpha-webp": saved(see_through(), "WEBP", lossless=True),
    "animated-webp": saved(
        see_through(), "WEBP", lossless=True, save_all=True, append_images=[see_through().rotate(9)]
    ),
    "bmp": saved(scene(), "BMP"), "gif": saved(scene().convert("P"), "GIF"),
    "grey-jpeg": saved(scene().convert("L")), "progressive": saved(scene(), progressive=True),
    "cmyk": saved(scene().convert("CMYK"), quality=95),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_other_formats_are_decoded_as_the_builder_does(kind: str) -> None:
    options = ImageOptions(height_px=64, width_px=64, background=(200, 10, 100), quality=100,
                           subsampling="4:4:4")  # fmt: skip
    expected = np.asarray(Image.open(io.BytesIO(encode_image(OTHERS[kind], options).data)))
    found = preprocess.record_jpeg(tf.constant(OTHERS[kind]), options).numpy()
    difference = np.abs(np.asarray(Image.open(io.BytesIO(found))).astype(int) - expected)
    assert difference.max() <= 6


@pytest.mark.parametrize("kind", NOT_DECODED)
def test_pictures_that_tensorflow_decodes_wrongly_are_an_error(kind: str) -> None:
    encode_image(NOT_DECODED[kind], ImageOptions())  # the builder takes it
    with pytest.raises(tf.errors.InvalidArgumentError):
        preprocess.record_jpeg(tf.constant(NOT_DECODED[kind]), ImageOptions())


def test_a_broken_or_too_large_picture_is_an_error() -> None:
    for data in (b"", b"no picture at all", saved(scene())[:600]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            preprocess.record_jpeg(tf.constant(data), ImageOptions())
    for kind in ("JPEG", "PNG"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="more than 100 pixels"):
            preprocess.record_jpeg(tf.constant(saved(scene(), kind)), ImageOptions(max_pixels=100))
