"""What a person sees: lines and tables."""

from __future__ import annotations

import pytest

from beam_pipeline.images.process_pool import LocalPool
from beam_pipeline.progress import (
    PoolProgress,
    class_line,
    final_table,
    plan_table,
    progress_line,
)
from imageshards.progress import note_activity


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((0, 1399, 0, 0, 0, 0.0), "0/1,399 images  0 rejects"),
        (
            (1200, 1399, 30_000_000, 2, 0, 3.0),
            "1,200/1,399 images  400 images/s  10.0 MB/s  2 rejects  ETA 00:00",
        ),
        (
            (1200, 100_000, 1_000_000, 0, 1000, 10.0),  # only this run's images tell the speed
            "1,200/100,000 images  20 images/s  0.1 MB/s  0 rejects  ETA 1:22:20",
        ),
        ((60, 120, 0, 0, 0, 60.0), "60/120 images  1 images/s  0.0 MB/s  0 rejects  ETA 01:00"),
        ((12, 10, 0, 0, 0, 1.0), "12/10 images  12 images/s  0.0 MB/s  0 rejects  ETA 00:00"),
        ((5, 10, 0, 0, 5, 9.0), "5/10 images  0 rejects"),
    ],
)
def test_progress_line(arguments, line):
    assert progress_line(*arguments) == line


MANIFEST = {
    "splits": {
        "train": {
            "num_records": 1259,
            "shards": [
                {"num_records": 629, "num_bytes": 1_500_000, "classes": {"cat": 300, "dog": 329}},
                {"num_records": 630, "num_bytes": 1_500_000, "classes": {"cat": 300, "dog": 330}},
            ],
        },
        "test": {"num_records": 0, "shards": [{"num_records": 0, "num_bytes": 0, "classes": {}}]},
    },
    "classes": ["cat", "dog", "emu"],
    "listed": 1399,
    "rejects": {"truncated": 3, "empty": 1},
    "skipped": {"hidden": 2},
}


def test_the_final_table_has_splits_rejects_and_speed():
    manifest = MANIFEST | {"warnings": ["3 things are odd", "and one more"]}
    lines = final_table(manifest, 14.0, 0).split("\n")
    assert lines[2].split() == ["train", "2", "1,259", "629", "630", "3.0"]
    assert lines[3].split() == ["test", "1", "0", "0", "0", "0.0"]
    assert lines[4:] == [
        "3 classes: cat 600, dog 659, emu 0",
        "1,399 images listed, 4 rejected (truncated 3, empty 1)",
        "2 files passed over (hidden 2)",
        "14.0 s, 100 images/s with start-up",
        "warning: 3 things are odd",
        "warning: and one more",
    ]


def test_the_final_table_leaves_out_what_is_nothing_and_counts_only_new_work():
    lines = final_table({**MANIFEST, "rejects": {}, "skipped": {}}, 2.0, 1199).split("\n")
    assert lines[5:] == [
        "1,399 images listed, 0 rejected",
        "1,199 images were finished by an earlier run",
        "2.0 s, 100 images/s with start-up",
    ]
    assert "\n0.0 s with start-up" in final_table(MANIFEST, 0.0, 1399)


def test_the_plan_table_shows_splits_classes_and_what_is_wrong():
    split = {"shards": 4, "images": 1259, "min": 314, "max": 315}
    summary = {
        "splits": {"train": split},
        "counts": {"train": {f"c{i}": 1000 + i for i in range(23)}},
        "skipped": {"hidden": 2},
        "rejects": {"not_found": {"images": 12, "uri": "/a.jpg", "message": "No such file"}},
        "warnings": ["odd"],
    }
    text = plan_table(summary)
    assert "train       4   1,259        314        315\n" in text
    assert "23 classes: largest c22 1,022, smallest c0 1,000" in text
    assert "files passed over (hidden 2)" in text
    assert "rejected already when listed: not_found 12 such as '/a.jpg' (No such file)" in text
    assert text.endswith("warning: odd\nnothing was written")
    of_one_size = summary | {"counts": {"train": {f"c{i}": 1 for i in range(300)}}}
    assert "300 classes: 1 in each" in plan_table(of_one_size)


def test_no_line_of_a_table_is_too_long_for_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    split = {"shards": 4, "images": 1259, "min": 314, "max": 315}
    example = {"images": 1, "uri": "/photos/cat/b.jpg", "message": "the picture ends early"}
    rejects = {"truncated": example, "not_found": example}
    summary = {
        "splits": {"train": split}, "counts": {"train": {"cat": 1259}},
        "skipped": {f"reason_{i}": i for i in range(9)},
        "rejects": rejects, "warnings": ["odd things " * 20],
    }  # fmt: skip
    manifest = MANIFEST | {"warnings": summary["warnings"], "rejects": summary["skipped"]}
    for table in (plan_table(summary), final_table(manifest, 14.0, 0)):
        assert max(map(len, table.split("\n"))) <= 80


class Pool(LocalPool):
    """A pool that has written so many of its images."""

    images = 0

    def __init__(self):
        self.total = 0  # without a process

    def progress(self):
        return self.images, 0, 0, 0


def test_the_steps_before_and_after_the_shards_are_said():
    pool = Pool()
    line = PoolProgress(pool).line
    note_activity("")
    assert line() == ""
    note_activity("listing", 12, "image")
    assert line().startswith("listing: 12 images")
    pool.total = 12
    assert line() == "0/12 images  0 rejects"
    pool.images = 12
    note_activity("committing", 3, "shard")
    assert line().startswith("committing: 3 shards")


def test_long_lists_of_classes_are_wrapped():
    text = class_line({f"n0210023{i}_German_short-haired_pointer_dog_{i}": i for i in range(9)})
    assert all(len(line) <= 80 for line in text.split("\n"))
    assert class_line({"cat": 1}) == "1 class: cat 1"
