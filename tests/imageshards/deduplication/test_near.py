import itertools
from unittest import mock

import numpy as np
import pytest

from imageshards.deduplication import search as near
from imageshards.deduplication.search import count_bits, near_pairs
from imageshards.errors import UserError


def some_hashes(count, bits=64, seed=0):
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 2**bits, count, dtype=np.uint64)
    for flips in range(1, 7):
        changed = found[: count // 10].copy()
        for _ in range(flips):
            changed ^= np.uint64(1) << rng.integers(0, 64, len(changed), dtype=np.uint64)
        found = np.concatenate([found, changed])
    return np.unique(found)


@pytest.mark.parametrize(
    ("distance", "bits", "numpy_1"), [(1, 64, True), (2, 20, False), (10, 64, False)]
)
def test_all_near_pairs_are_found_each_once(distance, bits, numpy_1, monkeypatch):
    if numpy_1:
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    monkeypatch.setattr(near, "_MAX_CELL", 40)  # cells are cut again
    assert near_pairs(np.empty(0, np.uint64), distance).shape == (0, 2)
    hashes = some_hashes(800, bits)
    pairs = itertools.combinations(sorted(hashes.tolist()), 2)
    near_ones = [[a, b] for a, b in pairs if (a ^ b).bit_count() <= distance]
    assert near_pairs(hashes, distance).tolist() == near_ones


def test_many_hashes_with_an_equal_band_do_not_cost_all_pairs(monkeypatch):
    counted = mock.Mock(wraps=count_bits)
    monkeypatch.setattr(near, "count_bits", counted)
    rng = np.random.default_rng(3)
    hashes = np.unique(rng.integers(0, 2**44, 60_000, dtype=np.uint64))  # 20 bits are equal
    near_pairs(hashes, 3)
    assert sum(len(call.args[0]) for call in counted.mock_calls) < 60_000**2 / 2 / 10


def test_too_many_pairs_are_refused(monkeypatch):
    monkeypatch.setattr(near, "MAX_PAIRS", 1000)
    with pytest.raises(UserError, match=r"^distance received 10, .* more than 1,000 pairs"):
        near_pairs(np.arange(5000, dtype=np.uint64), 10)
