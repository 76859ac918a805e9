"""Rejects: their list, and how many are allowed."""

import json
import pathlib

import msgspec
import pytest

from beam_pipeline.commit.dataset import check_budget, write_list
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


def test_if_files_are_missing_the_error_names_one_and_explains_paths(tmp_path):
    missing = [reject(str(n), f"{tmp_path}/sub/{n}", "not_found") for n in range(6)]
    where = write_list([reject("b", f"{tmp_path}/b"), *missing], str(tmp_path))
    one = f"such as '{tmp_path}/sub/0' (the folder '{tmp_path}' has no folder 'sub'"
    with refused("max_reject_fraction", one, "relative to the folder of the table"):
        check_budget({"not_found": 6, "truncated": 1}, 10, 0.01, where)


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
    with refused("max_reject_fraction", f"(truncated {rejected}), such as '0' (m)", f"see {where}"):
        check_budget(counts, listed, fraction, where)
