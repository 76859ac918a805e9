"""Rejects: their list, their originals, and how many are allowed."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from beam_pipeline.commit import quarantine
from beam_pipeline.commit.quarantine import check_budget, encode_reject, reasons, write_list
from beam_pipeline.options import UrlOptions
from beam_pipeline.shards.result import Reject
from imageshards.errors import UserError
from imageshards.example import decode_example


def reject(key: str = "k", reason: str = "truncated", **more: str) -> Reject:
    fields = {
        "uri": f"/in/{key}", "label": "cat", "split": "train", "stage": "decode", "message": "m",
    }  # fmt: skip
    return Reject(key=key, reason=reason, **fields | more)


def test_a_reject_keeps_its_original_bytes(tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"\xff\xd8broken")
    one = reject("é.jpg", uri=str(tmp_path / "x.jpg"))
    assert decode_example(encode_reject(one, 100, UrlOptions())) == {
        "image/encoded": [b"\xff\xd8broken"],
        "image/filename": ["é.jpg".encode()],
        "uri": [one.uri.encode()],
        "label": [b"cat"],
        "split": [b"train"],
        "reason": [b"truncated"],
        "stage": [b"decode"],
        "message": [b"m"],
    }


@pytest.mark.parametrize(
    ("name", "stage", "max_bytes"),
    [("x.jpg", "decode", 0), ("x.jpg", "decode", 3), ("x.jpg", "read", 9), ("no", "decode", 9)],
)
def test_bytes_that_are_not_wanted_or_not_there_are_left_out(tmp_path, name, stage, max_bytes):
    (tmp_path / "x.jpg").write_bytes(b"12345")
    one = reject(uri=str(tmp_path / name), stage=stage)
    assert "image/encoded" not in decode_example(encode_reject(one, max_bytes, UrlOptions()))


def test_a_file_name_that_is_no_text_keeps_its_bytes_and_gets_a_line(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.jpg"
    with open(path, "wb") as file:
        file.write(b"broken")
    one = reject("\\udcff.jpg", uri=os.fsdecode(path), message="in \udcff")
    features = decode_example(encode_reject(one, 100, UrlOptions()))
    assert features["image/encoded"] == [b"broken"]
    assert features["uri"] == [f"{tmp_path}/\\udcff.jpg".encode()]
    line = open(write_list([one], str(tmp_path)), encoding="utf-8").read()
    assert json.loads(line)["uri"] == f"{tmp_path}/\\udcff.jpg"
    assert json.loads(line)["message"] == "in \\udcff"


def test_the_list_is_one_object_per_line_ordered_by_split_and_key(tmp_path):
    rejects = [reject("b\n1"), reject("é"), reject("a"), reject("z", split="test")]
    path = write_list(rejects, str(tmp_path / "new"))
    assert path == str(tmp_path / "new" / "rejects.jsonl")
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    assert lines.pop() == ""
    found = [json.loads(line) for line in lines]
    assert [(one["split"], one["key"]) for one in found] == [
        ("test", "z"), ("train", "a"), ("train", "b\n1"), ("train", "é"),
    ]  # fmt: skip
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


def test_reasons_are_counted_the_most_frequent_first():
    found = reasons({"a": 1, "b": 2, "c": 3})
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
