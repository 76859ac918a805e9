"""Labels and extra columns through tensorflow-transform, on the real local runner."""

import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from beam_pipeline.columns.export import exported_classes
from beam_pipeline.columns.transforms import AnalyseColumns
from beam_pipeline.options import ColumnSpec
from beam_pipeline.planning.refs import ImageRef, RefBatch
from tests.support.columns_run import ODD_LABELS, analyse
from tests.support.errors import refused
from tests.support.listings import batches_of

pytestmark = pytest.mark.process

COLUMNS = (
    ColumnSpec("int/scalar", "int"),
    ColumnSpec("int/fixed", "int", (2,)),
    ColumnSpec("int/var", "int", None),
    ColumnSpec("float/scalar", "float"),
    ColumnSpec("float/fixed", "float", (3,)),
    ColumnSpec("image/object/bbox/xmin", "float", None),
    ColumnSpec("string/scalar", "string"),
    ColumnSpec("string/fixed", "string", (2,)),
    ColumnSpec("caption words", "string", None),
    ColumnSpec("zscore", "float", (), "zscore"),
    ColumnSpec("zscore/fixed", "float", (2,), "zscore"),
    ColumnSpec("zscore/constant", "float", (), "zscore"),
    ColumnSpec("minmax", "float", (), "minmax"),
    ColumnSpec("minmax/var", "float", None, "minmax"),
    ColumnSpec("minmax/constant", "float", (), "minmax"),
    ColumnSpec("minmax/none", "float", None, "minmax"),
    ColumnSpec("zscore/some", "float", (), "zscore"),
    ColumnSpec("zscore/missing", "float", (), "zscore"),
    ColumnSpec("minmax/some", "float", (), "minmax"),
    ColumnSpec("minmax/missing", "float", (), "minmax"),
)


def raw_row(i: int) -> dict[str, Any]:
    rng = random.Random(i)
    return {
        "int/scalar": rng.choice([i, -(2**63), 2**63 - 1]),
        "int/fixed": [i, -i],
        "int/var": list(range(i % 4)),
        "float/scalar": float("nan") if i == 5 else rng.uniform(-1e30, 1e30),
        "float/fixed": [0.1, float(i), 1e-45],
        "image/object/bbox/xmin": None if i % 5 == 0 else [rng.random() for _ in range(i % 3)],
        "string/scalar": f"naïve {i}",
        "string/fixed": [b"\xff\x00", str(i)],
        "caption words": ["a", "", "c"][: i % 4],
        "zscore": rng.gauss(1e4, 1e-2) if i % 3 else rng.gauss(0, 1e-20),
        "zscore/fixed": [rng.gauss(-3, 10), rng.gauss(5, 2)],
        "zscore/constant": 0.1,
        "minmax": rng.choice([-0.0, 0.0, rng.gauss(0, 7)]),
        "minmax/var": [rng.random() for _ in range(i % 3)],
        "minmax/constant": -7.25,
        "minmax/none": [],
        # Whole batches of 40 are missing, too.
        "zscore/some": rng.gauss(3, 2) if i < 40 and i % 3 else math.nan,
        "zscore/missing": math.nan,
        "minmax/some": rng.gauss(3, 2) if i < 40 and i % 3 else math.nan,
        "minmax/missing": math.nan,
    }


LABELLED = enumerate((ODD_LABELS * 20)[:97])
REFS = [ImageRef(f"k{i:03}", f"/{i}", of, "train", None, i, i, raw_row(i)) for i, of in LABELLED]


@pytest.fixture(scope="module")
def through_tft(tmp_path_factory):
    batches = [*batches_of(REFS, 40), RefBatch([])]
    return analyse(tmp_path_factory.mktemp("tft"), batches, columns=COLUMNS)


@pytest.fixture(scope="module")
def rows(through_tft):
    return {ref.key: dict(ref.columns or {}) for batch in through_tft[0] for ref in batch}


def test_vocabulary_is_the_class_order(through_tft):
    import tensorflow_transform as tft

    output = tft.TFTransformOutput(through_tft[1])
    expected = sorted(ODD_LABELS)
    assert exported_classes(through_tft[1]) == expected
    assert [name.decode() for name in output.vocabulary_by_name("label")] == expected
    assert output.transformed_domains()["image/class/label"].max == len(expected) - 1
    assert "image/class/text" in {f.name for f in output.raw_metadata.schema.feature}


@pytest.mark.slow
def test_given_and_pinned_order_reach_both_exports(tmp_path):
    refs = [ImageRef("k", "u", label, columns={"n": 1}) for label in ("b", "a")]
    _, given = analyse(tmp_path / "given", [RefBatch(refs)], class_names=("b", "unused", "a"))
    assert exported_classes(given) == ["b", "unused", "a"]
    pinned: dict[str, Any] = {"pinned_classes": ("gone", "b"), "columns": (ColumnSpec("n", "int"),)}
    _, full = analyse(tmp_path / "pinned", [RefBatch(refs)], **pinned)
    assert exported_classes(full) == ["gone", "b", "a"]


def test_refs_keep_everything_else_and_their_order(through_tft):
    batches, _ = through_tft
    kept = sorted([[ref._replace(columns=None) for ref in batch] for batch in batches])
    expected = [[ref._replace(columns=None) for ref in b.refs] for b in batches_of(REFS, 40)]
    assert kept == expected


def _as_list(value):
    return value if isinstance(value, list) else [] if value is None else [value]


@pytest.mark.parametrize("spec", [c for c in COLUMNS if c.scale == "none"])
def test_an_unscaled_column_keeps_its_values(rows, spec):
    for ref in REFS:
        expected = _as_list((ref.columns or {})[spec.name])
        if spec.kind == "float":
            expected = np.array(expected, np.float32).astype(float).tolist()
        if spec.kind == "string":
            expected = [v if isinstance(v, bytes) else v.encode() for v in expected]
        received = rows[ref.key][spec.name]
        np.testing.assert_equal(received, expected)
        assert [type(v) for v in received] == [type(v) for v in expected]


@pytest.mark.parametrize("spec", [c for c in COLUMNS if c.scale != "none"])
def test_scaled_column_is_right_to_the_last_bit(rows, spec):
    raw = [np.array(_as_list((ref.columns or {})[spec.name]), np.float32) for ref in REFS]
    present = (float(v) for v in np.concatenate(raw))
    values = [Fraction(v) for v in present if not math.isnan(v)] or [Fraction(0)]
    if spec.scale == "minmax":
        offset, divisor = min(values), float(max(values) - min(values))
    else:
        offset = sum(values, Fraction()) / len(values)
        divisor = math.sqrt(sum(((v - offset) ** 2 for v in values), Fraction()) / len(values))
    for ref, of_row in zip(REFS, raw, strict=True):
        given = of_row[~np.isnan(of_row)]
        scaled = [float((Fraction(float(v)) - offset) / Fraction(divisor or 1.0)) for v in given]
        expected = np.full(of_row.shape, math.nan, np.float32)
        expected[~np.isnan(of_row)] = scaled if divisor else 0
        np.testing.assert_array_equal(rows[ref.key][spec.name], expected)


def test_the_exported_graph_leaves_a_missing_value_and_scales_the_others(through_tft, rows):
    import tensorflow as tf

    transform = tf.saved_model.load(f"{through_tft[1]}/transform_fn").transform_fn
    chosen = REFS[:8]
    fed: dict[str, Any] = {"image/class/text": tf.constant([str(ref.label) for ref in chosen])}
    dtypes = {"int": tf.int64, "float": tf.float32, "string": tf.string}
    for spec in COLUMNS:
        values = [_as_list((ref.columns or {})[spec.name]) for ref in chosen]
        if spec.shape is None:
            fed[spec.name] = tf.ragged.constant(values, dtypes[spec.kind], 1).to_sparse()
        else:
            fed[spec.name] = tf.reshape(tf.constant(values, dtypes[spec.kind]), (8, *spec.shape))
    found = transform(fed)
    for name in ("zscore/some", "minmax/some", "zscore/missing", "minmax/missing"):
        expected = [rows[ref.key][name][0] for ref in chosen]
        np.testing.assert_array_equal(found[name].numpy(), np.array(expected, np.float32))
    assert not np.isnan(found["zscore/some"].numpy()).all()
    fed["minmax/missing"] = fed["zscore/missing"] = tf.constant([5.0] * 8)
    served = transform(fed)
    for name in ("minmax/missing", "zscore/missing"):
        assert served[name].numpy().tolist() == [5.0] * 8


@pytest.mark.slow
@pytest.mark.long
def test_the_size_of_batches_does_not_change_the_bytes(rows, tmp_path):
    shuffled = random.Random(1).sample(REFS, len(REFS))
    names = ("zscore/fixed", "minmax/var", "zscore/some")
    scaled = tuple(spec for spec in COLUMNS if spec.name in names)
    again, _ = analyse(tmp_path, batches_of(shuffled, 7), columns=scaled)
    assert sum(map(len, again)) == len(REFS)
    for ref in sum(again, []):
        found = {name: repr(value) for name, value in (ref.columns or {}).items()}
        assert found == {name: repr(rows[ref.key][name]) for name in names}


@pytest.mark.parametrize("names", [["image/encoded"], ["a", "a"]])
def test_a_reserved_or_repeated_column_name_is_refused(names):
    with refused("columns", repr(names[0])):
        AnalyseColumns("transform", tuple(ColumnSpec(name, "int") for name in names))
