"""What a person sees: lines and tables."""

import itertools
import types
from typing import Any

from msgspec import structs

from beam_pipeline import progress
from beam_pipeline.progress import column_lines, final_table, pool_line
from imageshards.manifest import RECORD_FEATURES, IndexFile, Shard, Split
from tests.support.manifests import blank


def shard(file: str, num_records: int, num_bytes: int, **classes: int) -> Shard:
    return Shard(file, num_records, num_bytes, "0" * 64, classes, IndexFile("index/a", 1, "0" * 64))


TRAIN = [shard("a", 629, 1_500_000, cat=300, dog=329), shard("b", 630, 1_500_000, cat=300, dog=330)]
MANIFEST = blank(
    splits={"train": Split(1259, TRAIN), "test": Split(0, [shard("c", 0, 0)])},
    classes=["cat", "dog", "emu"],
    features=RECORD_FEATURES, listed=1399, rejects={"truncated": 3, "empty": 1},
    skipped={"hidden": 2},
)  # fmt: skip


def test_the_final_table_has_splits_rejects_and_speed():
    manifest = structs.replace(MANIFEST, warnings=["3 things are odd"])
    lines = final_table(manifest, 14.0, 0).split("\n")
    assert lines[2].split() == ["train", "2", "1,259", "629", "630", "3.0"]
    assert lines[3].split() == ["test", "1", "0", "0", "0", "0.0"]
    assert lines[4:] == [
        "3 classes: cat 600, dog 659, emu 0",
        "1,399 images listed, 4 rejected (truncated 3, empty 1)",
        "2 files skipped (hidden 2)",
        "14.0 s, 100 images/s, start-up included",
        "warning: 3 things are odd",
    ]


def test_columns_are_named_with_type_missing_numbers_and_values():
    boxes = [(f"image/object/bbox/{side}", "float32", None) for side in ("xmin", "xmax")]
    columns = [("a", "float", ()), ("b", "string", ()), ("c", "int64", (3,)), *boxes]
    (line,) = column_lines(columns, {"a": 3}, {"b": 1000, "a": 0})
    assert line == "columns: a float, 3 missing; b text, many values; c int[3]; boxes"
    (line,) = column_lines([(f"n{i}", "int", ()) for i in range(30)], {})
    assert line.endswith("10 more") and column_lines([], {}) == []


def test_the_final_table_omits_empty_counts_and_rates_only_new_images(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    odd = structs.replace(MANIFEST, rejects={}, skipped={}, warnings=["odd things " * 20])
    lines = final_table(odd, 2.0, 1199).split("\n")
    assert lines[5] == "1,399 images listed, 0 rejected"
    assert lines[6] == "1,199 images were finished by an earlier run"
    assert lines[7] == "2.0 s, 100 images/s, start-up included"
    assert max(map(len, lines)) <= 80  # as wide as a terminal
    assert "\n0.0 s, start-up included" in final_table(MANIFEST, 0.0, 1399)


def test_the_rate_counts_only_images_of_this_run(monkeypatch):
    seconds = itertools.count(100.0, 10.0)
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(seconds)))
    # Images, bytes, rejects, and images of an earlier run; the clock begins with the first image.
    done = iter([(1000, 0, 0, 1000), (1100, 7, 1, 1000), (1200, 1_000_000, 2, 1000)])
    pool: Any = types.SimpleNamespace(total=100_000, progress=lambda: next(done))
    line = pool_line(pool)
    assert line() == "1,000/100,000 images  0 rejects"
    line()
    assert line() == "1,200/100,000 images  20 images/s  0.1 MB/s  2 rejects  ETA 1:22:20"
