"""The arithmetic of a mix: exact shares after any number of turns, a function of position alone."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from trainer.reader.mixing import (  # noqa: E402
    CHUNK,
    MAX_PERIOD,
    WINDOW,
    Mixture,
    turn_sequence,
    whole_shares,
)

_WEIGHTS = st.lists(st.integers(1, 40), min_size=2, max_size=6)


def _shares(weights: list[int]) -> list[Fraction]:
    return [Fraction(weight, sum(weights)) for weight in weights]


@given(_WEIGHTS)
def test_after_any_number_of_turns_each_has_had_its_share_to_within_one(weights: list[int]) -> None:
    turns = np.array(turn_sequence(weights))
    assert np.bincount(turns).tolist() == weights
    for number, weight in enumerate(weights):
        had = np.cumsum(turns == number)
        due = np.arange(1, len(turns) + 1) * weight / sum(weights)
        assert np.abs(had - due).max() < 1


@given(_WEIGHTS)
def test_shares_become_whole_numbers_of_the_same_ratio(weights: list[int]) -> None:
    shares = _shares(weights)
    whole = whole_shares(shares)
    assert [Fraction(one, sum(whole)) for one in whole] == shares


def test_shares_with_a_long_period_are_rounded() -> None:
    shares = [Fraction(str(1 / 3)), Fraction(str(0.1234567))]
    shares.append(1 - shares[0] - shares[1])
    whole = whole_shares(shares)
    assert sum(whole) == MAX_PERIOD
    assert all(abs(w - s * MAX_PERIOD) < 1 for w, s in zip(whole, shares, strict=True))


@settings(max_examples=25, deadline=None)
@given(_WEIGHTS, st.integers(0, 2**31 - 1), st.integers(0, 10**9), st.integers(1, 3 * CHUNK))
def test_counts_before_a_position_are_those_of_the_choices(
    weights: list[int], seed: int, start: int, count: int
) -> None:
    mixture = Mixture(_shares(weights), seed)
    first, skipped = divmod(start, CHUNK)
    chunks = [mixture.choices(tf.constant(first + i, tf.int64)).numpy() for i in range(5)]
    chosen = np.concatenate(chunks)[skipped : skipped + count]
    before, after = (np.array(mixture.counts_before(p)) for p in (start, start + count))
    assert (after - before).tolist() == np.bincount(chosen, minlength=len(weights)).tolist()
    assert before.sum() == start
    # Exact at the ends of windows, a few records off within one.
    due = np.array(weights) * start / sum(weights)
    assert np.abs(before - due).max() < (1 if start % WINDOW == 0 else 1 + WINDOW / 2)


def test_turns_differ_by_seed_and_between_windows() -> None:
    halves = [Fraction(1, 2)] * 2
    one, other = (Mixture(halves, seed).choices(tf.constant(7, tf.int64)) for seed in (0, 1))
    assert one.numpy().tolist() != other.numpy().tolist()
    windows = one.numpy().reshape(-1, WINDOW)
    assert (windows.sum(1) == WINDOW / 2).all()
    # Neighbours are mixed in pairs by MixUp: not always one of each.
    assert len({tuple(window) for window in windows}) > 3
