"""Counts of shards add up in any order."""

import contextlib
import copy
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.options import ImageOptions
from beam_pipeline.shards.result import (
    ShardResult,
    ShardStats,
    WrittenFile,
    merge_stats,
)
from imageshards.images.encode import encode_image
from imageshards.manifest import Reject
from imageshards.typed import decode
from tests.support.builds import jpeg
from tests.support.strangers import changed

SMALL = ImageOptions(height_px=20, width_px=20)


NAMES = st.sampled_from(["formats", "rejects", "notes"])
STATS = st.builds(
    ShardStats, st.dictionaries(NAMES, st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)))
)


@given(st.lists(STATS, max_size=6), st.randoms())
def test_counts_add_up_in_any_order_and_grouping(found, random):
    total = merge_stats(found)
    before = copy.deepcopy(found)
    merge_stats(found)
    assert found == before
    random.shuffle(found)
    cut = random.randrange(len(found) + 1)
    assert merge_stats([merge_stats(found[:cut]), merge_stats(found[cut:])]) == total
    assert total.total("formats") == sum(stats.total("formats") for stats in found)


def test_formats_notes_and_inputs_are_counted_the_largest_first():
    stats = ShardStats()
    for side in (10, 40, 15):
        stats.add(0, (), encode_image(jpeg(1, side, side), SMALL))
    assert stats.of("notes") == {"enlarged": 2}
    assert (stats.of("formats"), stats.of("sources")) == ({"JPEG": 3}, {"0": 3})
    stats.count("formats", "PNG", 5)
    assert list(stats.of("formats")) == ["PNG", "JPEG"]


@pytest.mark.parametrize(
    ("pixels", "mean", "deviation"),
    [([(4, 510, 2 * 255**2)], [0.5], [0.5]), ([(3, 30, 300)], [0.039216], [0.0]), ([], [], [])],
    ids=["0 and 255", "equal", "none"],
)
def test_mean_and_deviation_of_known_sums(pixels, mean, deviation):
    stats = ShardStats()
    for sums in pixels:
        stats.add(0, [sums], None)
    assert stats.mean_and_std() == (mean, deviation)


def result() -> ShardResult:
    """That of a shard of two records, one of which an image became, and a reject."""
    stats = ShardStats()
    stats.add(0, [(1, 2, 3)] * 3, None)
    reject = Reject("a.jpg", "/a.jpg", "cat", "train", "empty", "decode", "it is empty")
    return ShardResult(
        name="train-00000-of-00001", split="train", num_records=2, classes={"cat": 2},
        num_rejects=1, file=WrittenFile(200, "0" * 64), index=WrittenFile(9, "1" * 64),
        rejects_file=WrittenFile(8, "2" * 64, "v"), digest="d", read_bytes=9, rejects=[reject],
        stats=stats, run_id="r",
    )  # fmt: skip


@given(changed(json.loads(msgspec.json.encode(result()))))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_any_json_is_either_refused_or_a_result_that_a_commit_can_use(raw):
    try:
        found = decode(json.dumps(raw), ShardResult)
    except ValueError:
        return
    merge_stats([found.stats, result().stats]).mean_and_std()
    with contextlib.suppress(ValueError):  # a commit refuses such a shard
        assert found.entry("a.tfrecord").num_records == found.num_images - found.num_rejects
    assert decode(msgspec.json.encode(found), ShardResult) == found
