"""Proof that a stream goes on anywhere: begun at every step, compared with itself."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def assert_same(found: Any, expected: Any) -> None:
    """Checks that nested structures of arrays are equal to the last bit."""
    import tensorflow as tf

    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def assert_resumes(stream: Callable[[int], Iterable[Any]], steps: int, more: int = 2) -> None:
    """Begins at each step up to `steps`, and finds the next elements of the whole stream there."""
    whole = list(itertools.islice(stream(0), steps + more))
    assert len(whole) == steps + more
    for start in range(1, steps + 1):
        assert_same(list(itertools.islice(stream(start), more)), whole[start : start + more])
