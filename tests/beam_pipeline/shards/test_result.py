"""Counts of shards add up in any order."""

from __future__ import annotations

import copy
import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.options import ImageOptions
from beam_pipeline.shards.result import (
    BYTES_EDGES,
    SIZE_EDGES_PX,
    Reject,
    ShardResult,
    ShardStats,
    merge_stats,
)
from imageshards.images.encode import encode_image
from imageshards.index import IndexRows, index_table
from imageshards.manifest import RECORD_FEATURES
from tests.support.builds import jpeg
from tests.support.dataset_factory import features_of
from tests.support.strangers import changed

SMALL = ImageOptions(height_px=20, width_px=20)


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
    before = copy.deepcopy(found)
    merge_stats(found)
    assert found == before
    random.shuffle(found)
    cut = random.randrange(len(found) + 1)
    again = merge_stats([merge_stats(found[:cut]), merge_stats(found[cut:])])
    assert again == total
    assert sum(total.source_width_px) == sum(total.formats.values())


def test_sizes_are_counted_in_the_bin_that_begins_at_or_below_them():
    stats = ShardStats()
    for width, height in ((60, 40), (64, 63), (9000, 1)):
        data = jpeg(1, width, height)
        stats.add(0, 1000, (), encode_image(data, SMALL))
    assert dict(zip(SIZE_EDGES_PX, stats.source_width_px, strict=True)) == {
        **dict.fromkeys(SIZE_EDGES_PX, 0), 0: 1, 64: 1, 8192: 1,
    }  # fmt: skip
    assert stats.source_height_px[0] == 3
    assert stats.record_bytes[BYTES_EDGES.index(1000)] == 3
    assert (stats.formats, stats.sources) == ({"JPEG": 3}, {"0": 3})


def test_mean_and_deviation_of_known_sums():
    # Pixels 0, 0, 255, 255.
    stats = ShardStats(pixel_sums=[[4, 510, 2 * 255**2]])
    assert stats.mean_and_std() == ([0.5], [0.5])
    assert ShardStats(pixel_sums=[[3, 30, 300]]).mean_and_std() == (
        [round(10 / 255, 6)], [0.0],
    )  # fmt: skip
    assert ShardStats().mean_and_std() == ([], [])
    assert not any(map(math.isnan, stats.mean_and_std()[0]))


def result() -> ShardResult:
    """That of a shard of two records, one of which an image became, and a reject."""
    rows = IndexRows()
    for number in range(2):
        rows.add(features_of(number, 0), 100, 1000)
    reject = Reject("a.jpg", "/a.jpg", "cat", "train", "empty", "decode", "it is empty")
    return ShardResult(
        name="train-00000-of-00001", split="train", group="", num_records=2, num_bytes=200,
        sha256="0" * 64, classes={"cat": 2}, num_rejects=1, digest="d", rows=rows, read_bytes=9,
        rejects=[reject], stats=stats_of([1, 2], [[1, 2, 3]] * 3),
    )  # fmt: skip


@given(changed(json.loads(result().to_json())))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_any_file_beside_a_shard_is_a_result_that_a_commit_can_use_or_none(raw):
    try:
        found = ShardResult.from_json(json.dumps(raw))
    except ValueError:
        return
    merge_stats([found.stats, result().stats]).mean_and_std()
    table = index_table(found.rows, found.split, f"{found.name}.tfrecord", RECORD_FEATURES)
    assert table.num_rows == found.num_records == found.num_images - found.num_rejects
    assert ShardResult.from_json(found.to_json()) == found
