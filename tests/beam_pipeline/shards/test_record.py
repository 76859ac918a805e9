"""Features of a record, and the libraries that make its bytes."""

import hashlib
import importlib.metadata
import math

import pytest
from PIL import Image

from beam_pipeline.options import ImageOptions, ShardOptions
from beam_pipeline.planning.refs import ImageRef, ShardUnit
from beam_pipeline.shards.record import byte_versions, check_versions, make_record
from beam_pipeline.shards.result import ShardStats
from imageshards.errors import UserError
from imageshards.example import Values, decode_example
from imageshards.images.encode import encode_image
from imageshards.manifest import BOX_FEATURES, RECORD_FEATURES
from tests.support.builds import jpeg

REF = ImageRef("cat/ä 1.jpg", "/in/cat/ä 1.jpg", "cat")
SMALL = ImageOptions(height_px=20, width_px=20)


def make(
    ref: ImageRef = REF,
    data: bytes = jpeg(1, 60, 40),
    image: ImageOptions = SMALL,
    stats: ShardStats | None = None,
) -> dict[str, Values]:
    unit = ShardUnit("train", 0, 1, {"cat": 4, "dog": 7}, [ref])
    stats = ShardStats() if stats is None else stats
    record = make_record(ref, data, unit, ShardOptions(image=image), stats, 0)
    assert decode_example(record.payload).keys() == record.features.keys()
    return record.features


def test_a_record_has_the_features_that_the_manifest_promises():
    data = jpeg(1)
    features, encoded = make(data=data), encode_image(data, SMALL)
    assert features.keys() == RECORD_FEATURES.keys()
    assert features == {
        "image/encoded": [encoded.data],
        "image/format": [b"JPEG"],
        "image/height": [20],
        "image/width": [20],
        "image/channels": [3],
        "image/colorspace": [b"RGB"],
        "image/class/label": [4],
        "image/class/text": [b"cat"],
        "image/filename": ["cat/ä 1.jpg".encode()],
        "image/key/sha256": [hashlib.sha256(data).hexdigest().encode()],
    }


def boxes(*rows: tuple[float, float, float, float], **more: list) -> ImageRef:
    columns = {name: [row[i] for row in rows] for i, name in enumerate(BOX_FEATURES)}
    return REF._replace(columns={**columns, **more})


def test_boxes_follow_the_crop_and_hidden_boxes_leave_with_their_labels():
    # 60 x 40 cropped to its centre: x in 1/6 .. 5/6 is seen.
    ref = boxes(
        (0.5, 0.75, 0.0, 0.5), (0.0, 0.1, 0.0, 1.0), (0.0, 1.0, 0.25, 1.0),
        **{"image/object/class/label": [7, 8, 9], "tokens": [1, 2, 3], "image/object/id": [1]},
    )  # fmt: skip
    features = make(ref)
    found = [features[name] for name in BOX_FEATURES]
    expected = [[0.5, 0.0], [0.875, 1.0], [0.0, 0.25], [0.5, 1.0]]
    for values, wanted in zip(found, expected, strict=True):
        assert values == pytest.approx(wanted)
    assert features["image/object/class/label"] == [7, 9]
    assert features["tokens"] == [1, 2, 3]
    assert features["image/object/id"] == [1]


NAN = math.nan
# Sides of boxes on a picture of 60 x 40 pixels, which EXIF may turn to 40 x 60.
SEEN = [(10, 20, 10, 20), (50, 90, 30, 70), (-5, 1, -5, 1)]
UNSEEN = [
    (60, 70, 0, 40), (-9, 0, 0, 40), (0, 30, 41, 59), (0, 30, -9, 0),  # outside
    (5, 5, 0, 40), (5, 9, 7, 7), (9, 5, 0, 9), (NAN, 5, 0, 9),  # without an area
]  # fmt: skip


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_that_show_nothing_leave_with_their_labels_and_are_counted(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(1, 60, 40, exif=exif)
    image = ImageOptions(height_px=20, width_px=20, resize_mode="stretch")
    for last in (*SEEN, *UNSEEN):
        is_seen = last in SEEN
        names = ("cat",) * len(SEEN) + ("dog",)
        ref = boxes(*SEEN, last, **{"image/object/class/text": [n.encode() for n in names]})
        ref = ref._replace(label=("cat", "dog"), in_pixels=True, box_labels=names)
        stats = ShardStats()
        features = make(ref, data, image, stats)
        assert ("boxes_dropped" in stats.of("notes")) != is_seen
        kept = [b"cat"] * len(SEEN) + [b"dog"] * is_seen
        assert features["image/object/class/text"] == kept
        assert features["image/class/labels"] == ([4, 7] if is_seen else [4])
        # Labels that are not those of the boxes stay, and so does the label of a kept box.
        for of_boxes in ((), ("dog",) * len(names)):
            others = make(ref._replace(box_labels=of_boxes), data, image)
            assert others["image/class/labels"] == [4, 7]


def test_a_label_stays_where_only_the_crop_hides_the_box():
    ref = boxes((0.0, 0.1, 0.0, 1.0))._replace(label=("dog",), box_labels=("dog",))
    assert make(ref)["image/class/labels"] == [7]
    upright = ImageOptions(height_px=20, width_px=20, bbox_frame="upright")
    exif = Image.Exif()
    exif[0x0112] = 6
    below, stats = boxes((5, 30, 45, 55))._replace(in_pixels=True), (ShardStats(), ShardStats())
    make(below, jpeg(1, 60, 40, exif=exif), SMALL, stats[0])
    make(below, jpeg(1, 60, 40, exif=exif), upright, stats[1])
    assert ["boxes_dropped" in each.of("notes") for each in stats] == [True, False]


def test_an_image_without_boxes_keeps_its_columns():
    features = make(boxes(age=[1.5]))
    assert [features[name] for name in BOX_FEATURES] == [[], [], [], []]
    assert features["age"] == [1.5]


def test_every_library_that_decodes_a_format_is_among_the_versions(monkeypatch):
    versions = byte_versions()
    assert versions["pillow-heif"] == importlib.metadata.version("pillow-heif")
    assert {"pillow", "libjpeg", "libwebp", "libavif", "libtiff"} <= versions.keys()
    assert all(versions[name][0].isdigit() for name in ("libwebp", "libavif", "libtiff"))

    def version(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    absent = byte_versions()
    assert absent["pillow-heif"] == absent["tensorflow-transform"] == "not installed"
    with pytest.raises(UserError, match=r"pillow-heif \d\S+ here and not installed there"):
        check_versions((*versions.items(), ("of", "this test alone")))


def test_versions_that_differ_are_listed_with_the_remedy():
    same = tuple(byte_versions().items())
    check_versions(same)
    assert byte_versions("convert").keys() - dict(same).keys() == {"littlecms"}
    check_versions(tuple(byte_versions("convert").items()))
    others = r"pillow 1.1.7 here and \S+ there, gone 1 here and none there\).*constraints.txt"
    with pytest.raises(UserError, match=others):
        check_versions((*same, ("pillow", "1.1.7"), ("gone", "1")))
