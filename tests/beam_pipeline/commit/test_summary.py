"""Rejects: their list, and how many are allowed."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from beam_pipeline.commit.summary import check_budget, write_list
from beam_pipeline.shards.result import Reject
from imageshards.errors import UserError


def test_the_list_is_one_object_per_line(tmp_path):
    plain = Reject("b\n1", "/in/b", "cat", "train", "truncated", "decode", "m")
    odd = Reject("é", "/in/\udcff.jpg", "cat", "test", "truncated", "decode", "in \udcff")
    path = write_list(iter([plain, odd]), str(tmp_path))
    assert path == str(tmp_path / "rejects.jsonl")
    found = [json.loads(line) for line in pathlib.Path(path).read_text("utf-8").splitlines()]
    assert found == [
        dataclasses.asdict(plain),
        dataclasses.asdict(odd) | {"uri": "/in/\\udcff.jpg", "message": "in \\udcff"},
    ]


@pytest.mark.parametrize(
    ("rejected", "listed", "fraction", "allowed"),
    [
        (0, 100, 0.0, True), (1, 100, 0.0, False),
        (29, 100, 0.29, True), (30, 100, 0.29, False),
        (1, 99, 0.01, False), (100, 100, 1.0, True),
    ],
)  # fmt: skip
def test_the_budget_is_a_fraction_of_what_was_listed(rejected, listed, fraction, allowed):
    counts = {"truncated": rejected} if rejected else {}
    if allowed:
        check_budget(counts, listed, fraction, "list")
        return
    with pytest.raises(UserError, match=f"{rejected} were .truncated {rejected}.*list") as error:
        check_budget(counts, listed, fraction, "list")
    assert "\n" not in str(error.value)
