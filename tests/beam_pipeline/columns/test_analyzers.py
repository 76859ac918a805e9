"""Statistics that no order of the values changes."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.columns.preprocessing import ZScoreFn

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
VALUES, CUTS = st.lists(FINITE | st.just(math.nan), max_size=40), st.lists(st.integers(0, 40))


def statistics(values: list[float], cuts: list[int]) -> list[float]:
    """Those of values that come in several batches, each to an accumulator of its own."""
    batches = np.split(np.array(values, np.float32), sorted(min(c, len(values)) for c in cuts))
    fn = ZScoreFn()
    found = [fn.add_input(fn.create_accumulator(), batch) for batch in batches]
    return list(fn.extract_output(fn.merge_accumulators(found)))


@given(st.data(), VALUES, CUTS)
def test_mean_and_deviation_are_exact_in_any_order_and_bundles(data, values, cuts):
    fractions = [Fraction(value) for value in values if not math.isnan(value)]
    n = max(len(fractions), 1)
    mean = sum(fractions, Fraction()) / n
    variance = sum((f * f for f in fractions), Fraction()) / n - mean**2
    expected = [float(mean), math.sqrt(variance) or 1.0]
    assert statistics(data.draw(st.permutations(values)), cuts) == expected


def test_sums_of_many_extreme_values_do_not_overflow():
    largest = float(np.finfo(np.float32).max)
    assert statistics([largest] * 50_000 + [-largest] * 50_000, []) == [0.0, largest]
