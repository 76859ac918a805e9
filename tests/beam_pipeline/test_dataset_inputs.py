"""Whole builds of finished datasets: with other shards, joined, grown, and killed on the way."""

import pathlib
import shutil

import pytest

from imageshards import storage
from imageshards.tfrecord import read_records
from imageshards.verification import command as verify
from tests.support.builds import (
    build,
    build_set,
    class_folders,
    jpeg,
    manifest,
    records_of,
    rejects_of,
    shard_bytes,
)
from tests.support.commands import build_killed_at
from tests.support.store_servers import store_server

pytestmark = pytest.mark.process

FLAGS = ["--no_report"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Photos and datasets: `a` of `old`, `b` of `new`, `seven` of `old` in seven shards."""
    folder = tmp_path_factory.mktemp("sets")
    class_folders(folder / "old", {"cat": 40, "dog": 40}, seed=1)
    class_folders(folder / "new", {"cat": 10, "eel": 20}, seed=500)
    for path in folder.rglob("*.jpg"):  # so that no two have one key
        path.rename(path.with_name(f"{path.parts[-3]} {path.name}"))
    for output, photos, shards in (("a", "old", "4"), ("b", "new", "2"), ("seven", "old", "7")):
        flags = ["--num_shards", shards, "--image_size", "32", *FLAGS]
        build_set(folder / photos, folder / output, *flags)
    return folder


@pytest.fixture(scope="module")
def joined(folder) -> pathlib.Path:
    flags = ["--input", folder / "b", "--num_shards", 5, *FLAGS]
    return build_set(folder / "a", folder / "joined", *flags)


def test_other_shards_are_those_of_a_build_of_the_photos(folder, tmp_path):
    output = build_set(folder / "a", tmp_path / "out", "--num_shards", 7, *FLAGS)
    made, other = manifest(output), manifest(folder / "seven")
    assert made["splits"] == other["splits"] and made["classes"] == other["classes"]
    fingerprint = manifest(folder / "a")["fingerprint"]
    from_a = {"path": str(folder / "a"), "fingerprint": fingerprint, "num_records": 80}
    assert made["inputs"] == [from_a]
    assert made["image"]["mean"] == pytest.approx(other["image"]["mean"], abs=0.01)
    assert verify.verify(str(output)).ok


@pytest.mark.long
def test_names_of_inputs_give_splits_that_a_copy_can_draw_anew(folder, tmp_path):
    for split, photos in (("train", "old"), ("test", "new")):
        (tmp_path / split).symlink_to(folder / photos)
    flags = ["--image_size", "16", *FLAGS]
    inputs = [tmp_path / "train", "--input", tmp_path / "test"]
    output = build_set(inputs[0], tmp_path / "both", *inputs[1:], *flags)
    by_split = {(r["split"], "new " in key) for key, r in records_of(output).items()}
    assert by_split == {("train", False), ("test", True)}
    (tmp_path / "data" / "test").mkdir(parents=True)
    (tmp_path / "data" / "train").symlink_to(folder / "old")
    (tmp_path / "data" / "test" / "1.jpg").write_bytes(jpeg(1))
    output = build_set(tmp_path / "data", tmp_path / "only", *flags)
    (said,) = (text for text in manifest(output)["warnings"] if "so none is in" in text)
    assert "or else make a second build with this dataset as --input and with --splits" in said
    fractions = ["--splits", "train=0.5,validation=0.5"]
    again = manifest(build_set(output, tmp_path / "again", *fractions, *FLAGS))
    assert again["splits"].keys() == {"train", "validation"}


def test_joined_datasets_keep_ids_splits_and_pictures(folder, joined):
    made = manifest(joined)
    assert made["classes"] == ["cat", "dog", "eel"]
    assert [each["num_records"] for each in made["inputs"]] == [80, 30]
    records, before = records_of(joined), records_of(folder / "a") | records_of(folder / "b")
    assert records.keys() == before.keys()
    for key, features in before.items():
        assert records[key] == features | {"image/class/label": records[key]["image/class/label"]}
    assert verify.verify(str(joined)).ok


def test_photos_are_added_as_the_dataset_has_them(folder, joined, tmp_path):
    flags = ["--input", folder / "new", "--num_shards", 5, *FLAGS]
    grown = build_set(folder / "a", tmp_path / "grown", *flags)
    assert shard_bytes(grown) == shard_bytes(joined)
    assert verify.verify(str(grown)).ok


def test_a_dataset_is_not_replaced_by_its_own_copy(folder, capsys):
    before = shard_bytes(folder / "a")
    assert build("--input", folder / "a", "--output", folder / "a", "--overwrite", *FLAGS) == 2
    assert "; expected a folder outside of the input" in capsys.readouterr().err
    assert shard_bytes(folder / "a") == before


def test_damaged_records_are_rejected_with_their_reason(folder, tmp_path):
    broken = shutil.copytree(folder / "a", tmp_path / "broken")
    path = broken / "train-00001-of-00004.tfrecord"
    data = bytearray(path.read_bytes())
    second = list(read_records(str(path)))[1]
    data[second.offset_bytes + 12 + second.payload.index(b"\xff\xda") + 9] ^= 255
    data[list(read_records(str(path)))[-1].offset_bytes] ^= 255  # its length
    path.write_bytes(bytes(data))
    flags = ["--num_shards", 3, "--max_reject_fraction", 0.1, *FLAGS]
    output = build_set(broken, tmp_path / "out", *flags)
    made = manifest(output)
    assert made["rejects"] == {"damaged_record": 2} and made["listed"] == 80
    for row in rejects_of(output).values():
        assert row["uri"] == str(path) and "checksum" in row["message"] and row["stage"] == "copy"
    assert verify.verify(str(output)).ok


@pytest.mark.long
def test_extra_columns_and_the_transform_that_made_them_are_copied_and_joined(tmp_path, capsys):
    lines = []
    for i in range(40):
        (tmp_path / f"{i}.jpg").write_bytes(jpeg(i))
        lines.append(f"{i}.jpg,{'cat' if i % 2 else 'dog'},{i},{i / 4},No {i}\n")
    for name, rows in (("old", lines[:20]), ("new", lines[20:])):
        (tmp_path / f"{name}.csv").write_text("image,label,age,weight,caption\n" + "".join(rows))

    def make(inputs: str, output: str, *flags: str) -> int:
        places = [text for name in inputs.split() for text in ("--input", tmp_path / name)]
        shards = ["--splits", "train=1", "--num_shards", "3", *FLAGS]
        return build(*places, "--output", tmp_path / output, *shards, *flags)

    size = ("--image_size", "16")
    assert make("old.csv", "scaled", *size, "--columns", "age:float:zscore,caption:string") == 0
    assert make("scaled", "out") == 0
    assert records_of(tmp_path / "out") == records_of(tmp_path / "scaled")
    graph = "transform/transform_fn/saved_model.pb"
    assert (tmp_path / "out" / graph).read_bytes() == (tmp_path / "scaled" / graph).read_bytes()
    assert manifest(tmp_path / "out")["options"]["columns_as_given"] is False
    assert verify.verify(str(tmp_path / "out")).ok

    assert make("old.csv", "set", *size) == make("new.csv", "more", *size) == 0
    assert make("set more", "grown") == 0
    parts = [records_of(tmp_path / name) for name in ("set", "more")]
    assert records_of(tmp_path / "grown") == parts[0] | parts[1]
    assert manifest(tmp_path / "grown")["features"] == manifest(tmp_path / "set")["features"]
    assert verify.verify(str(tmp_path / "grown")).ok
    assert make("set new.csv", "no") == 2
    assert "cannot be joined with those of" in capsys.readouterr().err


@pytest.mark.long
def test_a_part_of_joined_datasets_with_other_classes(folder, joined, tmp_path):
    left_out = sorted(records_of(folder / "b"))[::3]
    (tmp_path / "keys.txt").write_text("\n".join(left_out[::2]) + "\n")
    (tmp_path / "more.txt").write_text("\n".join(left_out[1:]) + "\n")
    flags = [f"--exclude={tmp_path}/keys.txt", f"--exclude={tmp_path}/more.txt"]
    flags += ["--class_map", "eel=dog", *FLAGS]
    output = build_set(folder / "seven", tmp_path / "out", "--input", folder / "b", *flags)
    made = manifest(output)
    assert made["classes"] == ["cat", "dog"]
    assert made["skipped"] == {"excluded": len(left_out)}
    assert [each["num_records"] for each in made["inputs"]] == [80, 30 - len(left_out)]
    found, before = records_of(output), records_of(joined)
    assert found.keys() == before.keys() - set(left_out)
    for key, features in found.items():
        is_eel = before[key]["image/class/text"] == [b"eel"]
        assert features["image/class/text"] == ([b"dog"] if is_eel else [key[:3].encode()])
    assert verify.verify(str(output)).ok


def test_a_dropped_class_is_no_class_of_the_copy(joined, tmp_path):
    before = records_of(joined)
    output = build_set(joined, tmp_path / "out", "--drop_class", "cat", *FLAGS)
    left = {key for key, r in before.items() if r["image/class/text"] != [b"cat"]}
    made = manifest(output)
    assert made["classes"] == ["dog", "eel"] and made["options"]["drop_class"] == ["cat"]
    assert made["skipped"] == {"dropped_class": len(before) - len(left)}
    assert records_of(output).keys() == left


@pytest.mark.long
@pytest.mark.slow
def test_a_dataset_in_a_store_is_copied_there_whatever_is_killed(folder, joined):
    with store_server("s3") as running, running.environment():
        small, grown = f"{running.bucket()}/small", f"{running.bucket()}/grown"
        storage.copy_folder(str(folder / "a"), small)
        inputs = ["--input", small, "--input", str(folder / "b"), "--output", grown]
        flags = [*inputs, "--num_shards", "5", "--direct_num_workers", "2", *FLAGS]
        build_killed_at("beam_pipeline.commit.transforms", "finalize_shard", 3, *flags)
        assert not storage.exists(f"{grown}/manifest.json")
        assert build(*flags) == 0
        for name, data in shard_bytes(joined).items():
            assert storage.read(f"{grown}/{name}") == data
