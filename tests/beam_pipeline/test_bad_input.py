"""What a user does wrong, and what is wrong with the world: one sentence, and nothing lost."""

import os
import shutil
import subprocess

import pytest

from beam_pipeline.images import process_pool
from beam_pipeline.planning import transforms
from imageshards.verification import command as verify
from tests.support.builds import (
    build,
    build_set,
    class_folders,
    jpeg,
    manifest,
    records_of,
    rejects_of,
)
from tests.support.built_records import assert_records_are_as_described
from tests.support.commands import ForkedBuild

pytestmark = pytest.mark.process


@pytest.fixture
def photos(tmp_path):
    return class_folders(tmp_path / "in", {"cat": 12, "dog": 12})


def error_of(capfd, *arguments) -> str:
    assert build(*arguments) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    return said.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--input .", "is inside --input"),
        ("--class_names cat,cow --plan_only", "--class_names received names without 'dog'"),
        ("--transform_module absent.py", "absent.py"),
    ],
)
def test_a_mistake_leaves_no_output(photos, tmp_path, capfd, flags, expected, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = [] if "--input" in flags else ["--input", photos]
    assert expected in error_of(capfd, *source, "--output", tmp_path / "out", *flags.split())
    assert not (tmp_path / "out").exists()


def test_files_of_the_users_own_are_not_touched(photos, tmp_path, capfd):
    output = tmp_path / "out"
    (output / "report").mkdir(parents=True)
    (output / "report" / "thesis.txt").write_bytes(b"precious")
    for more in ("--overwrite", "--plan_only"):
        said = error_of(capfd, "--input", photos, "--output", output, more)
        assert "holds 1 file or folder that no finished or unfinished build accounts for" in said
        assert (output / "report" / "thesis.txt").read_bytes() == b"precious"
        assert os.listdir(output) == ["report"]


@pytest.mark.slow
@pytest.mark.long
def test_a_full_disk(photos, tmp_path, capfd):
    """A small file system of its own; run the same command again to resume when there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a small file system: a full disk cannot be had")
    try:
        flags = ["--input", photos, "--output", disk / "out", "--image_size", "256",
                 "--resize_mode", "stretch", "--quality", "100", "--num_shards", "3",
                 "--splits", "train=1"]  # fmt: skip
        said = error_of(capfd, *flags)
        assert "No space left" in said and "--output" in said
        assert not (disk / "out" / "manifest.json").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        assert build(*flags, "--no_report") == 0
        assert verify.main([str(disk / "out")]) == 0
    finally:
        subprocess.run(["umount", disk], check=True)


def test_hostile_files_are_quarantined_with_their_reason(tmp_path, broken_jpegs, capfd):
    root = class_folders(tmp_path / "in", {"good": 20})
    shutil.copytree(broken_jpegs, root / "broken")
    (root / "good" / "empty.jpg").write_bytes(b"")
    (root / "good" / "text.jpg").write_text("these are words")
    (root / "good" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (root / "good" / "x.jpg").mkdir()
    os.mkfifo(root / "good" / "pipe.jpg")
    output = tmp_path / "out"
    assert build("--input", root, "--output", output, "--max_reject_fraction", "1",
                 "--image_size", "64", "--num_shards", "train=4,validation=2") == 0  # fmt: skip
    found = manifest(output)
    accepted = sum(split["num_records"] for split in found["splits"].values())
    listed = 20 + len(list(broken_jpegs.iterdir())) + 3
    assert found["listed"] == listed == accepted + sum(found["rejects"].values())
    assert found["rejects"]["not_found"] == 1
    assert found["skipped"] == {"special_file": 1}
    assert assert_records_are_as_described(output)


def forget_make_plan() -> None:
    vars(transforms)["make_plan"] = None


def test_a_mistake_is_one_line_on_the_terminal_and_a_bug_is_a_traceback(photos, tmp_path):
    command = ["--input", photos, "--output", tmp_path / "out"]
    done = ForkedBuild(*command, "--num_shards", "train=99").result()
    assert done.returncode == 2
    *_, line = done.stdout.splitlines()  # before it, progress on a slow machine
    assert line.startswith("imageshards build: --num_shards received 99")
    assert "Traceback" not in done.stdout
    assert not (tmp_path / "out").exists()
    done = ForkedBuild(*command, before=forget_make_plan).result()
    assert done.returncode == 1
    assert "TypeError: 'NoneType' object is not callable" in done.stdout


def test_names_that_are_no_text_are_keys_and_places_that_can_be_written(tmp_path):
    photos = class_folders(tmp_path / os.fsdecode(b"caf\xe9"), {"cat": 12, "dog": 12})
    (photos / "cat" / os.fsdecode(b"\xe9.jpg")).write_bytes(jpeg(1))
    (photos / "cat" / "\\udce9.jpg").write_bytes(jpeg(2))
    (photos / "dog" / os.fsdecode(b"\xff.jpg")).write_bytes(b"no picture")
    output = tmp_path / "out"
    flags = ["--image_size", "16", "--max_reject_fraction", "0.5"]
    assert build("--input", photos, "--output", output, *flags) == 0
    keys = records_of(output).keys()
    assert len(keys) == 26 and {"cat/\\udce9.jpg", "cat/\\\\udce9.jpg"} < keys
    (row,) = rejects_of(output).values()
    assert row["key"] == "dog/\\udcff.jpg"
    assert row["uri"] == f"{tmp_path}/caf\\udce9/dog/\\udcff.jpg"
    assert manifest(output)["inputs"][0]["path"] == f"{tmp_path}/caf\\udce9"
    assert verify.verify(str(output)).ok


def test_a_table_whose_paths_are_all_wrong_ends_before_the_work_with_one_of_them(tmp_path, capfd):
    rows = tmp_path / "rows.csv"
    rows.write_text("image,label\n2.jpg,a\n0.jpg,b\n1.jpg,a\n")
    said = error_of(capfd, "--input", rows, "--output", tmp_path / "out", "--plan_only")
    assert "3 images, and none of them was found, such as" in said
    assert f"'{tmp_path}' has no '0.jpg')" in said


def test_an_infinite_value_in_a_scaled_column_ends_the_plan(tmp_path, capfd):
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    path = tmp_path / "rows.csv"
    path.write_text("image,label,key,age\na.jpg,a,1,2.5\na.jpg,b,2,inf\n")
    flags = ("--columns", "age:float:zscore", "--plan_only")
    said = error_of(capfd, "--input", path, "--output", tmp_path / "out", *flags)
    assert "'age'" in said and "'2'" in said and "not infinite" in said


def test_a_plan_of_given_shards_has_warnings_and_decodes_no_picture(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(process_pool, "own_pool", None)
    photos = class_folders(tmp_path / "in", {"cat": 8, "Cat": 8})
    (photos / "emu").mkdir()
    flags = ("--num_shards", "2", "--exclude_glob", "cat 0.*,Cat/*3.jpg", "--plan_only")
    build_set(photos, tmp_path / "out", *flags)
    out = capfd.readouterr().out
    assert "files skipped (excluded_by_glob 2)" in out
    assert "warning: 1 class folder without an image: 'emu'" in out
    assert out.endswith("nothing was written\n")
