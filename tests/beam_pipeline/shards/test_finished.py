"""What an earlier run has finished is known again, and nothing else is taken for it."""

import dataclasses
import hashlib

import msgspec
import pytest
from msgspec.structs import replace

from beam_pipeline.options import ImageOptions, ShardOptions
from beam_pipeline.planning.refs import ImageRef, ShardUnit
from beam_pipeline.shards.finished import (
    finished_result,
    read_result,
    unit_digest,
    write_result,
)
from beam_pipeline.shards.places import ShardPlaces
from beam_pipeline.shards.result import ShardResult, WrittenFile
from imageshards import storage
from imageshards.errors import OutputError
from imageshards.manifest import FeatureSpec, Reject
from tests.beam_pipeline.shards.test_result import result
from tests.support.errors import refused

UNIT = ShardUnit("train", 0, 1, {"cat": 0}, [ImageRef("a.jpg", "/in/a.jpg", "cat", "train")])
OPTIONS = ShardOptions(image=ImageOptions(), versions=(("pillow", "12.3.0"), ("libjpeg", "3")))


def test_the_digest_does_not_depend_on_the_order_in_which_options_are_declared():
    values = dataclasses.asdict(OPTIONS.image)
    turned = dataclasses.make_dataclass("Turned", reversed(values))(**values)
    same = dataclasses.replace(OPTIONS, image=turned, versions=OPTIONS.versions[::-1], run_id="x")
    assert unit_digest(UNIT, same) == unit_digest(UNIT, OPTIONS)


@pytest.mark.parametrize(
    "change",
    [
        {"image": ImageOptions(height_px=224, width_px=256)},
        {"image": ImageOptions(height_px=256, width_px=224)},
        {"quarantine_bytes": False}, {"versions": (("pillow", "12.3.0"),)},
    ],
    ids=str,
)  # fmt: skip
def test_the_digest_changes_with_everything_that_changes_bytes(change):
    assert unit_digest(UNIT, dataclasses.replace(OPTIONS, **change)) != unit_digest(UNIT, OPTIONS)


def test_the_digest_changes_with_boxes_in_pixels_and_with_features():
    in_pixels = dataclasses.replace(UNIT, refs=[UNIT.refs[0]._replace(in_pixels=True)])
    without = dataclasses.replace(UNIT, features={})
    with_age = dataclasses.replace(UNIT, features={"age": FeatureSpec("int64", ())})
    assert len({unit_digest(unit, OPTIONS) for unit in (UNIT, in_pixels, without, with_age)}) == 4


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
def test_a_shard_is_reused_unless_another_run_may_accept_a_reject(
    tmp_path, stage, reason, is_reused
):
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


@pytest.mark.parametrize("damage", [None, b"", b"\1" * 9], ids=["gone", "empty", "other bytes"])
def test_a_shard_with_a_missing_or_replaced_file_is_not_finished(tmp_path, damage):
    places = ShardPlaces(output=str(tmp_path / "out"), staging=str(tmp_path))
    for path in files_of(places, result().name):
        found = finish(places, result())
        assert finished_result(found.name, places, found.digest) == replace(found, reused=True)
        storage.delete([path])
        if damage is not None:
            storage.write(path, damage)
        assert finished_result(found.name, places, found.digest) is None
