"""Raw values that do not fit their declaration, and statistics that no order of values changes."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.columns.arrow import to_record_batches
from beam_pipeline.columns.preprocessing import ZScoreFn
from beam_pipeline.options import ColumnSpec
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards.errors import UserError


@pytest.mark.parametrize(
    ("spec", "value", "received"),
    [
        (ColumnSpec("c", "int"), None, "no value"),
        (ColumnSpec("c", "int"), 1.5, "1.5"),
        (ColumnSpec("c", "int"), 2**63, str(2**63)),
        (ColumnSpec("c", "int", (2,)), [1], r"\[1\]"),
        (ColumnSpec("c", "int", None), 1, "1"),
        (ColumnSpec("c", "int", None), [1, None], r"\[1, None\]"),
        (ColumnSpec("c", "int"), True, "True"),
        (ColumnSpec("c", "float"), "1", "'1'"),
        (ColumnSpec("c", "float"), 1e39, "1e\\+39"),
        (ColumnSpec("c", "float", (), "zscore"), math.inf, "inf"),
        (ColumnSpec("c", "float", None, "zscore"), [math.nan], r"\[nan\]"),
        (ColumnSpec("c", "float", None, "minmax"), [math.inf], r"\[inf\]"),
        (ColumnSpec("c", "string"), 1, "1"),
        (ColumnSpec("c", "string", None), "ab", "'ab'"),
    ],
)
def test_a_value_of_another_type_names_key_and_column(spec, value, received):
    good: object = {"int": 1, "float": 1.0, "string": "s"}[spec.kind]
    if spec.shape != ():
        good = [good] * (1 if spec.shape is None else spec.shape[0])
    cells = {"good": good, "bad": value}
    refs = [ImageRef(key, "u", "l", columns={"c": cell}) for key, cell in cells.items()]
    with pytest.raises(UserError, match=f"column 'c' of 'bad' received {received}; expected"):
        list(to_record_batches(RefBatch(refs), [spec]))
    assert next(to_record_batches(RefBatch(refs[:1]), [spec])).num_rows == 1


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
