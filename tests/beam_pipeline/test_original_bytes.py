"""Builds that copy JPEGs that need no change: the records, their index, the manifest, rebuilds."""

import json

import pytest
from PIL import Image

from imageshards import storage
from imageshards.index import IS_ORIGINAL, read_index
from tests.support import builds
from tests.support.builds import build, build_set, class_folders, jpeg, manifest, records_of
from tests.support.built_records import assert_records_are_as_described
from tests.support.manifests import typed
from tests.support.pictures import saved, scene

pytestmark = pytest.mark.process

FLAGS = ["--splits", "train=0.8,validation=0.2", "--max_reject_fraction", "0.5", "--no_report"]
NONE = ["--resize_mode", "none"]
SHARDS = ["--num_shards", "train=4,validation=2"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """30 plain JPEGs, and 3 pictures that are changed; broken ones make records move."""
    root = tmp_path_factory.mktemp("original_bytes")
    photos = class_folders(root / "photos", {"ant": 15, "bee": 15}, broken=5)
    turned = Image.Exif()
    turned[0x0112] = 3
    (photos / "ant" / "turned.jpg").write_bytes(jpeg(1, exif=turned))
    (photos / "ant" / "grey.jpg").write_bytes(saved(scene().convert("L")))
    (photos / "bee" / "web.png").write_bytes(saved(scene(), "PNG"))
    return build_set(photos, root / "set", *FLAGS, *SHARDS, *NONE)


CHANGED = {"ant/turned.jpg", "ant/grey.jpg", "bee/web.png"}


def originals(directory):
    rows = read_index(str(directory), typed(manifest(directory)), columns=["key", IS_ORIGINAL])
    return {row["key"] for row in rows.to_pylist() if row[IS_ORIGINAL]}


def test_plain_jpegs_are_copied_and_the_index_says_which(built, tmp_path):
    assert assert_records_are_as_described(built) == 33
    records, photos = records_of(built), built.parent / "photos"
    copied = {
        key
        for key, record in records.items()
        if record["image/encoded"] == [(photos / key).read_bytes()]
    }
    assert originals(built) == copied == {*records} - CHANGED
    found = manifest(built)
    assert found["source"]["notes"][IS_ORIGINAL] == 30
    assert not {"quality", "subsampling"} & {*found["image"]}
    (fields,) = (
        each["field"]
        for each in json.loads((built / "croissant.json").read_text())["recordSet"]
        if each["@id"] == "records"
    )
    assert [field["name"] for field in fields][-1] == IS_ORIGINAL


def test_with_a_quality_every_picture_is_encoded_and_the_index_has_no_such_column(
    built, tmp_path, capsys
):
    encoded = build_set(built.parent / "photos", tmp_path / "q", *FLAGS, *SHARDS, *NONE,
                        "--quality", 90)  # fmt: skip
    assert "copied byte for byte" not in capsys.readouterr().out
    of_copies, of_quality = records_of(built), records_of(encoded)
    same = {key for key in of_copies if of_copies[key] == of_quality[key]}
    assert same == CHANGED
    described = manifest(encoded)
    assert IS_ORIGINAL not in read_index(str(encoded), typed(described)).column_names
    assert (described["image"]["quality"], described["image"]["subsampling"]) == (90, "4:2:0")
    assert build("--input", built, "--input", encoded, "--output", tmp_path / "both") == 2
    assert "--quality 90" in (said := capsys.readouterr().err) and "--quality unset" in said


def test_a_build_from_the_dataset_knows_which_records_are_original(built, tmp_path, capsys):
    photos = tmp_path / "more"
    for name, data in (("ant/a.jpg", jpeg(7)), ("bee/more.png", saved(scene(), "PNG"))):
        storage.write(f"{photos}/{name}", data)
    capsys.readouterr()
    flags = ["--input", photos, "--num_shards", "train=3,validation=1"]
    joined = build_set(built, tmp_path / "set", *flags)
    assert "31 pictures copied byte for byte, 4 encoded" in capsys.readouterr().out
    assert originals(joined) == {*records_of(joined)} - CHANGED - {"bee/more.png"}
    assert manifest(joined)["source"]["notes"][IS_ORIGINAL] == 31


@pytest.mark.long
def test_the_choice_is_the_same_in_a_build_that_resumes(built, tmp_path):
    photos, output = built.parent / "photos", tmp_path / "again"
    assert build("--input", photos, "--output", output, *FLAGS[:2], "--max_reject_fraction", "0",
                 *SHARDS, *NONE, "--no_report") == 2  # fmt: skip
    build_set(photos, output, *FLAGS, *SHARDS, *NONE)
    assert builds.shard_bytes(output) == builds.shard_bytes(built)
    for file in (built / "index").iterdir():
        assert (output / "index" / file.name).read_bytes() == file.read_bytes()
