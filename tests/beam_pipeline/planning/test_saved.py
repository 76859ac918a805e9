"""The numbers of shards that a resumed build keeps."""

import dataclasses
from collections import Counter

import pytest

from beam_pipeline.options import ImageOptions, PlanOptions, UrlOptions
from beam_pipeline.planning import transforms
from beam_pipeline.planning.refs import RefBatch

COUNTS = {("train", "a"): 600, ("train", "b"): 400}
OPTIONS = PlanOptions(splits={"train": 1.0}, shard_mb=0.1)


def shards_of(path, mean_bytes, counts=COUNTS, options=OPTIONS, **image):
    kinds = Counter({("train", "one"): sum(counts.values())})
    survey = transforms.Survey(Counter(counts), kinds, RefBatch([]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "mean_record_bytes", lambda *args: mean_bytes)
        plan = transforms.plan_of(survey, options, ImageOptions(**image), UrlOptions(), str(path))
    return plan.num_shards["train"]


def test_the_numbers_of_shards_of_an_earlier_run_are_used_for_the_same_survey_only(tmp_path):
    path = tmp_path / "plan.json"
    assert shards_of(path, 5000.0) == 50
    assert shards_of(path, 4000.0) == 50
    assert shards_of(path, 4000.0, {**COUNTS, ("train", "a"): 850}) == 50  # 1,250 images now
    assert shards_of(path, 4000.0) == 40
    smaller = dataclasses.replace(OPTIONS, shard_mb=0.05)
    assert shards_of(path, 4000.0, options=smaller) == 80
    assert shards_of(path, 6000.0, options=smaller, quality=50) == 120


@pytest.mark.parametrize("text", ["", "{", "[]", '{"survey": "x", "num_shards": {"train": 0}}'])
def test_a_damaged_file_is_replaced(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert shards_of(path, 5000.0) == 50
    assert shards_of(path, 4000.0) == 50
