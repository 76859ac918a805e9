"""What a user does wrong, and what is wrong with the world: one sentence, and nothing lost."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from beam_pipeline.__main__ import main
from imageshards.verification import command as verify
from tests.support.builds import build, class_folders, manifest
from tests.support.built_records import assert_records_are_as_described

pytestmark = pytest.mark.process


@pytest.fixture
def photos(tmp_path):
    return class_folders(tmp_path / "in", {"cat": 12, "dog": 12})


def error_of(capfd, *arguments) -> str:
    """The sentence a build ends with."""
    code = main([str(a) for a in arguments])
    said = capfd.readouterr().err
    assert code == 2, said
    assert "Traceback" not in said
    return said.strip().splitlines()[-1]


def test_class_folders_without_an_image(tmp_path, capfd):
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "readme.txt").write_text("soon")
    said = error_of(capfd, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert "no image" in said
    assert not (tmp_path / "out").exists()


def test_an_output_inside_the_input(photos, capfd):
    for flags in ([], ["--plan_only"]):
        said = error_of(capfd, "--input", photos, "--output", photos / "shards", *flags)
        assert "is inside --input" in said and "choose another --output" in said
        assert not (photos / "shards").exists()


def test_one_class_only(tmp_path, capfd):
    root = class_folders(tmp_path / "in", {"cat": 3})
    said = error_of(capfd, "--input", root, "--output", tmp_path / "out")
    assert "one class only" in said and "--allow_one_class" in said
    flags = ["--input", root, "--output", tmp_path / "out", "--splits", "train=1"]
    assert build(*flags, "--allow_one_class", "--no_report") == 0


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("path,label,age\na.jpg,cat,1\nb.jpg,dog,old\n", "line 3 has 'old' in column 'age'"),
        ("path,label\na.jpg,cat\na.jpg,dog\n", "twice"),
    ],
)
def test_a_table_with_a_wrong_row(tmp_path, capfd, rows, expected):
    (tmp_path / "list.csv").write_text(rows)
    flags = ["--columns", "age:int"] if "age" in rows else []
    said = error_of(capfd, "--input", tmp_path / "list.csv", "--output", tmp_path / "out", *flags)
    assert expected in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--input", "absent"], "absent' cannot be listed (No such file"),
        (["--num_shards", "train=99"], "--num_shards received 99 for split 'train'"),
        (["--class_names", "cat,cow"], "--class_names does not hold the label 'dog'"),
        (["--label_regex", r"^([0-9]+)\."], "does not match"),
        (["--image_sise", "3"], "did you mean --image_size"),
        (["--direct_num_wokers", "3"], "did you mean --direct_num_workers"),
        (["--splits", "train=0.5"], "sum to 0.5"),
        (["--direct_running_mode", "multi_threading"], "expected in_memory"),
        (["--direct_num_workers", "many"], "--direct_num_workers"),
        (["--group_column", "person"], "--group_column"),
        (["--transform_module", "absent.py"], "absent.py"),
    ],
)  # fmt: skip
def test_a_flag_that_cannot_be(photos, tmp_path, capfd, flags, expected):
    source = [] if "--input" in flags else ["--input", photos]
    said = error_of(capfd, *source, "--output", tmp_path / "out", *flags)
    assert expected in said
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights for a while")
def test_an_output_that_cannot_be_written(photos, tmp_path, capfd):
    (tmp_path / "file").write_text("in the way")
    said = error_of(capfd, "--input", photos, "--output", tmp_path / "file" / "out")
    assert "--output" in said and "cannot be written" in said
    (tmp_path / "out").mkdir(mode=0o555)
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        code = main(["--input", str(photos), "--output", str(tmp_path / "out")])
    finally:
        os.seteuid(0)
    said = capfd.readouterr().err
    assert code == 2
    assert "cannot be written" in said


@pytest.mark.parametrize("name", ["train-00000-of-00001.tfrecord", "report/thesis.txt"])
@pytest.mark.parametrize("more", [[], ["--overwrite"], ["--plan_only"]])
def test_files_of_the_users_own_are_not_touched(photos, tmp_path, capfd, name, more):
    output = tmp_path / "out"
    (output / name).parent.mkdir(parents=True)
    (output / name).write_bytes(b"precious")
    (output / "log.txt").write_text("")
    said = error_of(capfd, "--input", photos, "--output", output, *more)
    first = name.partition("/")[0]
    assert "holds 1 file or folder that no finished or unfinished build accounts for" in said
    assert f"({first!r}); expected a new or empty folder" in said and "overwrite" not in said
    assert (output / name).read_bytes() == b"precious"
    assert sorted(os.listdir(output)) == sorted(["log.txt", first])


@pytest.mark.slow
def test_a_full_disk(photos, tmp_path, capfd):
    """A small file system of its own; run the same command again to resume when there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("no right to mount a small file system: a full disk cannot be had")
    try:
        flags = ["--input", photos, "--output", disk / "out", "--image_size", "256",
                 "--resize_mode", "stretch", "--quality", "100", "--num_shards", "3",
                 "--splits", "train=1"]  # fmt: skip
        said = error_of(capfd, *flags)
        assert "No space left" in said and "--output" in said
        assert not (disk / "out" / "manifest.json").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert build(*flags, "--no_report") == 0
        assert verify.main([str(disk / "out")]) == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


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
    assert found["rejects"]["empty"] >= 1
    assert found["skipped"] == {"special_file": 1}
    assert verify.main([str(output)]) == 0
    assert assert_records_are_as_described(output)


def test_a_file_deleted_between_listing_and_reading(photos, tmp_path, capfd, monkeypatch):
    from beam_pipeline.inputs import folders

    walk = folders._walk

    def list_then_delete(*args):
        for found in walk(*args):
            yield found
            if found[0].endswith("cat 3.jpg"):
                pathlib.Path(found[0]).unlink(missing_ok=True)

    monkeypatch.setattr(folders, "_walk", list_then_delete)
    output = tmp_path / "out"
    assert build("--input", photos, "--output", output, "--max_reject_fraction", "0.2") == 0
    assert manifest(output)["rejects"] == {"not_found": 1}
    assert manifest(output)["listed"] == 24


@pytest.mark.slow
def test_a_mistake_is_one_line_on_the_terminal(photos, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "beam_pipeline", "--input", photos, "--output", tmp_path / "out",
         "--num_shards", "train=99"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("imageshards build: --num_shards received 99")
    assert "while running" not in line


def test_an_unexpected_error_is_a_traceback_and_exit_code_1(photos, tmp_path):
    code = (
        "import sys\nfrom beam_pipeline.planning import transforms\n"
        "def broken(*a, **k): raise ZeroDivisionError('a bug')\n"
        "transforms.make_plan = broken\n"
        "from beam_pipeline.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--input", photos, "--output", tmp_path / "out"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "ZeroDivisionError: a bug" in done.stderr
