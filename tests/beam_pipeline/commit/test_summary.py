"""Rejects: their list, and how many are allowed."""

from __future__ import annotations

import json
import pathlib

import pytest

from beam_pipeline.commit.summary import check_budget, write_list
from beam_pipeline.shards.result import Reject
from imageshards.errors import UserError


def reject(key: str = "k", reason: str = "truncated", **more: str) -> Reject:
    fields = {
        "uri": f"/in/{key}", "label": "cat", "split": "train", "stage": "decode", "message": "m",
    }  # fmt: skip
    return Reject(key=key, reason=reason, **fields | more)


def test_the_list_is_one_object_per_line(tmp_path):
    odd = reject("\\udcff.jpg", split="test", uri="/in/\udcff.jpg", message="in \udcff")
    path = write_list(iter([reject("b\n1"), odd, reject("é")]), str(tmp_path))
    assert path == str(tmp_path / "rejects.jsonl")
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    found = [json.loads(line) for line in lines]
    assert [one["key"] for one in found] == ["b\n1", "\\udcff.jpg", "é"]
    assert (found[1]["uri"], found[1]["message"]) == ("/in/\\udcff.jpg", "in \\udcff")
    assert found[2] == {
        "key": "é", "uri": "/in/é", "label": "cat", "split": "train", "reason": "truncated",
        "stage": "decode", "message": "m",
    }  # fmt: skip


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
