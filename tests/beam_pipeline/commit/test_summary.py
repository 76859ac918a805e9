"""Rejects: their list, and how many are allowed."""

import json
import pathlib

import msgspec
import pytest

from beam_pipeline.commit.dataset import check_budget, remedies, write_list
from imageshards.errors import UserError
from imageshards.manifest.file import Reject
from tests.support.errors import refused


def reject(key: str, uri: str, reason: str = "truncated") -> Reject:
    return Reject(key, uri, "cat", "train", reason, "decode", "m")


def test_the_list_is_one_object_per_line(tmp_path):
    rejects = [reject("b\n1", "/in/b"), reject("é", "/in/\\udcff.jpg")]
    path = write_list(iter(rejects), str(tmp_path))
    assert path == str(tmp_path / "rejects.jsonl")
    lines = pathlib.Path(path).read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [*map(msgspec.structs.asdict, rejects)]


@pytest.mark.parametrize(("absent", "names_one"), [(6, True), (5, False)])
def test_if_most_files_are_missing_the_error_names_one_and_explains_paths(
    tmp_path, absent, names_one
):
    rejects = [reject(str(n), f"{tmp_path}/sub/{n}", "not_found") for n in range(absent)]
    where = write_list([reject("b", f"{tmp_path}/b"), *rejects], str(tmp_path))
    with pytest.raises(UserError) as error:
        check_budget({"not_found": absent, "truncated": 1}, 10, 0.01, where)
    said = str(error.value)
    one = f"such as '{tmp_path}/sub/0' (the folder '{tmp_path}' has no folder 'sub'"
    assert (one in said) == ("relative to the folder of the table" in said) == names_one
    assert ("raise the fraction" in said) != names_one


@pytest.mark.parametrize(
    ("rejected", "listed", "fraction", "allowed"),
    [
        (0, 100, 0.0, True), (1, 100, 0.0, False),
        (29, 100, 0.29, True), (30, 100, 0.29, False),
        (1, 99, 0.01, True), (2, 99, 0.01, False), (1, 1, 0.01, False), (100, 100, 1.0, True),
    ],
)  # fmt: skip
def test_the_budget_is_a_fraction_but_allows_one(tmp_path, rejected, listed, fraction, allowed):
    counts = {"truncated": rejected} if rejected else {}
    where = write_list([reject(str(n), f"/{n}") for n in range(rejected)], str(tmp_path))
    if allowed:
        check_budget(counts, listed, fraction, where)
        return
    words = [f"(truncated {rejected})", "first '0' (truncated)", f"see {where}"]
    with refused("max_reject_fraction", *words) as error:
        check_budget(counts, listed, fraction, where)
    assert "'3'" not in str(error.value)


def test_pointers_of_git_lfs_come_with_a_remedy(tmp_path):
    where = write_list([reject("a", "/a")], str(tmp_path))
    with refused("max_reject_fraction", "3 files of the input held a pointer of Git LFS"):
        check_budget({"git_lfs_pointer": 3, "empty": 1}, 9, 0.1, where)
    (sentence,) = remedies({"git_lfs_pointer": 1})
    assert sentence.endswith("run git lfs pull in the clone, then build again")
    assert remedies({"empty": 1}) == []
