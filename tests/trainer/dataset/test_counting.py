"""Class counts: of every record or of those that pass filters, counted once."""

import pathlib
from collections.abc import Sequence
from typing import Any

import pytest

from imageshards.errors import UserError
from imageshards.tfrecord import write_records
from tests.support.external_sets import example, flip_byte, records_of
from trainer.dataset.counting import RecordProblem, class_counts, class_id
from trainer.dataset.spec import DataSet, FeatureSpec, ImageSpec, Shard, Split
from trainer.dataset.subset import select

RECORDS = [
    {"image": b"x", "label": 1 + i % 3, "width": 10 * i, "age": i / 10, "text": "ab"[i % 2]}
    for i in range(12)
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "imageshards" / "counts"


def make(folder: pathlib.Path, shards: list[list[bytes]], **changes: Any) -> Any:
    paths = [folder / f"{i}.tfrecord" for i in range(len(shards))]
    found = []
    for path, payloads in zip(paths, shards, strict=True):
        size = write_records(str(path), payloads)
        found.append(Shard(str(path), len(payloads), size))
    features = {
        "image": FeatureSpec("string", ()),
        "label": FeatureSpec("int64", ()),
        "width": FeatureSpec("int64", ()),
        "age": FeatureSpec("float32", ()),
        "text": FeatureSpec("string", ()),
    }
    split = Split("train", tuple(found))
    values: dict[str, Any] = {
        "data": str(folder),
        "splits": {"train": split},
        "classes": ("a", "b", "c", "d"),
        "image": ImageSpec(None, True, 3, (0.5,) * 3, (0.25,) * 3),
        "shard_by": "balanced",
        "features": features,
        "image_feature": "image",
        "label_feature": "label",
        "label_offset": 1,
        "fingerprint": "f",
    }
    return DataSet(**(values | changes)), split


def counted(data: Any, filters: Sequence[str], skip_broken: int = 0) -> tuple[int, ...]:
    dataset, split = data
    return class_counts(dataset, split, filters, skip_broken)


@pytest.fixture
def data(tmp_path):
    payloads = [example(r) for r in RECORDS]
    return make(tmp_path, [payloads[:5], payloads[5:]])


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((), (4, 4, 4, 0)),
        (("width>=60",), (2, 2, 2, 0)),
        (("width>=60", "text==a"), (1, 1, 1, 0)),
        # 0.1 in the records is a float32.
        (("age==0.1",), (0, 1, 0, 0)),
        (("age<0",), (0, 0, 0, 0)),
    ],
)
def test_records_that_pass_the_filters_are_counted(data, filters, expected):
    assert counted(data, filters) == expected


def test_a_split_is_counted_once(data, tmp_path, cache, capsys):
    assert counted(data, ("width>=60",)) == (2, 2, 2, 0)
    assert "width>=60: counting, once" in capsys.readouterr().err
    (tmp_path / "0.tfrecord").write_bytes(b"")
    assert counted(data, ("width>=60",)) == (2, 2, 2, 0)
    assert f"counted before, see {next(cache.iterdir())}" in capsys.readouterr().err


def test_other_data_and_filters_are_counted_again(data, tmp_path, cache):
    import dataclasses

    dataset, split = data
    class_counts(dataset, split, ())
    class_counts(dataset, split, ("width>=60",))
    class_counts(dataclasses.replace(dataset, fingerprint="g"), split, ())
    class_counts(dataset, Split("train", split.shards[:1]), ())
    assert len(list(cache.iterdir())) == 4


def test_the_order_of_filters_does_not_matter(data, cache):
    counted(data, ("width>=60", "text==a"))
    counted(data, ("text==a", "width>=60"))
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("filters", [(), ("width>=0",)])
class TestBroken:
    def spoiled(self, tmp_path, payload):
        payloads = [example(r) for r in RECORDS]
        return make(tmp_path, [payloads[:6], [payloads[6], payload, *payloads[8:]]])

    def test_empty_records_do_not_count(self, tmp_path, filters):
        data = self.spoiled(tmp_path, b"")
        assert counted(data, filters) == (4, 3, 4, 0)

    @pytest.mark.parametrize(
        ("payload", "reason"),
        [
            (b"no example \xff", "it is no tf.train.Example"),
            (example({"image": b"x", "width": 1}), "it has no feature label with one value"),
            (example({"label": 5, "width": 1}), "its label is 5, expected 1 to 4 .see label_off"),
            (example({"label": 0, "width": 1}), "its label is 0, expected 1 to 4 .see label_off"),
        ],
    )
    def test_a_broken_record_is_named_by_file_number_and_offset(
        self, tmp_path, filters, payload, reason
    ):
        data = self.spoiled(tmp_path, payload)
        offset = records_of(data[1].shards[1].path)[1].offset_bytes
        for _ in range(2):
            with pytest.raises(UserError, match=f"1.tfrecord .* record 1, byte {offset}: {reason}"):
                counted(data, filters)
        assert counted(data, filters, skip_broken=1) == (4, 3, 4, 0)
        with pytest.raises(UserError, match="expected at most 0 broken records"):
            counted(data, filters)

    def test_a_refused_count_is_not_cached(self, tmp_path, filters, cache):
        with pytest.raises(UserError, match="broken at record 1"):
            counted(self.spoiled(tmp_path, b"no example"), filters)
        assert not cache.exists()

    def test_a_wrong_checksum_is_named_by_file_number_and_offset(self, data, filters, tmp_path):
        flip_byte(tmp_path / "0.tfrecord", 20)
        with pytest.raises(UserError, match="0.tfrecord .* record 0, byte 0: the payload's che"):
            counted(data, filters)
        assert counted(data, filters, skip_broken=1) == (3, 4, 4, 0)

    def test_a_missing_shard_is_named(self, data, filters, tmp_path):
        (tmp_path / "1.tfrecord").unlink()
        with pytest.raises(UserError, match="1.tfrecord cannot be read"):
            counted(data, filters)


def test_a_filter_on_a_missing_feature_names_the_record(tmp_path):
    data = make(tmp_path, [[example(RECORDS[0]), example({"label": 2})]])
    with pytest.raises(UserError, match="record 1, .* lacks a feature that width>=3 needs"):
        counted(data, ("width>=3",))


def test_select_gets_its_counts_here(data):
    dataset, split = data
    found = select(
        dataset,
        split,
        classes=("c", "a"),
        filters=("text==a",),
        balance="none",
        count=lambda: class_counts(dataset, split, ("text==a",)),
    )
    assert (found.num_records, found.class_counts) == (4, (2, 2))


def test_a_class_name_as_label_becomes_a_class_id(tmp_path):
    dataset, _ = make(tmp_path, [], label_offset=0)
    assert class_id(dataset, example({"label": "c"})) == 2
    with pytest.raises(RecordProblem, match="'x', which is no class"):
        class_id(dataset, example({"label": "x"}))
