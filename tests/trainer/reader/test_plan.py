import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.dataset.pieces import PIECE_BYTES, Pieces
from trainer.reader import plan
from trainer.reader.plan import STREAMS, Deal, Order, StreamRows

BATCHES = st.integers(1, 300)
# Records of up to 3/4 of a piece, in shards that may be empty.
SHARDS = st.lists(
    st.lists(st.integers(1, 3), max_size=9), min_size=1, max_size=6
).filter(any)  # fmt: skip


def pieces_of(shards):
    return Pieces.cut([np.array(s, np.int64) * (PIECE_BYTES // 4) for s in shards])


def order_of(pieces, batch, seed=1, **chosen):
    chosen = {"classes": None, "times": None, **chosen}
    return Order(pieces, seed=seed, deal=Deal.of_batch(batch), **chosen)


def read(order, begin, end):
    return order.records_at(begin, end).tolist()


@given(st.lists(st.lists(st.integers(17, 3 * PIECE_BYTES), max_size=8), max_size=5))
def test_a_piece_has_the_records_that_begin_in_its_range_of_a_shard(sizes):
    shards = [np.array(one, np.int64) for one in sizes]
    pieces = Pieces.cut(shards)
    assert pieces.count.sum() == sum(map(len, shards)) and (pieces.count > 0).all()
    assert (np.diff(pieces.first) == pieces.count[:-1]).all()
    for k in range(len(pieces)):
        of_shard = shards[pieces.shard[k]]
        first = pieces.first[k] - sum(map(len, shards[: pieces.shard[k]]))
        own = of_shard[first : first + pieces.count[k]]
        assert pieces.offset[k] == of_shard[:first].sum() and pieces.num_bytes[k] == own.sum()
        assert len({*((pieces.offset[k] + np.cumsum(own) - own) // PIECE_BYTES)}) == 1


@settings(max_examples=60)
@given(SHARDS, BATCHES, st.integers(0, 2**31 - 1), st.integers(0, 400))
def test_every_pass_has_each_record_once_wherever_it_begins(shards, batch, seed, start):
    order = order_of(pieces_of(shards), batch, seed)
    count = sum(map(len, shards))
    stream = read(order, 0, 4 * count)
    for k in range(4):
        assert sorted(stream[k * count : (k + 1) * count]) == list(range(count))
    start %= 3 * count
    assert read(order, start, start + count) == stream[start : start + count]


@settings(max_examples=60)
@given(SHARDS, BATCHES, st.data())
def test_chosen_and_repeated_records_come_as_often_as_requested(shards, batch, data):
    count = sum(map(len, shards))
    classes = np.array(data.draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)))
    counts = [int((classes == c).sum()) for c in range(3)]
    times = [divmod(max(counts), n) if n else (0, 0) for n in counts]
    if not max(counts):
        return
    sampled = order_of(pieces_of(shards), batch, classes=classes, times=times)
    total = sum(max(counts) for n in counts if n)
    assert sampled.num_records == total
    stream = read(sampled, 0, 3 * total)
    often = collections.Counter(stream)
    for k in range(3):
        of_pass = collections.Counter(classes[stream[k * total : (k + 1) * total]].tolist())
        assert of_pass == {c: max(counts) for c, n in enumerate(counts) if n}
    # Further copies turn about: after some passes none is more than one behind.
    for c in range(3):
        copies = [often[i] for i in np.flatnonzero(classes == c).tolist()]
        assert not copies or max(copies) - min(copies) <= 1
    filtered = order_of(pieces_of(shards), batch, classes=classes)
    assert sorted(read(filtered, 0, filtered.num_records)) == np.flatnonzero(classes >= 0).tolist()


@settings(max_examples=20)
@given(SHARDS, st.integers(1, 70), st.integers(2, 3), st.integers(0, 5))
@pytest.mark.long
def test_rows_of_a_host_hold_the_records_of_its_places(shards, share, hosts, periods):
    order, batch = order_of(pieces_of(shards), share * hosts), share * hosts
    deal = order.deal
    for host in range(hosts):
        for stream, places in deal.turns_within(host * share, (host + 1) * share, batch).items():
            rows = StreamRows(order, stream, periods * int(deal.turn(stream)), places)
            wanted = 2 * len(places)
            found = itertools.chain.from_iterable(row.records.tolist() for row in rows)
            positions = (periods + np.arange(2))[:, None] * deal.period
            expected = (positions + deal.first(stream) + places).ravel()
            records = [read(order, p, p + 1)[0] for p in expected.tolist()]
            assert [*itertools.islice(found, wanted)] == records


def test_the_plan_of_a_hundred_million_records_and_a_thousand_hosts_is_made_in_no_time():
    shards, of_shard = 2_000, 50_000
    pieces = Pieces.cut([np.full(of_shard, PIECE_BYTES // 50)] * shards)
    batch, total = 65_536, shards * of_shard
    order = order_of(pieces, batch, 7)
    assert order.num_records == total and order.deal == Deal(64, batch)
    quotas = [int(order.deal.taken(v, total)) for v in range(64)]
    assert sum(quotas) == total and max(quotas) - min(quotas) <= 1024
    begin = 90_000_000 // batch * batch
    for host in (0, 511, 1023):
        first = begin + host * 64
        records = read(order, first, first + 64)
        assert len({*records}) == 64 and 0 <= min(records) and max(records) < total
        assert records == read(order, first - batch, first + 64)[-64:]


def test_the_order_stays_until_its_version_goes_up():
    """What a run was begun with is what it goes on with after an upgrade of this project."""
    assert (plan.ORDER_VERSION, STREAMS, PIECE_BYTES) == (5, 64, 1 << 20)
    shards = [[1] * 7, [2] * 3, [3] * 5]
    stream = read(order_of(pieces_of(shards), 4, 7), 0, 30)
    assert stream[:15] == GOLDEN[0] and stream[15:] == GOLDEN[1]
    classes, times = np.arange(15) % 3 - 1, [(1, 2), (2, 0)]
    chosen = order_of(pieces_of(shards), 4, 7, classes=classes, times=times)
    assert read(chosen, 0, 17) == GOLDEN[2]
    unequal = order_of(pieces_of(shards), 67, 7)
    assert read(unequal, 0, 3) + read(unequal, 64, 76) == GOLDEN[3]
    assert plan.hashed(np.arange(2), 7, 1).tolist() == HASHED


GOLDEN = [
    [3, 2, 0, 1, 7, 8, 9, 12, 6, 5, 4, 14, 11, 10, 13],
    [4, 6, 5, 12, 10, 11, 9, 7, 8, 13, 2, 3, 0, 1, 14],
    [2, 2, 1, 1, 8, 7, 8, 5, 5, 4, 4, 14, 14, 11, 11, 10, 13],
    [3, 2, 0, 6, 5, 9, 11, 10, 13, 12, 3, 1, 0, 2, 5],
]
HASHED = [7084762027518950502, 4767613519079100543]


@pytest.mark.parametrize("shards", [2, 32, 1152])
def test_few_large_shards_mix_as_well_as_many(shards):
    count = 23_040
    pieces = Pieces.cut([np.full(count // shards, PIECE_BYTES // 20)] * shards)
    first, second = np.array(read(order_of(pieces, 64, 3), 0, 2 * count)).reshape(2, count)
    place, place_after = np.argsort(first), np.argsort(second)
    assert abs(np.corrcoef(place, np.arange(count))[0, 1]) < 0.05
    assert abs(np.corrcoef(place, place_after)[0, 1]) < 0.05
    window = count // 50
    parts = [len({*(first[i : i + window] * 20 // count)}) for i in range(0, count, window)]
    assert np.mean(parts) > 19


def shares_of(batch):
    """Shares of a batch that consist of pairs, for every number of replicas."""
    counts = (r for r in range(1, batch + 1) if batch % r == 0)
    return [batch // r for r in counts if plan.has_pairs(batch, r)]


def test_no_pair_is_of_one_turn_for_any_batch_size_and_number_of_replicas():
    pieces = pieces_of([[1] * 400] * 3)
    for batch in range(2, 2049):
        order = order_of(pieces, batch)
        positions = np.arange(order.deal.period)
        owners = order.deal.owner(positions)
        for share in shares_of(batch):
            distance = order.pair_distance(share)
            assert share % (2 * distance) == 0
            first = positions[positions % (2 * distance) < distance]
            assert (first // share == (first + distance) // share).all()
            assert (owners[first] != owners[first + distance]).all(), (batch, share)


@pytest.mark.parametrize("batch", [24, 128, 254, 1000])
@pytest.mark.parametrize(("num_pieces", "epochs"), [(4, 50), (20, 60), (100, 20), (500, 5)])
@pytest.mark.one_row
def test_pairs_mix_pieces_and_classes_as_if_by_chance(batch, num_pieces, epochs):
    """Where a shard is a class; a share that is shorter than two pieces cannot do better."""
    shards = 4 if num_pieces < 100 else 10
    pieces = Pieces.cut([np.full(num_pieces // shards * 8, PIECE_BYTES // 8)] * shards)
    counts = collections.Counter[tuple[str, int]]()
    for seed in range(2):
        order = order_of(pieces, batch, seed)
        count = order.num_records * epochs // batch * batch
        piece = np.array(read(order, 0, count)) // 8
        for share in shares_of(batch):
            if share * num_pieces < 2 * order.deal.period:
                continue
            distance = order.pair_distance(share)
            first = np.flatnonzero(np.arange(count) % (2 * distance) < distance)
            one, other = piece[first], piece[first + distance]
            counts["all", share] += len(first)
            counts["piece", share] += (one == other).sum()
            counts["class", share] += (
                one * shards // num_pieces == other * shards // num_pieces
            ).sum()
    for (kind, share), found in counts.items():
        chance = {"all": 1, "piece": 1 / num_pieces, "class": 1 / shards}[kind]
        assert found / counts["all", share] <= chance + 0.02, (kind, share)
