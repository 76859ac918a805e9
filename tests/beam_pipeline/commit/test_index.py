"""The index of a built data set: a row for each record, where it is after records have moved."""

from __future__ import annotations

import hashlib
import pathlib
import shutil

import pytest

from imageshards.commands import export_index
from imageshards.example import decode_example
from imageshards.index import read_index
from imageshards.tfrecord import frame_record, read_records
from tests.support.builds import build, class_folders, manifest

pytestmark = pytest.mark.process

FLAGS = ["--image_size", "32", "--splits", "train=0.8,validation=0.2", "--num_shards",
         "train=4,validation=2", "--max_reject_fraction", "0.5", "--no_report"]  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> pathlib.Path:
    root = class_folders(tmp_path_factory.mktemp("in") / "photos", {"ant": 20, "bee": 20})
    for i in range(6):  # so that records move between shards
        (root / "ant" / f"broken {i}.jpg").write_bytes(b"\xff\xd8 no picture")
    return root


@pytest.fixture(scope="module")
def built(photos, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("out") / "set"
    assert build("--input", photos, "--output", output, *FLAGS) == 0
    return output


def test_every_record_is_where_its_row_says_with_what_it_says(built, photos):
    found = read_index(str(built), manifest(built)).to_pylist()
    assert len(found) == 40
    for row in found:
        with open(built / row["shard"], "rb") as file:
            file.seek(row["offset"])
            frame = file.read(row["num_bytes"])
        payload = frame[12:-4]
        assert frame == frame_record(payload)
        features = decode_example(payload)
        original = (photos / row["key"]).read_bytes()
        assert features["image/filename"] == [row["key"].encode()]
        assert features["image/class/text"] == [row["class_name"].encode()]
        assert features["image/class/label"] == [row["label"]]
        assert (row["source_bytes"], row["width"], row["height"]) == (len(original), 32, 32)
        assert row["source_sha256"] == hashlib.sha256(original).hexdigest()


def test_rows_are_numbered_in_the_order_of_their_shards(built):
    described = manifest(built)
    for split, entry in described["splits"].items():
        rows = read_index(str(built), described, split).to_pylist()
        expected = [
            (split, shard["file"], number)
            for shard in entry["shards"]
            for number in range(shard["num_records"])
        ]
        assert [(row["split"], row["shard"], row["record"]) for row in rows] == expected


def test_a_replacement_leaves_no_index_of_the_old_data_set(photos, built, tmp_path):
    output = shutil.copytree(built, tmp_path / "set")
    assert export_index.main([str(output)]) == 0
    assert len(list(output.glob("*.idx"))) == 6
    more = ["--num_shards", "train=2,validation=1", "--overwrite"]
    assert build("--input", photos, "--output", output, *FLAGS, *more) == 0
    described = manifest(output)
    files = {shard["index"]["file"] for s in described["splits"].values() for shard in s["shards"]}
    assert {f"index/{path.name}" for path in (output / "index").iterdir()} == files
    assert len(files) == 3
    assert not list(output.glob("*.idx"))
    rows = read_index(str(output), described, "validation").to_pylist()
    records = list(read_records(str(output / "validation-00000-of-00001.tfrecord")))
    assert [row["offset"] for row in rows] == [r.offset_bytes for r in records]
    assert [row["num_bytes"] for row in rows] == [len(r.payload) + 16 for r in records]
