import dataclasses
import itertools
import math
import pathlib
import threading
from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from imageshards import storage
from imageshards.tfrecord import RecordError, frame_record
from tests.support.errors import refused
from tests.support.external_sets import flip_byte
from tests.support.reader_sets import choose, make_set, training_data
from trainer.dataset.batch import WHOLE, ReplicaSlices
from trainer.dataset.pieces import Pieces
from trainer.dataset.source import RecordSource
from trainer.reader import pieces as pieces_module
from trainer.reader import read_ahead
from trainer.reader.order import evaluation_order, shareable_size, training_order, without_copies
from trainer.reader.pieces import PieceReader
from trainer.reader.plan import Deal, Order
from trainer.reader.read_ahead import HeldPieces
from trainer.reader.records import record_batches
from trainer.strengths import LIGHT, STRONG

# Shards of unequal length, one of them empty.
SHARDS = [[(7 * k + i) % 3 for i in range((k * 5) % 4)] for k in range(19)]
LABELS = [label for shard in SHARDS for label in shard]
SMALL_PIECE = 3_000


@pytest.fixture(scope="module", autouse=True)
def _small_pieces():
    """Pieces of a few records, so that a small dataset has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.dataset.pieces.PIECE_BYTES", SMALL_PIECE)
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("records") / "set", SHARDS)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    subset = choose(make_set(tmp_path_factory.mktemp("large") / "set", [[0] * 50] * 8))
    assert len(subset.pieces) > 64
    return subset


def batches_of(subset, batch=4, seed=0, slices=WHOLE, start=0, on_damage=None):
    if seed is None:
        order = evaluation_order(without_copies(subset), batch)
    else:
        order = training_order(subset, batch, seed)
    source = HeldPieces(subset.pieces, PieceReader(subset).read)
    return record_batches(order, source, batch, slices, start, on_damage)


@pytest.fixture
def read(monkeypatch):
    counted = mock.Mock(wraps=storage.read_range)
    monkeypatch.setattr(storage, "read_range", counted)
    return counted


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.one_row
def test_each_host_reads_its_part_of_the_bytes(large, hosts, read, monkeypatch):
    monkeypatch.setattr("trainer.dataset.pieces.PIECE_BYTES", 1)  # a record each
    subset = choose(large.dataset)
    for host in range(hosts):
        parts = batches_of(subset, 64, 1, ReplicaSlices(1, hosts, host))
        read.reset_mock()
        list(parts.take(6))
        # What is read ahead does not depend on the number of hosts.
        ahead = read_ahead.READ_AHEAD_PIECES + 2 * 64 // hosts
        assert 6 * 64 // hosts <= read.call_count <= 6 * 64 // hosts + ahead


def test_a_resumed_stream_reads_no_more_than_the_next_pieces_of_its_streams(large, read):
    for start in (1, 200, 396):
        read.reset_mock()
        next(batches_of(large, 1, 3, start=start).as_numpy_iterator())
        assert 1 <= read.call_count <= read_ahead.READ_AHEAD_PIECES + 64


@pytest.mark.parametrize("choice", [{}, {"classes": ("bee", "cat")}, {"balance": "sampling"}])
@pytest.mark.one_row
def test_damaged_and_empty_records_keep_their_places(tmp_path, choice):
    labels = [i % 3 for i in range(13)]
    holes = make_set(tmp_path / "empty", [labels[:6], labels[6:]], empty=(1, 4, 7))
    damaged = choose(holes, **choice)
    spoil(damaged, 10)
    noted: dict[int, str] = {}
    places: list[tuple[int, int]] = []

    def note(number, step, error):
        noted[number] = error.reason
        places.append((step, number))

    batches = batches_of(damaged, 8, on_damage=note)
    numbers: list[int] = []
    for _, payloads, of_batch in batches.take(5).as_numpy_iterator():
        assert [not one for one in payloads] == [n in (1, 4, 7, 10) for n in of_batch]
        numbers += of_batch.tolist()
    assert numbers == training_order(damaged, 8, 0).records_at(0, 40).tolist()
    # Notes come in the order of the records, each with its batch; later batches are read ahead.
    expected = [(i // 8, n) for i, n in enumerate(numbers) if n in (1, 4, 7, 10)]
    assert places[: len(expected)] == expected
    assert {noted[n] for n in noted if n != 10} <= {"it is empty"}
    assert "checksum" in noted.get(10, "checksum")


def spoil(subset, record, at=20):
    """Changes a byte of a record, `at` bytes behind its header's begin."""
    path, stored = RecordSource(subset.dataset, subset.split).stored(record)
    flip_byte(pathlib.Path(path), stored.offset_bytes + at)


@pytest.mark.parametrize("at", [20, 3], ids=["payload", "length"])
def test_a_damaged_record_fails_only_its_own_batch(tmp_path, at):
    subset = choose(make_set(tmp_path, [[0] * 20] * 3))
    spoil(subset, 27, at)
    places = training_order(subset, 4, 0).records_at(0, 60).tolist()
    parts = batches_of(subset).as_numpy_iterator()
    for _ in range(places.index(27) // 4):
        next(parts)
    with pytest.raises(tf.errors.OpError, match="RecordError: .*record 7 at byte .*checksum"):
        next(parts)
    reader = PieceReader(subset)
    found = [one for k in range(len(subset.pieces)) for one in reader.read(k)]
    assert [i for i, one in enumerate(found) if isinstance(one, RecordError)] == [27]


def test_a_record_whose_length_differs_from_the_index_is_damaged(tmp_path):
    subset = choose(make_set(tmp_path, [[0] * 2]))
    path = pathlib.Path(subset.split.paths[0])
    short = frame_record(b"short")
    path.write_bytes(short + path.read_bytes()[len(short) :])
    (first, *_) = PieceReader(subset).read(0)
    assert isinstance(first, RecordError) and "another length than the" in first.reason


def test_parallel_reads_ahead_do_not_change_the_order(large, monkeypatch):
    """A stand-in of a slow disk: a read returns when seven others have been asked for."""
    gate, original = threading.Barrier(8), storage.read_range
    numbers = itertools.count()

    def slow(path, begin, end):
        if next(numbers) < 64:
            gate.wait(60)
        return original(path, begin, end)

    monkeypatch.setattr(storage, "read_range", slow)
    parts = batches_of(large, 64, 5).take(8).as_numpy_iterator()
    found = [n for *_, numbers in parts for n in numbers]
    assert found == training_order(large, 64, 5).records_at(0, 512).tolist()
    assert next(numbers) >= 64


def test_failed_reads_are_repeated_by_the_same_and_by_the_next_iterator(dataset, monkeypatch):
    attempts: Counter[Any] = Counter()
    original, limit = storage.read_range, 3

    def unsteady(*asked):
        attempts[asked] += 1
        if attempts[asked] <= limit:
            raise OSError(5, "tired")
        return original(*asked)

    monkeypatch.setattr(storage, "read_range", unsteady)
    monkeypatch.setattr(pieces_module, "RETRY_SEC", 0.0)
    made = batches_of(choose(dataset))
    assert len(next(made.as_numpy_iterator())[2]) == 4
    attempts.clear()
    limit = 4
    made = batches_of(choose(dataset))
    with pytest.raises(tf.errors.OpError, match="tired"):
        next(made.as_numpy_iterator())
    limit = 0
    found = [n for *_, numbers in made.take(5).as_numpy_iterator() for n in numbers]
    assert found == training_order(choose(dataset), 4, 0).records_at(0, 20).tolist()


def test_iterators_of_one_dataset_do_not_disturb_each_other(dataset):
    made = batches_of(choose(dataset), 4, 2)
    expected = [numbers.tolist() for *_, numbers in made.take(12).as_numpy_iterator()]
    several = [made.take(12).as_numpy_iterator() for _ in range(7)]
    for k in range(12):
        for one in several:
            assert next(one)[2].tolist() == expected[k]


def test_the_last_batch_has_records_for_every_replica():
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


@pytest.mark.parametrize(
    ("batch_size", "shares", "nearest"),
    [(33, 1, "32"), (1, 1, "2"), (6, 2, "8"), (24, 8, "32"), (10, 5, "20"), (128, 64, "")],
)
def test_mixing_needs_pairs_a_turn_apart_in_each_share(dataset, batch_size, shares, nearest):
    strong = dataclasses.replace(training_data(choose(dataset), batch_size), augment=STRONG)
    remedy = f"for example {nearest}, or an ims.Augment" if nearest else "expected an ims.Augment"
    with refused("batch_size", str(batch_size), remedy, "mixup=0 and cutmix=0"):
        strong.check_pairs(shares)
    dataclasses.replace(strong, batch_size=int(nearest or 64)).check_pairs(shares if nearest else 1)
    dataclasses.replace(strong, augment=LIGHT).check_pairs(shares)
    # Functions take whole batches, which have pairs for any number of shares.
    if batch_size % 2 == 0:
        dataclasses.replace(strong, functions=(print,)).check_pairs(shares)


@pytest.mark.parametrize(
    ("records_per_piece", "one_of", "batch_size", "steps", "seed"),
    [
        (1, 1, 256, 40, 7),
        (10, 1, 2048, 20, 7),
        (40, 10, 512, 20, 7),
        (3, 1, 2048, 15, None),
        (40, 10, 2048, 5, None),
    ],
)
def test_no_piece_is_read_twice(records_per_piece, one_of, batch_size, steps, seed):
    """A batch takes one record of a piece, a few, or most of them."""
    num_records = 3 * one_of * batch_size * steps
    zeros = np.zeros(num_records // records_per_piece, np.int64)
    first = np.arange(len(zeros)) * records_per_piece
    pieces = Pieces(zeros, first, zeros + records_per_piece, zeros, zeros)
    classes = np.where(np.arange(num_records) % one_of == 0, 0, -1).astype(np.int32)
    deal, epochs = (Deal(1, batch_size), 1) if seed is None else (Deal.of_batch(batch_size), None)
    order = Order(pieces, classes, None, seed, deal, epochs)
    reads: Counter[int] = Counter()

    def read(piece: int) -> list[bytes]:
        reads[piece] += 1
        return [b""] * records_per_piece

    at_once = math.ceil(batch_size / order.records_per_piece)
    source = HeldPieces(pieces, read, at_once)
    (*_, last) = record_batches(order, source, batch_size).take(steps)
    assert last[-1].shape == [batch_size] and max(reads.values()) == 1
