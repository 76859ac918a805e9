"""Statistics that no order of the values changes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.columns.analyzers import MinMaxFn, ZScoreFn, exact_sums

FINITE_FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def _chunks(values: list[float], cuts: list[int]) -> list[np.ndarray]:
    array = np.array(values, np.float32)
    return np.split(array, sorted(min(cut, len(values)) for cut in cuts))


@given(st.lists(FINITE_FLOAT32, max_size=40))
def test_sums_equal_exact_fractions(values):
    sums = exact_sums(np.array(values, np.float32))
    fractions = [Fraction(value) for value in values]
    n = max(len(values), 1)
    mean = sum(fractions, Fraction()) / n
    assert sums.num_values == len(values)
    assert sums.mean() == mean
    assert sums.variance() == sum((f * f for f in fractions), Fraction()) / n - mean**2


def test_sums_of_many_extreme_values_do_not_overflow():
    largest = float(np.finfo(np.float32).max)
    sums = exact_sums(np.full(100_000, largest, np.float32))
    assert sums.mean() == Fraction(largest)
    assert sums.variance() == 0


@pytest.mark.parametrize("combine_fn", [ZScoreFn(), MinMaxFn()])
@given(data=st.data(), values=st.lists(FINITE_FLOAT32, min_size=1, max_size=30))
def test_statistics_do_not_depend_on_order_or_bundles(combine_fn, data, values):
    def statistics(values: list[float], cuts: list[int]) -> bytes:
        accumulators = [
            combine_fn.add_input(combine_fn.create_accumulator(), chunk)
            for chunk in _chunks(values, cuts)
        ]
        return combine_fn.extract_output(combine_fn.merge_accumulators(accumulators)).tobytes()

    shuffled = data.draw(st.permutations(values))
    cuts = data.draw(st.lists(st.integers(0, 30), max_size=4))
    assert statistics(shuffled, cuts) == statistics(values, [])


@pytest.mark.parametrize("zeros", [[0.0, -0.0], [-0.0, 0.0]])
def test_minimum_has_no_sign_when_zero(zeros):
    accumulators = [
        MinMaxFn().add_input((math.inf, -math.inf), np.array([z], np.float32)) for z in zeros
    ]
    minimum, _ = MinMaxFn().extract_output(MinMaxFn().merge_accumulators(accumulators))
    assert math.copysign(1, minimum) == 1


@pytest.mark.parametrize("combine_fn", [ZScoreFn(), MinMaxFn()])
def test_statistics_of_no_value_scale_nothing(combine_fn):
    assert combine_fn.extract_output(combine_fn.create_accumulator()).tolist() == [0.0, 1.0]
