"""The demo: the same pictures each time, and a summary that notices what went wrong."""

import json

import pytest

from scripts import demo_summary, make_demo_images

PER_CLASS = 60


def test_a_seed_draws_the_same_bytes_and_more_pictures_change_none() -> None:
    files = dict(make_demo_images.pictures(PER_CLASS, seed=1))
    more = dict(make_demo_images.pictures(PER_CLASS + 5, seed=1))
    assert len(more) == len(files) + 15 and files.items() <= more.items()
    other = dict(make_demo_images.pictures(PER_CLASS, seed=2))
    assert other.keys() == files.keys()
    assert all(other[path] != files[path] for path in files if "_0000" in path)


MADE = "shards/manifest.json shards/train-00000-of-00001.tfrecord shards/report/index.html".split()
MADE += ["model/model.keras", "model/report/index.html"]


@pytest.mark.parametrize(
    ("accuracy", "missing", "code"),
    [(0.97, None, 0), (0.94, None, 1), (float("nan"), None, 1), (1.0, "model/model.keras", 1)],
)
def test_the_summary_fails_where_something_is_missing(tmp_path, accuracy, missing, code):
    for path in MADE:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    lines = [json.dumps({"val_accuracy": value}) for value in (0.1, accuracy)]
    (tmp_path / "model" / "metrics.jsonl").write_text("\n".join(lines))
    if missing:
        (tmp_path / missing).unlink()
    argv = ["--shards", str(tmp_path / "shards"), "--model", str(tmp_path / "model")]
    assert demo_summary.main(argv) == code
