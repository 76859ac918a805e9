"""The order of the records: seed and epoch, whole passes, the shuffle buffer, resuming."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from imageshards.tfrecord import write_records
from tests.support.reader_sets import READ_OPTIONS, choose, make_set, record_of
from tests.support.resumed_stream import assert_resumes
from trainer.dataset.spec import DataSet, ReadOptions, Shard, Subset

tf = pytest.importorskip("tensorflow")

from trainer.reader import order, sources  # noqa: E402

# More shards than are open at once, of unequal length, one of them empty.
SHARDS = [[(7 * k + i) % 3 for i in range((k * 5) % 4)] for k in range(19)]
NUM_RECORDS = sum(map(len, SHARDS))
LABELS = [label for shard in SHARDS for label in shard]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return make_set(tmp_path_factory.mktemp("records") / "set", SHARDS)


@pytest.fixture
def many_shards(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Subset:
    """80 shards of 5 records, many times as much as a shuffle buffer holds."""
    monkeypatch.setattr(order, "SHUFFLE_BUFFER_BYTES", 8_000)
    return choose(make_set(tmp_path / "many", [[0] * 5] * 80))


@pytest.fixture(autouse=True)
def _no_global_seed() -> Iterator[None]:
    yield
    tf.random.set_seed(None)


def _stream(
    subset: Subset,
    count: int,
    seed: int = 0,
    start: int = 0,
    read_options: ReadOptions = READ_OPTIONS,
) -> list[int]:
    stream = order.training_records(subset, read_options, seed, start)
    return [int(record) for _, record in stream.take(count).as_numpy_iterator()]


def _passes(stream: list[int], length: int) -> list[list[int]]:
    return [stream[i : i + length] for i in range(0, len(stream), length)]


def test_every_pass_holds_each_record_once_and_in_another_order(dataset: DataSet) -> None:
    stream = _stream(choose(dataset), 3 * NUM_RECORDS)
    passes = _passes(stream, NUM_RECORDS)
    assert [sorted(p) for p in passes] == [list(range(NUM_RECORDS))] * 3
    assert len({tuple(p) for p in passes}) == 3
    assert _stream(choose(dataset), NUM_RECORDS, seed=1) != passes[0]


def test_the_order_stays_until_its_version_goes_up(dataset: DataSet) -> None:
    """What a run was begun with is what it goes on with after an upgrade of this project."""
    assert order.ORDER_VERSION == 2
    stream = _stream(choose(dataset), 2 * NUM_RECORDS, seed=7)
    assert stream[:9] == [22, 13, 23, 7, 4, 2, 20, 8, 17]
    assert stream[NUM_RECORDS:][:9] == [24, 7, 15, 0, 19, 9, 1, 4, 8]


def test_the_order_of_several_sections_an_epoch_stays_too(many_shards: Subset) -> None:
    assert order.shuffle_records(many_shards) == 9 and order.sections_per_pass(many_shards) == 5
    stream = _stream(many_shards, 800, seed=7)
    assert [sorted(p) for p in _passes(stream, 400)] == [list(range(400))] * 2
    assert stream[:9] == [155, 380, 140, 90, 20, 185, 230, 175, 265]
    assert stream[200:209] == [276, 368, 117, 37, 162, 67, 323, 163, 103]
    assert stream[400:409] == [155, 135, 15, 25, 305, 365, 195, 315, 275]
    assert stream[600:609] == [122, 288, 207, 268, 57, 12, 232, 82, 267]


def test_repaired_shards_of_another_size_keep_the_order(many_shards: Subset) -> None:
    split = many_shards.split
    shrunk = [dataclasses.replace(s, num_bytes=s.num_bytes // 3) for s in split.shards]
    repaired = dataclasses.replace(split, shards=tuple(shrunk))
    again = dataclasses.replace(many_shards, split=repaired)
    assert _stream(again, 800, seed=7) == _stream(many_shards, 800, seed=7)


def test_a_split_in_sections_resumes_at_any_position(many_shards: Subset) -> None:
    whole = _stream(many_shards, 820, seed=3)
    # A section has 80 records.
    for start in (1, 79, 80, 81, 399, 400, 403, 475, 480, 799, 800):
        assert _stream(many_shards, 9, seed=3, start=start) == whole[start : start + 9]


def test_the_next_section_is_read_while_the_first_one_lasts(many_shards: Subset) -> None:
    seen: list[int] = []

    def note(record: Any) -> Any:
        seen.append(int(record))
        return record

    files = sources.file_source(many_shards, READ_OPTIONS)

    def shard(k: Any) -> Any:
        noted = files.shard(k).map(lambda s, r: (s, tf.py_function(note, [r], tf.int64)))
        return noted.map(lambda s, r: (s, tf.ensure_shape(r, [])))

    source = dataclasses.replace(files, shard=shard)
    # 375 is in the last section of the epoch: what comes ahead of time is the next epoch's.
    chunks = iter(order.training_chunks(source, many_shards, 3, 375))
    first = next(chunks)[1].numpy().tolist()
    end = time.monotonic() + 60
    # The shuffle buffer of the next epoch's first section, and a first chunk.
    while len(seen) < 80 + 70 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(seen) >= 80 + 70 and len(first) < 80


def test_a_record_comes_with_its_own_number(dataset: DataSet) -> None:
    stream = order.training_records(choose(dataset), READ_OPTIONS, 0).take(NUM_RECORDS)
    for serialized, record in stream.as_numpy_iterator():
        assert serialized == record_of(int(record), LABELS[int(record)])


@pytest.mark.parametrize("global_seed", [0, 7])
def test_the_order_is_a_function_of_seed_and_epoch_alone(
    dataset: DataSet, global_seed: int
) -> None:
    expected = _stream(choose(dataset), 2 * NUM_RECORDS, seed=5)
    tf.random.set_seed(global_seed)
    tf.random.uniform([])
    subset = choose(dataset)
    assert _stream(subset, 2 * NUM_RECORDS, seed=5, read_options=ReadOptions(threads=7)) == expected
    assert _stream(subset, NUM_RECORDS, 5, NUM_RECORDS) == expected[NUM_RECORDS:]


@pytest.mark.parametrize(
    "choice",
    [{}, {"balance": "sampling"}, {"classes": ("cat", "ant"), "filters": ("number>=5",)}],
    ids=str,
)
def test_the_stream_resumes_at_every_position(dataset: DataSet, choice: dict[str, Any]) -> None:
    subset = choose(dataset, **choice)

    def stream(start: int) -> Any:
        return order.training_records(subset, READ_OPTIONS, 3, start).as_numpy_iterator()

    assert_resumes(stream, subset.num_records + 4)


def test_resuming_opens_no_shard_of_a_section_that_was_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "SHUFFLE_BUFFER_BYTES", 8_000)
    subset = choose(make_set(tmp_path, [[0] * 5] * 40))
    start = 160
    whole = _stream(subset, 400, seed=3)
    read = set(whole[200:300])
    behind = [k for k in range(40) if {5 * k + i for i in range(5)} <= read]
    assert len(behind) == 20
    stream = order.training_records(subset, READ_OPTIONS, 3, 200 + start).take(40)
    for k in behind:
        pathlib.Path(subset.split.shards[k].path).rename(tmp_path / f"away-{k}")
    assert [int(record) for _, record in stream.as_numpy_iterator()] == whole[360:]
    assert all(payload for payload, _ in stream.as_numpy_iterator())
    for k in behind:
        (tmp_path / f"away-{k}").rename(subset.split.shards[k].path)
    assert _stream(subset, 80, seed=3, start=360)[:40] == whole[360:]


def test_only_records_of_the_classes_that_pass_the_filters_are_read(dataset: DataSet) -> None:
    expected = [i for i, label in enumerate(LABELS) if label in (0, 2) and i >= 5]
    subset = choose(dataset, classes=("cat", "ant"), filters=("number>=5",))
    stream = _stream(subset, 2 * len(expected))
    assert [sorted(p) for p in _passes(stream, len(expected))] == [expected] * 2
    once = order.ordered_records(subset, READ_OPTIONS)
    assert once.cardinality() == len(expected)
    assert sorted(int(record) for _, record in once.as_numpy_iterator()) == expected


def test_sampling_reads_every_class_exactly_as_often_as_the_largest(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "INSPECT_RECORDS", 4)
    labels = [0] * 11 + [1] * 4 + [2]
    dataset = make_set(tmp_path, [labels[k::3] for k in range(3)])
    label_of = [label for k in range(3) for label in labels[k::3]]
    subset = choose(dataset, balance="sampling")
    assert subset.num_records == 33
    extra = []
    for one_pass in _passes(_stream(subset, 99), 33):
        times = Counter(one_pass)
        assert Counter(label_of[record] for record in one_pass) == {0: 11, 1: 11, 2: 11}
        assert {times[r] for r in times if label_of[r] == 0} == {1}
        assert {times[r] for r in times if label_of[r] == 1} == {2, 3}
        assert len(times) == len(labels)
        extra.append({r for r in times if label_of[r] == 1 and times[r] == 3})
    assert len(set(map(frozenset, extra))) > 1  # not always the same ones
    once = order.ordered_records(subset, READ_OPTIONS)
    assert sorted(int(r) for _, r in once.as_numpy_iterator()) == list(range(len(labels)))


def test_copies_of_a_record_are_spread_over_the_pass(tmp_path: pathlib.Path) -> None:
    subset = choose(make_set(tmp_path, [[0] * 30, [1]]), ("ant", "bee"), balance="sampling")
    places = [i for i, record in enumerate(_stream(subset, 60)) if record == 30]
    assert len(places) == 30 and max(places) - min(places) > 40
    assert sum(b - a == 1 for a, b in zip(places, places[1:], strict=False)) < 25


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"classes": ("bee", "cat")},
        {"filters": ("number<1000",)},
        {"balance": "sampling"},
        {"balance": "sampling", "classes": ("bee", "ant")},
    ],
    ids=str,
)
def test_empty_records_keep_the_places_of_those_that_broke(
    tmp_path: pathlib.Path, choice: dict[str, Any]
) -> None:
    labels = [i % 3 for i in range(13)]
    sound = make_set(tmp_path / "sound", [labels[:6], labels[6:]])
    empty = make_set(tmp_path / "empty", [labels[:6], labels[6:]], empty=(1, 4, 7, 10))
    whole = choose(empty, **choice)
    assert _stream(whole, 40) == _stream(choose(sound, **choice), 40)
    once = list(order.ordered_records(whole, READ_OPTIONS).as_numpy_iterator())
    assert [not payload for payload, _ in once] == [number in (1, 4, 7, 10) for _, number in once]


@pytest.mark.parametrize("filters", [(), ("number>=0",)])
@pytest.mark.parametrize("change", [-1, 1, 2])
def test_another_number_of_records_than_counted_is_an_error(
    tmp_path: pathlib.Path, change: int, filters: tuple[str, ...]
) -> None:
    dataset = make_set(tmp_path, [[0] * 4, [0] * 4])
    shard = dataset.splits["train"].shards[1]
    write_records(shard.path, [record_of(i, 0) for i in range(4 + change)])
    subset = choose(dataset, filters=filters)
    with pytest.raises(tf.errors.FailedPreconditionError):
        _stream(subset, 16)
    with pytest.raises(tf.errors.FailedPreconditionError):
        list(order.ordered_records(subset, READ_OPTIONS))


def test_shards_of_one_class_each_are_mixed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "SHUFFLE_BUFFER_BYTES", 8_000)
    shards = [[k % 3] * 4 for k in range(3 * sources.OPEN_SHARDS)]
    dataset = make_set(tmp_path, shards, shard_by="class")
    label_of = [label for shard in shards for label in shard]
    stream = [label_of[record] for record in _stream(choose(dataset), len(label_of))]
    assert all(len(set(stream[i : i + 12])) == 3 for i in range(0, len(stream), 12))


def test_the_shuffle_buffer_is_bounded_in_bytes(dataset: DataSet) -> None:
    subset = choose(dataset)
    assert order.shuffle_records(subset) == NUM_RECORDS
    huge = Shard("x", 1000, 10 * order.SHUFFLE_BUFFER_BYTES)
    split = dataclasses.replace(subset.split, shards=(huge,))
    named = dataclasses.replace(subset.dataset, splits={"train": split})
    large = dataclasses.replace(subset, dataset=named, split=split, num_records=1000)
    assert order.shuffle_records(large) == 100


@pytest.mark.parametrize(
    ("shards", "share", "shown"),
    [(2, 0.02, "has 2 shards, and the shuffle buffer holds 2%"), (16, 0.1, "16 shards"),
     (2, 0.6, None), (64, 0.02, None)],
)  # fmt: skip
def test_shards_too_few_to_mix_are_warned_of(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    shards: int,
    share: float,
    shown: str | None,
) -> None:
    subset = choose(make_set(tmp_path, [[0] * (640 // shards)] * shards))
    monkeypatch.setattr(order, "SHUFFLE_BUFFER_BYTES", int(share * subset.split.num_bytes))
    first, second = (np.argsort(one).tolist() for one in _passes(_stream(subset, 1280), 640))
    assert (statistics.correlation(first, second) > 0.5) == (shown is not None)
    warning = order.order_warning(subset)
    assert (warning is None) if shown is None else (shown in str(warning))
    if warning:
        remedy = f"imageshards build --input {tmp_path} --output NEW --num_shards train=64"
        assert remedy in warning
