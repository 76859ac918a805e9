"""Options of pictures, as a manifest tells them."""

import dataclasses

import pytest

from imageshards.images.options import ImageOptions
from imageshards.manifest import Image

OTHER = ImageOptions(
    height_px=20, width_px=30, resize_mode="pad", filter="box", quality=80, subsampling="4:4:4",
    colorspace="grey", background=(1, 2, 3), only_shrink=True, max_pixels=5, max_bytes=6,
    bbox_frame="upright", icc="drop",
)  # fmt: skip


def test_a_manifest_records_every_option():
    default = dataclasses.asdict(ImageOptions())
    assert all(value != default[name] for name, value in dataclasses.asdict(OTHER).items())
    for options in (ImageOptions(), OTHER):
        assert ImageOptions.from_manifest(options.to_manifest()) == options


@pytest.mark.parametrize(
    ("image", "mode", "sides"),
    [
        (Image(size=(20, 30), mode="exact", channels=1), "stretch", (20, 30)),
        (Image(size=None, mode="none", channels=1), "none", (256, 256)),
    ],
)
def test_the_options_of_adopted_records_have_their_size(image, mode, sides):
    options = ImageOptions.from_manifest(image)
    assert (options.resize_mode, options.height_px, options.width_px) == (mode, *sides)
    assert options.channels == 1
    assert options.icc == "drop"
