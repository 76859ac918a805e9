"""With the mode `none` a JPEG that needs no change keeps its bytes; any other is encoded."""

import dataclasses

import pytest
from PIL import Image

from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from imageshards.jpeg import is_whole
from tests.support.icc_profiles import DISPLAY_P3, SRGB, rgb_profile
from tests.support.pictures import JPEG, lossless_jpeg, saved, scene

pytestmark = pytest.mark.process

KEEPS = ImageOptions(resize_mode="none")
GREY = dataclasses.replace(KEEPS, colorspace="grey")
DROPS = dataclasses.replace(KEEPS, icc="drop")
P3, SRGB_PROFILE = rgb_profile(DISPLAY_P3), rgb_profile(SRGB)


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112], tags[0x010E] = orientation, "made by hand"
    return tags


MPO = saved(scene(), "MPO", save_all=True, append_images=[scene()])
L = saved(scene().convert("L"))
COPIED = {
    "plain": (JPEG, KEEPS), "progressive": (saved(scene(), progressive=True), KEEPS),
    "restart markers": (saved(scene(), restart_marker_blocks=4), KEEPS),
    "upright by EXIF": (saved(scene(), exif=exif(1), comment=b"kept"), KEEPS),
    "no orientation by EXIF": (saved(scene(), exif=exif(0)), KEEPS),
    "sRGB profile": (saved(scene(), icc_profile=SRGB_PROFILE), KEEPS), "grey": (L, GREY),
    "fill bytes before the end": (JPEG[:-2] + b"\xff\xff\xd9", KEEPS),
    "4:4:4": (saved(scene(), quality=100, subsampling="4:4:4"), KEEPS),
    "Adobe RGB channels": (saved(scene(), keep_rgb=True), KEEPS),
}  # fmt: skip
ENCODED = {
    "turned": (saved(scene(), exif=exif(6)), KEEPS), "grey as RGB": (L, KEEPS),
    "RGB as grey": (JPEG, GREY), "CMYK": (saved(scene().convert("CMYK")), KEEPS),
    "wide gamut": (saved(scene(), icc_profile=P3), KEEPS),
    "broken profile": (saved(scene(), icc_profile=b"odd"), KEEPS),
    "dropped profile": (saved(scene(), icc_profile=SRGB_PROFILE), DROPS),
    "several pictures": (MPO, KEEPS), "a video behind it": (JPEG + b"\0\0\0\x18ftypmp42", KEEPS),
    "a second JPEG behind it": (JPEG + JPEG, KEEPS), "without its end": (JPEG[:-2], KEEPS),
    "PNG": (saved(scene(), "PNG"), KEEPS),
    "quality given": (JPEG, dataclasses.replace(KEEPS, quality=90)),
    "subsampling given": (JPEG, ImageOptions(resize_mode="none", subsampling="4:2:0")),
    "another mode": (JPEG, ImageOptions(height_px=120, width_px=160)),
}  # fmt: skip


@pytest.mark.parametrize("want_sums", [False, True])
@pytest.mark.parametrize("kind", COPIED)
def test_a_jpeg_that_needs_no_change_keeps_its_bytes_and_is_described_as_if_encoded(
    kind, want_sums
):
    data, options = COPIED[kind]
    found = encode_image(data, options, want_sums=want_sums)
    encoded = encode_image(data, dataclasses.replace(options, quality=90), want_sums=want_sums)
    assert found.data is data and encoded.data != data
    assert dataclasses.replace(found, data=b"") == dataclasses.replace(encoded, data=b"")


@pytest.mark.parametrize("kind", ENCODED)
def test_any_other_picture_is_encoded_as_it_always_was(kind):
    data, options = ENCODED[kind]
    found = encode_image(data, options)
    assert found == encode_image(data, dataclasses.replace(options, quality=90))
    assert found.data != data


def test_a_progressive_jpeg_without_its_last_scans_is_not_whole():
    data = saved(scene(), progressive=True)
    last = data.rindex(b"\xff\xda")
    cut = data[:last] + b"\xff\xd9"
    assert is_whole(data, [1, 2, 3]) and not is_whole(cut, [1, 2, 3])
    assert encode_image(cut, KEEPS).data != cut


def test_frames_that_few_decoders_read_are_not_copied():
    data = lossless_jpeg(64)
    assert encode_image(data, GREY).data != data
