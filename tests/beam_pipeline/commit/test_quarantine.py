"""Rejects: their list, and how many are allowed."""

from __future__ import annotations

import json
import pathlib

import pytest

from beam_pipeline.commit import quarantine
from beam_pipeline.commit.quarantine import check_budget, most_first, write_list
from beam_pipeline.shards.result import Reject
from imageshards.errors import UserError


def reject(key: str = "k", reason: str = "truncated", **more: str) -> Reject:
    fields = {
        "uri": f"/in/{key}", "label": "cat", "split": "train", "stage": "decode", "message": "m",
    }  # fmt: skip
    return Reject(key=key, reason=reason, **fields | more)


def test_the_list_is_one_object_per_line_ordered_by_split_and_key(tmp_path):
    odd = reject("\\udcff.jpg", split="test", uri="/in/\udcff.jpg", message="in \udcff")
    path = write_list([reject("b\n1"), reject("é"), reject("a"), odd], str(tmp_path / "new"))
    assert path == str(tmp_path / "new" / "rejects.jsonl")
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    found = [json.loads(line) for line in lines]
    assert [one["key"] for one in found] == ["\\udcff.jpg", "a", "b\n1", "é"]
    assert (found[0]["uri"], found[0]["message"]) == ("/in/\\udcff.jpg", "in \\udcff")
    assert found[1] == {
        "key": "a", "uri": "/in/a", "label": "cat", "split": "train", "reason": "truncated",
        "stage": "decode", "message": "m",
    }  # fmt: skip


def test_more_rejects_than_are_kept_in_memory_give_the_same_list(tmp_path, monkeypatch):
    keys = [f"{place * 7919 % 1000:03d}\n\udcff" for place in range(1000)]
    rejects = [reject(key, split=f"s{len(key) % 2}{key[2]}") for key in keys]
    whole = pathlib.Path(write_list(rejects, str(tmp_path / "whole"))).read_bytes()
    monkeypatch.setattr(quarantine, "RUN_LENGTH", 64)
    merged = pathlib.Path(write_list(iter(rejects), str(tmp_path / "merged"))).read_bytes()
    assert merged == whole and merged.count(b"\n") == 1000


def test_most_first_are_counted_the_most_frequent_first():
    found = most_first({"a": 1, "b": 2, "c": 3})
    assert list(found.items()) == [("c", 3), ("b", 2), ("a", 1)]


@pytest.mark.parametrize(
    ("rejected", "listed", "fraction", "allowed"),
    [
        (0, 100, 0.0, True), (1, 100, 0.0, False),
        (1, 100, 0.01, True), (2, 100, 0.01, False),
        (29, 100, 0.29, True), (30, 100, 0.29, False),
        (3, 30, 0.1, True), (1, 99, 0.01, False),
        (100, 100, 1.0, True),
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
