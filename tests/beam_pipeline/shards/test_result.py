"""Results of shards: their counts add up, and an earlier run's are used again."""

import contextlib
import copy
import dataclasses
import hashlib
import json
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from beam_pipeline.options import ImageOptions, ShardOptions
from beam_pipeline.planning.refs import ImageRef, ShardUnit
from beam_pipeline.shards.places import ShardPlaces
from beam_pipeline.shards.result import (
    ShardResult,
    ShardStats,
    WrittenFile,
    finished_result,
    merge_stats,
    read_result,
    unit_digest,
    write_result,
)
from beam_pipeline.shards.writer import RejectsFile, write_shard
from imageshards import storage
from imageshards.errors import ImageError, OutputError
from imageshards.example import decode_example
from imageshards.images.encode import encode_image
from imageshards.manifest import FeatureSpec, File
from imageshards.manifest.file import Reject
from imageshards.tfrecord import read_records
from imageshards.typed import decode
from tests.support.builds import jpeg
from tests.support.errors import refused
from tests.support.stores import store_uri
from tests.support.strangers import changed

SMALL = ImageOptions(height_px=20, width_px=20)
NAMES = st.sampled_from(["formats", "rejects", "notes"])
COUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))
STATS = st.builds(ShardStats, st.dictionaries(NAMES, COUNTS))


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


UNIT = ShardUnit("train", 0, 1, {"cat": 0}, [ImageRef("a.jpg", "/in/a.jpg", "cat", "train")])
OPTIONS = ShardOptions(image=ImageOptions(), versions=(("pillow", "12.3.0"), ("libjpeg", "3")))


def test_the_digest_does_not_depend_on_the_order_in_which_options_are_declared():
    values = dataclasses.asdict(OPTIONS.image)
    turned = dataclasses.make_dataclass("Turned", reversed(values))(**values)
    same = dataclasses.replace(OPTIONS, image=turned, versions=OPTIONS.versions[::-1], run_id="x")
    assert unit_digest(UNIT, same) == unit_digest(UNIT, OPTIONS)


def test_the_digest_changes_with_everything_that_changes_bytes():
    options: list[dict] = [
        {"image": ImageOptions(224, 256)}, {"image": ImageOptions(256, 224)},
        {"quarantine_bytes": False}, {"versions": (("pillow", "12.3.0"),)},
    ]  # fmt: skip
    units: list[dict] = [
        {"refs": [UNIT.refs[0]._replace(in_pixels=True)]}, {"features": {}},
        {"refs": [UNIT.refs[0]._replace(box_labels=("a",))]},
        {"features": {"age": FeatureSpec("int64", ())}},
    ]  # fmt: skip
    digests = [unit_digest(UNIT, OPTIONS)]
    digests += [unit_digest(UNIT, dataclasses.replace(OPTIONS, **each)) for each in options]
    digests += [unit_digest(dataclasses.replace(UNIT, **each), OPTIONS) for each in units]
    assert len({*digests}) == len(digests)


def test_a_result_of_another_shard_is_no_result(tmp_path):
    name = "train-00001-of-00002"
    path = tmp_path / f"{name}.json"
    path.write_bytes(msgspec.json.encode(replace(result(), name="../sentinel")))
    places = ShardPlaces(output="", staging=str(tmp_path))
    assert finished_result(name, places, "d") is None
    with refused("", "'../sentinel'", kind=OutputError):
        read_result(name, places)


@pytest.mark.parametrize(
    ("stage", "reason", "is_reused"),
    [
        ("decode", "not_an_image", True), ("copy", "damaged_record", True),
        ("decode", "decoder_crashed", False), ("read", "url_timeout", False),
        ("read", "not_found", False),
    ],
)  # fmt: skip
def test_a_shard_is_reused_unless_a_reject_may_pass(tmp_path, stage, reason, is_reused):
    places = ShardPlaces(output=str(tmp_path / "out"), staging=str(tmp_path))
    reject = Reject("a.jpg", "/in/a.jpg", "cat", "train", reason, stage, "")
    found = finish(places, replace(result(), rejects=[reject], num_rejects=1))
    assert (finished_result(found.name, places, found.digest) is not None) == is_reused


def finish(places: ShardPlaces, made: ShardResult) -> ShardResult:
    """Makes a shard finished, of zeros, as are its index and its rejects."""
    whole = WrittenFile(9, hashlib.sha256(bytes(9)).hexdigest())
    made = replace(made, file=whole, index=whole, rejects_file=whole)
    for path in files_of(places, made.name):
        storage.write(path, bytes(9))
    write_result(made, places)
    return made


def files_of(places: ShardPlaces, name: str) -> list[str]:
    return [places.staged_path(name), places.index_path(name), places.rejects_path(name)]


@pytest.mark.parametrize("damage", [None, b"", b"\1" * 9])
def test_a_shard_with_a_missing_or_replaced_file_is_not_finished(tmp_path, damage):
    places = ShardPlaces(output=str(tmp_path / "out"), staging=str(tmp_path))
    for path in files_of(places, result().name):
        found = finish(places, result())
        again = finished_result(found.name, places, found.digest)
        assert again and again.reused
        storage.delete([path])
        if damage is not None:
            storage.write(path, damage)
        assert finished_result(found.name, places, found.digest) is None


@pytest.mark.parametrize("where", [str, store_uri])
def test_a_worker_without_the_folder_of_the_client_reads_no_picture(tmp_path, where):
    """Such as a worker of Flink on another machine."""
    out = where(tmp_path / "out")
    places = ShardPlaces(output=out, staging=f"{out}/.staging", job="7")
    with refused("output", "finds no", "job.json", "all workers see", kind=OutputError):
        write_shard(UNIT, places, OPTIONS)
    assert not (tmp_path / "out").exists()


REF = ImageRef("é.jpg", os.fsdecode(b"/in/\xff.jpg"), "cat", "train")
ERROR = ImageError("truncated", "in \udcff")


@pytest.mark.parametrize("keeps_bytes", [True, False])
def test_rejects_are_kept_as_they_come(tmp_path, keeps_bytes):
    path = tmp_path / "rejects"
    with RejectsFile(str(path), keeps_bytes) as file:
        file.add(REF, ERROR, "decode", b"\xff\xd8broken")
        file.add(REF, ERROR, "read")
        found, data = file.commit(), path.read_bytes()
        assert found and found.entry == File(len(data), hashlib.sha256(data).hexdigest())
        assert len(file.rejects) == 2
    first, second = (decode_example(record.payload) for record in read_records(str(path)))
    assert first.pop("image/encoded", None) == ([b"\xff\xd8broken"] if keeps_bytes else None)
    assert first.pop("stage") == [b"decode"] and second.pop("stage") == [b"read"]
    assert first == second
    assert second == {
        "image/filename": ["é.jpg".encode()], "uri": [b"/in/\\udcff.jpg"], "label": [b"cat"],
        "split": [b"train"], "reason": [b"truncated"], "message": [b"in \\udcff"],
    }  # fmt: skip


def test_there_is_no_file_without_rejects_or_after_an_error(tmp_path):
    with RejectsFile(str(tmp_path / "rejects"), True) as file:
        file.commit()
    with RejectsFile(str(tmp_path / "rejects"), True) as file:
        file.add(REF, ERROR, "decode", b"x")  # and never committed
    assert not list(tmp_path.iterdir())
