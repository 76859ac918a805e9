"""The order as arithmetic: each record once a pass, the same for any number of hosts."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.dataset.pieces import PIECE_BYTES, Pieces
from trainer.reader import plan
from trainer.reader.plan import Array, Deal, Passes

BATCHES = st.integers(1, 300)
# Records of up to 3/4 of a piece, in shards that may be empty.
SHARDS = st.lists(
    st.lists(st.integers(1, 3), max_size=9), min_size=1, max_size=6
).filter(any)  # fmt: skip


def pieces_of(shards: list[list[int]]) -> Pieces:
    return Pieces.cut([np.array(s, np.int64) * (PIECE_BYTES // 4) for s in shards])


def passes_of(pieces: Pieces, batch: int, seed: int | None = 1, **chosen: Any) -> Passes:
    chosen = {"classes": None, "times": None, **chosen}
    return Passes(pieces, seed=seed, deal=Deal.of_batch(batch), **chosen)


def read(passes: Passes, deal: Deal, begin: int, end: int) -> list[int]:
    """The records at positions `begin` to `end`, by following the streams from `begin` on."""
    streams: dict[int, Any] = {}
    found: list[int] = []
    for stream, count in deal.runs(begin, end):
        if stream not in streams:
            rows = passes.rows(stream, int(deal.taken(stream, begin)))
            streams[stream] = itertools.chain.from_iterable(r.records.tolist() for r in rows)
        found += itertools.islice(streams[stream], count)
    return found


@given(st.lists(st.lists(st.integers(17, 3 * PIECE_BYTES), max_size=8), max_size=5))
def test_pieces_are_the_records_that_begin_in_a_stretch_of_a_shard(sizes: Any) -> None:
    shards = [np.array(one, np.int64) for one in sizes]
    pieces = Pieces.cut(shards)
    assert pieces.count.sum() == sum(map(len, shards)) and (pieces.count > 0).all()
    assert (np.diff(pieces.first) == pieces.count[:-1]).all()
    for k in range(len(pieces)):
        of_shard = shards[pieces.shard[k]]
        first = pieces.first[k] - sum(map(len, shards[: pieces.shard[k]]))
        own = of_shard[first : first + pieces.count[k]]
        assert pieces.offset[k] == of_shard[:first].sum() and pieces.num_bytes[k] == own.sum()
        begins = pieces.offset[k] + np.cumsum(own) - own
        assert len({*(begins // PIECE_BYTES)}) == 1


@given(BATCHES)
def test_streams_share_each_batch_or_some_batches_equally(batch: int) -> None:
    deal = Deal.of_batch(batch)
    assert deal.period % batch == 0 and 64 <= deal.period < batch + 64 or deal.period == batch
    assert deal.streams <= 64 and deal.streams * deal.run == deal.period
    owners = [p % deal.period // deal.run for p in range(2 * deal.period + 3)]
    assert owners == [v for v, n in deal.runs(0, len(owners)) for _ in range(n)]
    for stream in (0, deal.streams // 2, deal.streams - 1):
        taken = [int(deal.taken(stream, p)) for p in range(len(owners) + 1)]
        assert np.diff(taken).tolist() == [int(owner == stream) for owner in owners]


@settings(max_examples=60)
@given(SHARDS, BATCHES, st.integers(0, 2**31 - 1), st.integers(0, 400))
def test_every_pass_has_each_record_once_and_any_position_is_found_at_once(
    shards: list[list[int]], batch: int, seed: int, start: int
) -> None:
    passes, deal = passes_of(pieces_of(shards), batch, seed), Deal.of_batch(batch)
    count = sum(map(len, shards))
    stream = read(passes, deal, 0, 4 * count)
    for k in range(4):
        assert sorted(stream[k * count : (k + 1) * count]) == list(range(count))
    start %= 3 * count
    assert read(passes, deal, start, start + count) == stream[start : start + count]


@settings(max_examples=60)
@given(SHARDS, BATCHES, st.data())
def test_what_is_chosen_and_repeated_comes_as_often_as_asked(
    shards: list[list[int]], batch: int, data: st.DataObject
) -> None:
    count = sum(map(len, shards))
    classes = np.array(data.draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)))
    counts = [int((classes == c).sum()) for c in range(3)]
    times = [divmod(max(counts), n) if n else (0, 0) for n in counts]
    if not max(counts):
        return
    sampled = passes_of(pieces_of(shards), batch, classes=classes, times=times)
    total = sum(max(counts) for n in counts if n)
    assert sampled.num_records == total
    stream = read(sampled, Deal.of_batch(batch), 0, 3 * total)
    often = collections.Counter(stream)
    for k in range(3):
        of_pass = collections.Counter(classes[stream[k * total : (k + 1) * total]].tolist())
        assert of_pass == {c: max(counts) for c, n in enumerate(counts) if n}
    # Further copies turn about: after some passes none is more than one behind.
    for c in range(3):
        copies = [often[i] for i in np.flatnonzero(classes == c).tolist()]
        assert not copies or max(copies) - min(copies) <= 1
    filtered = passes_of(pieces_of(shards), batch, classes=classes)
    once = read(filtered, Deal.of_batch(batch), 0, filtered.num_records)
    assert sorted(once) == np.flatnonzero(classes >= 0).tolist()


@given(BATCHES, st.sampled_from([1, 2, 4, 8, 64, 1024]))
def test_hosts_have_parts_of_their_own(batch: int, hosts: int) -> None:
    batch *= hosts
    deal, share = Deal.of_batch(batch), batch // hosts
    owned = [deal.streams_of(h * share, (h + 1) * share, batch) for h in range(min(hosts, 9))]
    if deal.streams % hosts == 0 and share % deal.run == 0:
        assert {len(one) for one in owned} == {deal.streams // hosts}
        assert len({*itertools.chain(*owned)}) == sum(map(len, owned))
    for host, streams in enumerate(owned):
        for k in range(3):
            part = deal.runs(k * batch + host * share, k * batch + (host + 1) * share)
            assert {stream for stream, _ in part} <= {*streams}


def test_the_plan_of_a_hundred_million_records_and_a_thousand_hosts_is_made_in_no_time() -> None:
    shards, of_shard = 2_000, 50_000
    size = PIECE_BYTES // 50
    pieces = Pieces.cut([np.full(of_shard, size)] * shards)
    batch, total = 65_536, shards * of_shard
    deal = Deal.of_batch(batch)
    passes = passes_of(pieces, batch, 7)
    assert passes.num_records == total and deal == Deal(64, 1024)
    quotas = [int(deal.taken(v, total)) for v in range(deal.streams)]
    assert sum(quotas) == total and max(quotas) - min(quotas) <= deal.run
    begin = 90_000_000 // batch * batch
    for host in (0, 511, 1023):
        first = begin + host * 64
        records = read(passes, deal, first, first + 64)
        assert len({*records}) == 64 and 0 <= min(records) and max(records) < total
        assert records == read(passes, deal, first - batch, first + 64)[-64:]


def test_the_order_stays_until_its_version_goes_up() -> None:
    """What a run was begun with is what it goes on with after an upgrade of this project."""
    assert (plan.ORDER_VERSION, plan.MOST_STREAMS, PIECE_BYTES) == (3, 64, 1 << 20)
    shards = [[1] * 7, [2] * 3, [3] * 5]
    passes, deal = passes_of(pieces_of(shards), 4, 7), Deal.of_batch(4)
    stream = read(passes, deal, 0, 30)
    assert stream[:15] == GOLDEN[0] and stream[15:] == GOLDEN[1]
    chosen = passes_of(
        pieces_of(shards), 4, 7, classes=np.arange(15) % 3 - 1, times=[(1, 2), (2, 0)]
    )
    assert read(chosen, deal, 0, 17) == GOLDEN[2]
    assert plan.hashed(np.arange(2), 7, 1).tolist() == HASHED


GOLDEN = [
    [3, 2, 0, 1, 7, 8, 9, 12, 6, 5, 4, 14, 11, 10, 13],
    [4, 6, 5, 12, 10, 11, 9, 7, 8, 13, 2, 3, 0, 1, 14],
    [2, 2, 1, 1, 8, 7, 8, 5, 5, 4, 4, 14, 14, 11, 11, 10, 13],
]
HASHED = [7084762027518950502, 4767613519079100543]


@pytest.mark.parametrize("shards", [2, 32, 1152])
def test_few_large_shards_mix_as_well_as_many(shards: int) -> None:
    count = 23_040
    pieces = Pieces.cut([np.full(count // shards, PIECE_BYTES // 20)] * shards)
    passes, deal = passes_of(pieces, 64, 3), Deal.of_batch(64)
    first, second = np.array(read(passes, deal, 0, 2 * count)).reshape(2, count)
    place, place_after = np.argsort(first), np.argsort(second)
    assert abs(_correlation(place, np.arange(count))) < 0.05
    assert abs(_correlation(place, place_after)) < 0.05
    window = count // 50
    parts = [len({*(first[i : i + window] * 20 // count)}) for i in range(0, count, window)]
    assert np.mean(parts) > 19


def _correlation(one: Array, other: Array) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def test_shards_of_one_class_each_are_mixed() -> None:
    pieces = Pieces.cut([np.full(500, PIECE_BYTES // 25)] * 10)
    stream = np.array(read(passes_of(pieces, 64), Deal.of_batch(64), 0, 4992))
    assert np.mean([len({*batch}) for batch in (stream // 500).reshape(-1, 64)]) > 8
