"""Features of a record, and counts that add up in any order."""

from __future__ import annotations

import hashlib
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.options import ImageOptions
from beam_pipeline.planning.refs import ImageRef
from beam_pipeline.shards.record import (
    BOX_FEATURES,
    BYTES_EDGES,
    SIZE_EDGES_PX,
    ShardStats,
    make_features,
    merge_stats,
)
from imageshards.errors import ImageError
from imageshards.manifest import RECORD_FEATURES
from tests.support.builds import jpeg

REF = ImageRef("cat/ä 1.jpg", "/in/cat/ä 1.jpg", "cat")
SMALL = ImageOptions(height_px=20, width_px=20)


def make(ref: ImageRef = REF, options: ImageOptions = SMALL, **save):
    return make_features(ref, jpeg(1, 60, 40, **save), {"cat": 4}, options, False)


def test_a_record_has_the_features_that_the_manifest_promises():
    data = jpeg(1)
    features, encoded = make_features(REF, data, {"cat": 4}, SMALL, False)
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


def test_what_is_no_picture_is_an_image_error():
    with pytest.raises(ImageError):
        make_features(REF, b"text", {"cat": 4}, SMALL, False)


def boxes(*rows: tuple[float, float, float, float], **more: list) -> ImageRef:
    columns = {name: [row[i] for row in rows] for i, name in enumerate(BOX_FEATURES)}
    return REF._replace(columns={**columns, **more})


def test_boxes_follow_the_crop_and_those_out_of_sight_leave_with_their_labels():
    # 60 x 40 cropped to its centre: x in 1/6 .. 5/6 is seen.
    ref = boxes(
        (0.5, 0.75, 0.0, 0.5), (0.0, 0.1, 0.0, 1.0), (0.0, 1.0, 0.25, 1.0),
        **{"image/object/class/label": [7, 8, 9], "tokens": [1, 2, 3], "image/object/id": [1]},
    )  # fmt: skip
    features, _ = make(ref)
    found = [features[name] for name in BOX_FEATURES]
    expected = [[0.5, 0.0], [0.875, 1.0], [0.0, 0.25], [0.5, 1.0]]
    for values, wanted in zip(found, expected, strict=True):
        assert values == pytest.approx(wanted)
    assert features["image/object/class/label"] == [7, 9]
    assert features["tokens"] == [1, 2, 3]
    assert features["image/object/id"] == [1]


def test_no_box_and_no_picture_column_stay_as_they_are():
    features, _ = make(boxes(age=[1.5]))
    assert [features[name] for name in BOX_FEATURES] == [[], [], [], []]
    assert features["age"] == [1.5]


def stats_of(widths: list[int], sums: list[list[int]] | None) -> ShardStats:
    stats = ShardStats()
    for width in widths:
        stats.formats["JPEG"] = stats.formats.get("JPEG", 0) + 1
        stats.source_width_px[width] += 1
    stats.pixel_sums = [list(channel) for channel in sums or []]
    return stats


TRIPLES = st.lists(st.integers(0, 9), min_size=3, max_size=3)
STATS = st.builds(
    stats_of,
    st.lists(st.integers(0, len(SIZE_EDGES_PX) - 1), max_size=5),
    st.none() | st.lists(TRIPLES, min_size=3, max_size=3),
)


@given(st.lists(STATS, max_size=6), st.randoms())
def test_counts_add_up_in_any_order_and_grouping(found, random):
    total = merge_stats(found)
    random.shuffle(found)
    cut = random.randrange(len(found) + 1)
    again = merge_stats([merge_stats(found[:cut]), merge_stats(found[cut:])])
    assert again == total
    assert sum(total.source_width_px) == sum(total.formats.values())


def test_merging_leaves_its_parts_as_they_were():
    part = stats_of([1], [[1, 2, 3]] * 3)
    merge_stats([part, part])
    assert part == stats_of([1], [[1, 2, 3]] * 3)


def test_sizes_are_counted_in_the_bin_that_begins_at_or_below_them():
    stats = ShardStats()
    for width, height in ((60, 40), (64, 63), (9000, 1)):
        data = jpeg(1, width, height)
        stats.add(make_features(REF, data, {"cat": 0}, SMALL, False)[1], 1000)
    assert dict(zip(SIZE_EDGES_PX, stats.source_width_px, strict=True)) == {
        **dict.fromkeys(SIZE_EDGES_PX, 0), 0: 1, 64: 1, 8192: 1,
    }  # fmt: skip
    assert stats.source_height_px[0] == 3
    assert stats.record_bytes[BYTES_EDGES.index(1000)] == 3
    assert stats.formats == {"JPEG": 3}


def test_mean_and_deviation_are_of_the_pixels():
    stats = ShardStats()
    values: list[list[int]] = [[], [], []]
    for seed in range(3):
        _, encoded = make_features(REF, jpeg(seed), {"cat": 0}, SMALL, True)
        stats.add(encoded, 1)
        assert encoded.pixel_sums is not None
        for channel, (pixels, total, _) in enumerate(encoded.pixel_sums):
            assert pixels == 400
            values[channel].append(total)
    means, deviations = stats.mean_and_std()
    for mean, totals in zip(means, values, strict=True):
        assert mean == pytest.approx(statistics.fmean(totals) / 400 / 255, abs=1e-6)
    assert all(0 < deviation < 0.5 for deviation in deviations)


def test_mean_and_deviation_of_known_sums():
    # Pixels 0, 0, 255, 255.
    stats = ShardStats(pixel_sums=[[4, 510, 2 * 255**2]])
    assert stats.mean_and_std() == ([0.5], [0.5])
    assert ShardStats(pixel_sums=[[3, 30, 300]]).mean_and_std() == (
        [round(10 / 255, 6)], [0.0],
    )  # fmt: skip
    assert ShardStats().mean_and_std() == ([], [])
    assert not any(map(math.isnan, stats.mean_and_std()[0]))
