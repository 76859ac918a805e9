"""The order as it is read: whole passes, any position, hosts, filters, reads that wait or fail."""

from __future__ import annotations

import itertools
import pathlib
import threading
from collections import Counter
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from imageshards import storage
from imageshards.tfrecord import RecordError, frame_record
from tests.support.reader_sets import choose, make_set, record_of
from tests.support.resumed_stream import assert_resumes
from trainer.dataset.spec import WHOLE, DataSet, ReplicaSlices, Subset
from trainer.reader import pieces as pieces_module
from trainer.reader.order import (
    evaluation_order,
    shareable_size,
    training_order,
    without_copies,
)
from trainer.reader.pieces import PieceReader

tf = pytest.importorskip("tensorflow")

from trainer.reader import read_ahead  # noqa: E402
from trainer.reader.records import record_batches  # noqa: E402

# Shards of unequal length, one of them empty.
SHARDS = [[(7 * k + i) % 3 for i in range((k * 5) % 4)] for k in range(19)]
NUM_RECORDS = sum(map(len, SHARDS))
LABELS = [label for shard in SHARDS for label in shard]
SMALL_PIECE = 3_000


@pytest.fixture(scope="module", autouse=True)
def _small_pieces() -> Any:
    """Pieces of a few records, so that a small data set has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.dataset.pieces.PIECE_BYTES", SMALL_PIECE)
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return make_set(tmp_path_factory.mktemp("records") / "set", SHARDS)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Subset:
    subset = choose(make_set(tmp_path_factory.mktemp("large") / "set", [[0] * 50] * 8))
    assert len(subset.pieces) > 64
    return subset


def batches_of(
    subset: Subset,
    batch: int = 4,
    seed: int | None = 0,
    slices: ReplicaSlices = WHOLE,
    start: int = 0,
    on_damage: Any = None,
) -> Any:
    if seed is None:
        order = evaluation_order(without_copies(subset), batch)
    else:
        order = training_order(subset, batch, seed)
    return record_batches(order, PieceReader(subset), batch, slices, start, on_damage)


def stream_of(subset: Subset, count: int, seed: int | None = 0, start: int = 0) -> list[int]:
    parts = batches_of(subset, 1, seed, start=start).take(count).as_numpy_iterator()
    return [int(number) for _, numbers in parts for number in numbers]


def test_a_record_comes_with_its_own_number_in_the_planned_order(dataset: DataSet) -> None:
    subset = choose(dataset)
    found = list(batches_of(subset, 5, 3).take(20).as_numpy_iterator())
    numbers = np.concatenate([numbers for _, numbers in found]).tolist()
    assert numbers == training_order(subset, 5, 3).records_at(0, 100).tolist()
    for payloads, of_batch in found:
        for payload, number in zip(payloads, of_batch, strict=True):
            assert payload == record_of(int(number), LABELS[int(number)])
    assert numbers != training_order(subset, 5, 4).records_at(0, 100).tolist()


def test_evaluation_is_one_pass_in_the_order_of_the_files(dataset: DataSet) -> None:
    assert stream_of(choose(dataset), 2 * NUM_RECORDS, None) == list(range(NUM_RECORDS))
    parts = list(batches_of(choose(dataset), 8, None).as_numpy_iterator())
    assert [len(numbers) for _, numbers in parts] == [8] * (NUM_RECORDS // 8) + [NUM_RECORDS % 8]


@pytest.mark.parametrize("slices", [(2, 1), (1, 2), (2, 2), (1, 4)], ids=str)
@pytest.mark.parametrize("seed", [1, None])
def test_slices_of_hosts_and_replicas_are_those_of_the_whole_batch(
    large: Subset, slices: tuple[int, int], seed: int | None
) -> None:
    replicas, hosts = slices
    whole = list(batches_of(large, 32, seed, start=3).take(10).as_numpy_iterator())
    made = [
        batches_of(large, 32, seed, ReplicaSlices(replicas, hosts, host), 3)
        for host in range(hosts)
    ]
    parts = [list(one.take(10 * replicas).as_numpy_iterator()) for one in made]
    for k in range(10):
        of_batch = [part for host in parts for part in host[k * replicas : (k + 1) * replicas]]
        numbers = np.concatenate([numbers for _, numbers in of_batch])
        there = whole[k][1].tolist()
        assert numbers.tolist() == there + [-1] * (32 - len(there))
        for payload, number in zip(np.concatenate([p for p, _ in of_batch]), numbers, strict=True):
            assert payload == (record_of(int(number), 0) if number >= 0 else b"")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each read of a shard, as they come."""
    found: list[Any] = []
    original = storage.read_range

    def counted(*asked: Any) -> bytes:
        found.append(asked)
        return original(*asked)

    monkeypatch.setattr(storage, "read_range", counted)
    return found


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_each_host_reads_its_part_of_the_bytes(
    large: Subset, hosts: int, read: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.dataset.pieces.PIECE_BYTES", 1)  # a record each
    subset = choose(large.dataset)
    for host in range(hosts):
        parts = batches_of(subset, 64, 1, ReplicaSlices(1, hosts, host))
        read.clear()
        list(parts.take(6))
        # What is read ahead does not depend on the number of hosts.
        ahead = read_ahead.READ_AHEAD_PIECES + 2 * 64 // hosts
        assert 6 * 64 // hosts <= len(read) <= 6 * 64 // hosts + ahead


@pytest.mark.parametrize(
    "choice",
    [{}, {"balance": "sampling"}, {"classes": ("cat", "ant"), "filters": ("number>=5",)}],
    ids=str,
)
def test_the_stream_resumes_at_every_position(dataset: DataSet, choice: dict[str, Any]) -> None:
    subset = choose(dataset, **choice)
    assert_resumes(
        lambda start: batches_of(subset, 1, 3, start=start).as_numpy_iterator(),
        subset.num_records + 4,
    )


def test_a_resumed_stream_reads_no_more_than_the_next_pieces_of_its_streams(
    large: Subset, read: list[Any]
) -> None:
    for start in (1, 200, 396):
        read.clear()
        next(batches_of(large, 1, 3, start=start).as_numpy_iterator())
        assert 1 <= len(read) <= read_ahead.READ_AHEAD_PIECES + 64


def test_only_records_of_the_classes_that_pass_the_filters_are_read(dataset: DataSet) -> None:
    expected = [i for i, label in enumerate(LABELS) if label in (0, 2) and i >= 5]
    subset = choose(dataset, classes=("cat", "ant"), filters=("number>=5",))
    assert sorted(stream_of(subset, len(expected))) == expected
    assert stream_of(subset, 100, None) == expected


def test_sampling_reads_every_class_exactly_as_often_as_the_largest(
    tmp_path: pathlib.Path,
) -> None:
    labels = [0] * 11 + [1] * 4 + [2]
    subset = choose(make_set(tmp_path, [labels[k::3] for k in range(3)]), balance="sampling")
    label_of = [label for k in range(3) for label in labels[k::3]]
    assert subset.num_records == 33
    stream = stream_of(subset, 99)
    for k in range(3):
        of_pass = stream[33 * k : 33 * (k + 1)]
        assert Counter(label_of[record] for record in of_pass) == {0: 11, 1: 11, 2: 11}
        assert len({*of_pass}) == len(labels)
    assert stream_of(subset, 100, None) == list(range(len(labels)))


@pytest.mark.parametrize(
    "choice", [{}, {"classes": ("bee", "cat")}, {"balance": "sampling"}], ids=str
)
def test_damaged_and_empty_records_keep_their_places(
    tmp_path: pathlib.Path, choice: dict[str, Any]
) -> None:
    labels = [i % 3 for i in range(13)]
    holes = make_set(tmp_path / "empty", [labels[:6], labels[6:]], empty=(1, 4, 7))
    damaged = choose(holes, **choice)
    spoil(damaged, 10)
    noted: dict[int, str] = {}
    batches = batches_of(damaged, 8, on_damage=lambda n, _, error: noted.update({n: error.reason}))
    numbers: list[int] = []
    for payloads, of_batch in batches.take(5).as_numpy_iterator():
        assert [not one for one in payloads] == [n in (1, 4, 7, 10) for n in of_batch]
        numbers += of_batch.tolist()
    assert numbers == training_order(damaged, 8, 0).records_at(0, 40).tolist()
    expected = {n for n in (1, 4, 7, 10) if n in numbers}
    # Rows that were read may hold records of later batches.
    assert expected <= {*noted} <= {1, 4, 7, 10}
    assert {noted[n] for n in noted if n != 10} <= {"it is empty"}
    assert "checksum" in noted.get(10, "checksum")


def spoil(subset: Subset, record: int, at: int = 20) -> pathlib.Path:
    """Flips a bit of a record, `at` bytes behind its header's begin."""
    reader, pieces = PieceReader(subset), subset.pieces
    piece = int(np.searchsorted(pieces.first, record, side="right")) - 1
    place = reader.places(piece)[record - int(pieces.first[piece])]
    path = pathlib.Path(subset.split.shards[int(pieces.shard[piece])].path)
    data = bytearray(path.read_bytes())
    data[place.offset_bytes + at] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("at", [20, 3], ids=["payload", "length"])
def test_a_damaged_record_fails_in_its_own_batch_and_harms_no_other(
    tmp_path: pathlib.Path, at: int
) -> None:
    subset = choose(make_set(tmp_path, [[0] * 20] * 3))
    path = spoil(subset, 27, at)
    places = training_order(subset, 4, 0).records_at(0, 60).tolist()
    parts = batches_of(subset).as_numpy_iterator()
    for _ in range(places.index(27) // 4):
        next(parts)
    with pytest.raises(tf.errors.OpError, match="RecordError: .*record 7 at byte .*checksum"):
        next(parts)
    reader = PieceReader(subset)
    found = [one for k in range(len(subset.pieces)) for one in reader.read(k)]
    assert [i for i, one in enumerate(found) if isinstance(one, RecordError)] == [27]
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 10)
    last = reader.read(int(np.flatnonzero(subset.pieces.shard == 1)[-1]))[-1]
    assert isinstance(last, RecordError) and "ends inside the record" in last.reason
    path.unlink()
    gone = reader.read(int(np.flatnonzero(subset.pieces.shard == 1)[0]))
    assert {one.reason for one in gone if isinstance(one, RecordError)} == {"the file is missing"}


def test_a_record_of_another_length_than_indexed_is_damaged(tmp_path: pathlib.Path) -> None:
    subset = choose(make_set(tmp_path, [[0] * 2]))
    path = pathlib.Path(subset.split.shards[0].path)
    size = path.stat().st_size
    short = frame_record(b"short")
    path.write_bytes(short + path.read_bytes()[len(short) :])
    assert path.stat().st_size == size
    (first, *_) = PieceReader(subset).read(0)
    assert isinstance(first, RecordError) and "another length than the" in first.reason


def test_reads_are_made_ahead_in_parallel_and_change_no_order(
    large: Subset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in of a slow disk: a read returns when seven others have been asked for."""
    gate, original = threading.Barrier(8), storage.read_range
    numbers = itertools.count()

    def slow(path: str, begin: int, end: int) -> bytes:
        if next(numbers) < 64:
            gate.wait(60)
        return original(path, begin, end)

    monkeypatch.setattr(storage, "read_range", slow)
    parts = batches_of(large, 64, 5).take(8).as_numpy_iterator()
    found = [n for _, numbers in parts for n in numbers]
    assert found == training_order(large, 64, 5).records_at(0, 512).tolist()
    assert next(numbers) >= 64


@pytest.mark.parametrize(("times", "told"), [(3, None), (4, "tired")])
def test_a_read_that_fails_is_tried_again(
    dataset: DataSet, monkeypatch: pytest.MonkeyPatch, times: int, told: str | None
) -> None:
    failures: Counter[Any] = Counter()
    original = storage.read_range

    def unsteady(*asked: Any) -> bytes:
        failures[asked] += 1
        if failures[asked] <= times:
            raise OSError(5, "tired")
        return original(*asked)

    monkeypatch.setattr(storage, "read_range", unsteady)
    monkeypatch.setattr(pieces_module, "RETRY_SEC", 0.0)
    parts = batches_of(choose(dataset)).as_numpy_iterator()
    if told is None:
        assert len(next(parts)[1]) == 4
        return
    with pytest.raises(tf.errors.OpError, match=told):
        next(parts)


def test_iterators_of_one_dataset_do_not_disturb_each_other(dataset: DataSet) -> None:
    made = batches_of(choose(dataset), 4, 2)
    expected = [numbers.tolist() for _, numbers in made.take(12).as_numpy_iterator()]
    several = [made.take(12).as_numpy_iterator() for _ in range(7)]
    for k in range(12):
        for one in several:
            assert next(one)[1].tolist() == expected[k]


def test_the_last_batch_has_records_for_every_replica() -> None:
    for batch_size in (4, 8, 12, 16, 256):
        for replicas in (n for n in range(1, 9) if batch_size % n == 0):
            for rest in range(1, batch_size + 1):
                last = shareable_size(rest, batch_size, replicas)
                other = batch_size + rest - last
                assert 0 < last <= batch_size >= other > 0 == other % replicas
                shares = -(-last // replicas)
                if shares * (replicas - 1) >= last:  # then nothing helps
                    assert last == rest and batch_size / replicas <= replicas
    assert [shareable_size(n, 16, 4) for n in (1, 2, 3, 4, 9)] == [13, 10, 7, 4, 13]


def test_iterators_that_were_dropped_leave_a_bounded_number_of_pieces(large: Subset) -> None:
    made = batches_of(large, 64, 2)
    for k in range(12):
        next(made.skip(k).as_numpy_iterator())
    asked = made.reader._asked
    assert 0 < len(asked) <= 2 * (made.reader._depth + 1) * 64


def test_a_read_that_failed_is_made_again_for_the_next_iterator(
    dataset: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, original = batches_of(choose(dataset)), storage.read_range
    monkeypatch.setattr(pieces_module, "RETRY_SEC", 0.0)
    monkeypatch.setattr(storage, "read_range", Mock(side_effect=OSError(5, "tired")))
    with pytest.raises(tf.errors.OpError, match="tired"):
        next(made.as_numpy_iterator())
    monkeypatch.setattr(storage, "read_range", original)
    expected = training_order(choose(dataset), 4, 0).records_at(0, 20).tolist()
    found = [n for _, numbers in made.take(5).as_numpy_iterator() for n in numbers]
    assert found == expected
