"""`--plan_only` shows the plan and why the build would stop, and ends as it would."""

import pytest

from beam_pipeline.images import process_pool
from tests.support.builds import build, class_folders, jpeg

pytestmark = pytest.mark.process

FLAGS = ("--image_size", "32", "--no_report")


def rehearse(capfd, *arguments) -> tuple[int, str, str]:
    """Exit code, what was printed, and the errors."""
    code = build(*arguments, *FLAGS, "--plan_only")
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_a_table_whose_paths_are_all_wrong_ends_before_the_work_with_one_of_them(tmp_path, capfd):
    rows = tmp_path / "rows.csv"
    rows.write_text("image,label\n2.jpg,a\n0.jpg,b\n1.jpg,a\n")
    code, _, err = rehearse(capfd, "--input", rows, "--output", tmp_path / "out")
    assert code == 2
    assert "3 images, and none of them was found, such as" in err
    assert f"'{tmp_path}' has no '0.jpg')" in err


def test_an_infinite_value_in_a_scaled_column_ends_the_plan(tmp_path, capfd):
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    path = tmp_path / "rows.csv"
    path.write_text("image,label,key,age\na.jpg,a,1,2.5\na.jpg,b,2,inf\n")
    flags = ("--input", path, "--output", tmp_path / "out", "--columns", "age:float:zscore")
    code, _, err = rehearse(capfd, *flags)
    assert code == 2 and "'age'" in err and "'2'" in err and "not infinite" in err


def test_a_plan_has_warnings_and_decodes_no_picture_if_num_shards_is_given(
    tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(process_pool, "own_pool", None)
    photos = class_folders(tmp_path / "in", {"cat": 8, "Cat": 8})
    (photos / "emu").mkdir()
    flags = ("--input", photos, "--output", tmp_path / "out", "--num_shards", "2")
    code, out, _ = rehearse(capfd, *flags, "--exclude_glob", "cat 0.*,Cat/*3.jpg")
    assert code == 0
    assert "files skipped (excluded_by_glob 2)" in out
    assert "warning: 1 class folder without an image: 'emu'" in out
    assert out.endswith("nothing was written\n")
