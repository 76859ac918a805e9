"""Counts of shards add up in any order."""

from __future__ import annotations

import copy
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.options import ImageOptions
from beam_pipeline.shards.result import Reject, ShardResult, ShardStats, merge_stats
from imageshards.images.encode import encode_image
from imageshards.index import IndexRows, index_table
from imageshards.manifest import NONE, ONE, RECORD_FEATURES, SEVERAL
from tests.support.builds import jpeg
from tests.support.dataset_factory import features_of
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


def result(label: str = ONE) -> ShardResult:
    """That of a shard of two records, one of which an image became, and a reject."""
    rows = IndexRows()
    for number in range(2):
        features = features_of(number, 0)
        if label != ONE:
            features["image/class/labels"] = features.pop("image/class/label")
        if label == NONE:
            features = {k: v for k, v in features.items() if "class" not in k}
        rows.add(features, 100, 1000)
    stats = ShardStats()
    stats.add(0, [(1, 2, 3)] * 3, None)
    reject = Reject("a.jpg", "/a.jpg", "cat", "train", "empty", "decode", "it is empty")
    return ShardResult(
        name="train-00000-of-00001", split="train", num_records=2, num_bytes=200,
        sha256="0" * 64, classes={"cat": 2}, num_rejects=1, digest="d", rows=rows, read_bytes=9,
        rejects=[reject], stats=stats, label=label,
    )  # fmt: skip


@given(
    st.sampled_from([ONE, NONE, SEVERAL]).flatmap(
        lambda n: changed(json.loads(msgspec.json.encode(result(n))))
    )
)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_any_file_beside_a_shard_is_a_result_that_a_commit_can_use_or_none(raw):
    try:
        found = ShardResult.from_json(json.dumps(raw).encode())
    except ValueError:
        return
    merge_stats([found.stats, result().stats]).mean_and_std()
    file = f"{found.name}.tfrecord"
    table = index_table(found.rows, found.split, file, RECORD_FEATURES, found.label)
    assert table.num_rows == found.num_records == found.num_images - found.num_rejects
    assert ShardResult.from_json(msgspec.json.encode(found)) == found
