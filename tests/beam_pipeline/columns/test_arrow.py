"""Raw column values that do not fit their declaration."""

import math

import pytest

from beam_pipeline.columns.arrow import to_record_batches
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
