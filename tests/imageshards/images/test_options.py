import dataclasses

from imageshards.images.options import ImageOptions
from imageshards.manifest import Image

OTHER = ImageOptions(
    height_px=20, width_px=30, resize_mode="pad", filter="box", quality=80, subsampling="4:4:4",
    colorspace="grey", background=(1, 2, 3), only_shrink=True, max_pixels=5, max_bytes=6,
    bbox_frame="upright", icc="drop",
)  # fmt: skip


def test_a_manifest_records_every_option():
    default = dataclasses.asdict(ImageOptions())
    assert all(
        value != default[name] is not None for name, value in dataclasses.asdict(OTHER).items()
    )
    for options in (ImageOptions(), OTHER, ImageOptions(resize_mode="none")):
        assert ImageOptions.from_manifest(options.to_manifest()) == options


def test_the_options_of_adopted_records_have_their_size():
    for size, mode, sides in (((20, 30), "exact", (20, 30)), (None, "none", (256, 256))):
        options = ImageOptions.from_manifest(Image(size=size, mode=mode, channels=1))
        assert options.resize_mode == {"exact": "stretch", "none": "none"}[mode]
        assert (options.height_px, options.width_px) == sides
        assert (options.channels, options.icc) == (1, "drop")
