"""Which data set each position of a mixed stream is read from: given shares, by position alone.

The data sets take turns in a fixed sequence, in which each has had its share after any number of
turns, to within one record. Within windows of a few positions the turns are shuffled by (seed,
position), so that no data set always has the same places of a batch, or the same neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import tensorflow as tf

# Positions whose turns are shuffled among themselves.
WINDOW = 8
# Turns that are shuffled by one call.
CHUNK = 8 * WINDOW
# Longest sequence before it repeats: shares that need a longer one are rounded to it.
MAX_PERIOD = 10_000


class Mixture:
    """Who is read at which position.

    Args:
        shares: Of each data set, at least two; 1 together.
        seed: Of the shuffled turns.
    """

    def __init__(self, shares: Sequence[Fraction], seed: int) -> None:
        turns = np.array(turn_sequence(whole_shares(shares)))
        self._turns, self._seed = turns, seed
        taken = turns[:, np.newaxis] == np.arange(len(shares))
        # How many records of each data set come before each turn of the sequence, and after all.
        self._before = np.concatenate([np.zeros_like(taken[:1], np.int64), np.cumsum(taken, 0)])

    def choices(self, chunk: Any) -> Any:
        """The data sets that are read at the positions from `chunk * CHUNK` on, int64 [CHUNK]."""
        seed = tf.stack([tf.constant(self._seed, tf.int64), tf.cast(chunk, tf.int64)])
        keys = tf.random.stateless_uniform([CHUNK // WINDOW, WINDOW], seed)
        places = tf.argsort(keys, stable=True) + tf.range(0, CHUNK, WINDOW)[:, tf.newaxis]
        turns = chunk * CHUNK + tf.cast(tf.reshape(places, [-1]), tf.int64)
        return tf.gather(tf.constant(self._turns, tf.int64), turns % len(self._turns))

    def counts_before(self, position: int) -> list[int]:
        """How many records of each data set come before `position`."""
        chunk, rest = divmod(position, CHUNK)
        periods, turn = divmod(chunk * CHUNK, len(self._turns))
        counts = periods * self._before[-1] + self._before[turn]
        if rest:
            begun = self.choices(tf.constant(chunk, tf.int64)).numpy()[:rest]
            counts = counts + np.bincount(begun, minlength=len(counts))
        return [int(count) for count in counts]


def whole_shares(shares: Sequence[Fraction]) -> list[int]:
    """The shares as whole numbers, in lowest terms; rounded where they add up to too much."""
    period = math.lcm(*(share.denominator for share in shares))
    if period <= MAX_PERIOD:
        return [int(share * period) for share in shares]
    exact = [share * MAX_PERIOD for share in shares]
    whole = [int(one) for one in exact]
    # The largest remainders are rounded up, so that the sum is right.
    by_remainder = sorted(range(len(shares)), key=lambda i: whole[i] - exact[i])
    for i in by_remainder[: MAX_PERIOD - sum(whole)]:
        whole[i] += 1
    return whole


def turn_sequence(weights: Sequence[int]) -> list[int]:
    """A sequence of sum(weights) turns: i has had n * weights[i] / sum of any first n, within 1.

    R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980): of those who
    have waited long enough, whoever would be late first.
    """
    total, slack = sum(weights), 2 * len(weights) - 2
    taken = [0] * len(weights)
    turns = []
    for n in range(1, total + 1):
        # How far each is behind its share, in units of 1 / (total * slack).
        behind = [slack * (w * n - had * total) for w, had in zip(weights, taken, strict=True)]
        waiting = [i for i, late in enumerate(behind) if late >= total]
        turn = min(waiting, key=lambda i: Fraction((slack - 1) * total - behind[i], weights[i]))
        taken[turn] += 1
        turns.append(turn)
    return turns
