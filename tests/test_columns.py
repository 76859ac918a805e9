"""Labels and extra columns through tensorflow-transform, on the real local runner."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.columns import AnalyseColumns, exported_classes, exported_features
from beam_pipeline.columns_analyzers import ExactSums, MinMaxFn, ZScoreFn, class_order, exact_sums
from beam_pipeline.columns_arrow import ToRecordBatch
from beam_pipeline.errors import UserError, user_error_in
from beam_pipeline.options import ColumnSpec
from beam_pipeline.preprocessing import TransformModule
from beam_pipeline.refs import ImageRef, RefBatch

FINITE_FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)

ODD_LABELS = ("tabby cat", "crème, brûlée", "日本", 'a "b"', "-1")

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
    }


REFS = [
    ImageRef(f"k{i:03}", f"/in/{i}", ODD_LABELS[i % 5], "train", None, i, i, raw_row(i))
    for i in range(97)
]


def batches_of(refs: list[ImageRef], size: int) -> list[RefBatch]:
    return [RefBatch(refs[i : i + size]) for i in range(0, len(refs), size)]


def analyse(tmp: Path, batches: list[RefBatch], **given: Any) -> tuple[list[list[ImageRef]], str]:
    """Runs `AnalyseColumns`; returns the references of each batch and the export."""
    arguments: dict[str, Any] = {
        "columns": (),
        "class_names": None,
        "pinned_classes": (),
        "transform_module": None,
        "temp_dir": str(tmp / "tmp"),
        "transform_dir": str(tmp / "transform"),
        **given,
    }
    out = tmp / "out"
    out.mkdir(parents=True)
    with beam.Pipeline(runner=fn_runner.FnApiRunner()) as pipeline:
        analysed = pipeline | beam.Create(batches, reshuffle=False) | AnalyseColumns(**arguments)
        _ = analysed.batches | beam.Map(_save, str(out))
        assert_that(analysed.written, equal_to([arguments["transform_dir"]]))
    saved = [
        eval(path.read_text(), {"ImageRef": ImageRef, "nan": math.nan}) for path in out.iterdir()
    ]
    return saved, arguments["transform_dir"]


def _save(batch: RefBatch, directory: str) -> None:
    Path(directory, batch.refs[0].key if batch.refs else "empty").write_text(repr(batch.refs))


@pytest.fixture(scope="module")
def through_tft(tmp_path_factory) -> tuple[list[list[ImageRef]], str]:
    batches = [*batches_of(REFS, 40), RefBatch([])]
    return analyse(tmp_path_factory.mktemp("tft"), batches, columns=COLUMNS)


@pytest.fixture(scope="module")
def rows(through_tft) -> dict[str, dict[str, Any]]:
    return {ref.key: dict(ref.columns or {}) for batch in through_tft[0] for ref in batch}


@pytest.fixture(scope="module")
def labels_only(tmp_path_factory) -> tuple[list[list[ImageRef]], str]:
    return analyse(tmp_path_factory.mktemp("labels"), batches_of(REFS, 30))


# Class order ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "given_names", "pinned", "expected"),
    [
        (["b", "a", "C"], None, (), ["C", "a", "b"]),
        (["é", "z", "10", "9"], None, (), ["10", "9", "z", "é"]),
        (["b", "a"], ("b", "x", "a"), (), ["b", "x", "a"]),
        (["b", "a"], ("b", "a"), ("a", "b"), ["b", "a"]),
        (["d", "a", "b", "c"], None, ("c", "gone", "b"), ["c", "gone", "b", "a", "d"]),
    ],
    ids=["sorted", "by code point", "given", "given before pinned", "pinned, then new"],
)
def test_class_order(labels, given_names, pinned, expected):
    assert class_order(labels, given_names, pinned) == expected


def test_no_label_at_all_is_an_error():
    with pytest.raises(UserError, match="--input received no labelled image"):
        class_order([], None, ())


# Exact statistics -------------------------------------------------------------------------


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


@pytest.mark.parametrize("combine_fn", [ZScoreFn(), MinMaxFn()])
def test_statistics_of_no_value_scale_nothing(combine_fn):
    assert combine_fn.extract_output(combine_fn.create_accumulator()).tolist() == [0.0, 1.0]


def test_sums_start_from_nothing():
    assert ExactSums().plus(ExactSums(1, 2, 3)) == ExactSums(1, 2, 3)


# Labels only ------------------------------------------------------------------------------


def test_labels_only_leaves_batches_untouched(labels_only):
    batches, _ = labels_only
    assert sorted(map(repr, batches)) == sorted(repr(batch.refs) for batch in batches_of(REFS, 30))


@pytest.mark.parametrize("export", ["labels_only", "through_tft"])
def test_vocabulary_is_the_class_order(export, request):
    import tensorflow_transform as tft

    _, transform_dir = request.getfixturevalue(export)
    expected = sorted(ODD_LABELS)
    assert exported_classes(transform_dir) == expected
    output = tft.TFTransformOutput(transform_dir)
    assert [name.decode() for name in output.vocabulary_by_name("label")] == expected
    assert output.transformed_domains()["image/class/label"].max == len(expected) - 1
    assert "image/class/text" in {f.name for f in output.raw_metadata.schema.feature}


def test_given_and_pinned_order_reach_both_exports(tmp_path):
    refs = [ImageRef("k", "u", label, columns={"n": 1}) for label in ("b", "a")]
    cases = {
        "given": {"class_names": ("b", "unused", "a")},
        "pinned": {"pinned_classes": ("gone", "b")},
    }
    expected = {"given": ["b", "unused", "a"], "pinned": ["gone", "b", "a"]}
    for name, arguments in cases.items():
        _, plain = analyse(tmp_path / name, [RefBatch(refs)], **arguments)
        assert exported_classes(plain) == expected[name]
        assert exported_features(plain) == {}
    columns = (ColumnSpec("n", "int"),)
    _, full = analyse(tmp_path / "full", [RefBatch(refs)], columns=columns, **cases["pinned"])
    assert exported_classes(full) == expected["pinned"]


@pytest.mark.parametrize(
    ("label", "class_names", "columns", "message"),
    [
        ("", None, (), "the label '' of 'bad.jpg' cannot name a class"),
        ("a\nb", None, (), r"the label 'a\\nb' of 'bad.jpg' cannot name a class"),
        ("a\rb", None, (), r"the label 'a\\rb' of 'bad.jpg' cannot name a class"),
        ("\udcff", None, (), r"the label '\\udcff' of 'bad.jpg' cannot name a class"),
        ("cow", ("cat",), (), "--class_names does not hold the label 'cow' of 'bad.jpg'"),
        ("cow", ("cat",), (ColumnSpec("n", "int"),), "does not hold the label 'cow' of 'bad.jpg'"),
    ],
    ids=["empty", "newline", "carriage return", "no text", "unknown", "unknown with columns"],
)
def test_bad_label_names_label_and_key(tmp_path, label, class_names, columns, message):
    good = ImageRef("good.jpg", "u", "cat", columns={"n": 1})
    batch = RefBatch([good, good._replace(key="bad.jpg", label=label)])
    with pytest.raises((UserError, RuntimeError)) as caught:
        analyse(tmp_path, [batch], class_names=class_names, columns=columns)
    assert re.search(message, str(user_error_in(caught.value)))


# Columns ----------------------------------------------------------------------------------


def test_refs_keep_everything_else_and_their_order(through_tft):
    batches, _ = through_tft
    kept = sorted([[ref._replace(columns=None) for ref in batch] for batch in batches])
    expected = [[ref._replace(columns=None) for ref in b.refs] for b in batches_of(REFS, 40)]
    assert kept == expected


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize("spec", [c for c in COLUMNS if c.scale == "none"], ids=lambda c: c.name)
def test_unscaled_column_round_trip(rows, spec):
    for ref in REFS:
        expected = _as_list((ref.columns or {})[spec.name])
        if spec.kind == "float":
            expected = np.array(expected, np.float32).astype(float).tolist()
        if spec.kind == "string":
            expected = [v if isinstance(v, bytes) else v.encode() for v in expected]
        received = rows[ref.key][spec.name]
        np.testing.assert_equal(received, expected)
        assert [type(v) for v in received] == [type(v) for v in expected]


@pytest.mark.parametrize("spec", [c for c in COLUMNS if c.scale != "none"], ids=lambda c: c.name)
def test_scaled_column_is_right_to_the_last_bit(rows, spec):
    raw = [np.float32(_as_list((ref.columns or {})[spec.name])) for ref in REFS]
    values = [Fraction(float(v)) for v in np.concatenate(raw)]
    if spec.scale == "minmax":
        offset, divisor = min(values), float(max(values) - min(values))
    else:
        offset = sum(values, Fraction()) / len(values)
        divisor = math.sqrt(sum(((v - offset) ** 2 for v in values), Fraction()) / len(values))
    for ref, of_row in zip(REFS, raw, strict=True):
        expected = [
            float(np.float32(float((Fraction(float(v)) - offset) / Fraction(divisor or 1.0))))
            for v in of_row
        ]
        received = rows[ref.key][spec.name]
        assert received == pytest.approx(expected, rel=0, abs=0) if divisor else not any(received)


def test_any_batch_split_gives_the_same_bytes(through_tft, tmp_path):
    def by_key(batches: list[list[ImageRef]]) -> list[str]:
        return sorted(repr(ref) for batch in batches for ref in batch)

    shuffled = random.Random(1).sample(REFS, len(REFS))
    again, _ = analyse(tmp_path, batches_of(shuffled, 7), columns=COLUMNS)
    assert by_key(again) == by_key(through_tft[0])


def test_exported_features_describe_every_column(through_tft):
    dtypes = {"int": "int64", "float": "float32", "string": "string"}
    expected = {
        c.name: {"dtype": dtypes[c.kind], "shape": None if c.shape is None else list(c.shape)}
        for c in COLUMNS
    }
    assert exported_features(through_tft[1]) == expected


@pytest.mark.parametrize(
    ("spec", "value", "received"),
    [
        (ColumnSpec("c", "int"), None, "no value"),
        (ColumnSpec("c", "int"), 1.5, "1.5"),
        (ColumnSpec("c", "int"), "1", "'1'"),
        (ColumnSpec("c", "int"), 2**63, str(2**63)),
        (ColumnSpec("c", "int"), [1], r"\[1\]"),
        (ColumnSpec("c", "int", (2,)), [1], r"\[1\]"),
        (ColumnSpec("c", "int", (2,)), None, "no value"),
        (ColumnSpec("c", "int", None), 1, "1"),
        (ColumnSpec("c", "int", None), [1, None], r"\[1, None\]"),
        (ColumnSpec("c", "int"), True, "True"),
        (ColumnSpec("c", "float"), "1", "'1'"),
        (ColumnSpec("c", "float"), 1e39, "1e\\+39"),
        (ColumnSpec("c", "float", (), "zscore"), math.nan, "nan"),
        (ColumnSpec("c", "float", None, "minmax"), [math.inf], r"\[inf\]"),
        (ColumnSpec("c", "string"), 1, "1"),
        (ColumnSpec("c", "string"), None, "no value"),
        (ColumnSpec("c", "string", None), "ab", "'ab'"),
    ],
)
def test_bad_value_names_key_and_column(spec, value, received):
    good: Any = {"int": 1, "float": 1.0, "string": "s"}[spec.kind]
    if spec.shape != ():
        good = [good] * (1 if spec.shape is None else spec.shape[0])
    refs = [
        ImageRef("good", "u", "l", columns={"c": good}),
        ImageRef("bad", "u", "l", columns={"c": value}),
    ]
    to_record_batch = ToRecordBatch((spec,))
    with pytest.raises(UserError, match=f"column 'c' of 'bad' received {received}; expected"):
        list(to_record_batch(RefBatch(refs)))
    assert next(to_record_batch(RefBatch(refs[:1]))).num_rows == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((ColumnSpec("image/encoded", "string"),), "'image/encoded', a name every record already"),
        ((ColumnSpec("image/class/text", "string"),), "'image/class/text'"),
        ((ColumnSpec("a", "int"), ColumnSpec("a", "float")), "'a' twice"),
    ],
)
def test_bad_column_name(columns, message):
    with pytest.raises(UserError, match=message):
        AnalyseColumns(columns, None, (), None, "tmp", "transform")


# Transform module -------------------------------------------------------------------------

GOOD_MODULE = """
import dataclasses
import tensorflow as tf
import tensorflow_transform as tft

@dataclasses.dataclass
class Settings:
    times: int = 2

def preprocessing_fn(inputs):
    x = inputs["float/scalar"]
    return {
        "double": x * Settings().times,
        "outer": tf.stack([tf.stack([x, -x], 1)] * 2, 1),
        "label length": tf.cast(tf.strings.length(inputs["image/class/text"]), tf.int64),
        "kept": inputs["int/var"],
        "ragged": tf.RaggedTensor.from_sparse(inputs["int/var"]),
        "mean": tf.zeros_like(x) + tft.mean(inputs["int/scalar/small"]),
    }
"""

MODULE_COLUMNS = (
    ColumnSpec("float/scalar", "float"),
    ColumnSpec("int/var", "int", None),
    ColumnSpec("int/scalar/small", "int"),
)


@pytest.fixture(scope="module")
def through_module(tmp_path_factory) -> tuple[list[list[ImageRef]], str]:
    tmp = tmp_path_factory.mktemp("module")
    (tmp / "transform_me.py").write_text(GOOD_MODULE)
    refs = [
        ref._replace(columns={"float/scalar": i / 2, "int/var": [i] * i, "int/scalar/small": i})
        for i, ref in enumerate(REFS[:5])
    ]
    return analyse(
        tmp,
        batches_of(refs, 2),
        columns=MODULE_COLUMNS,
        transform_module=str(tmp / "transform_me.py"),
    )


def test_module_outputs_replace_the_columns(through_module):
    batches, transform_dir = through_module
    received = {ref.key: ref.columns for batch in batches for ref in batch}
    for i in range(5):
        assert received[f"k00{i}"] == {
            "double": [float(i)],
            "outer": [i / 2, -i / 2, i / 2, -i / 2],
            "label length": [len(ODD_LABELS[i].encode())],
            "kept": [i] * i,
            "ragged": [i] * i,
            "mean": [2.0],
        }
    features = exported_features(transform_dir)
    assert features["outer"] == {"dtype": "float32", "shape": [2, 2]}
    assert features["kept"] == features["ragged"] == {"dtype": "int64", "shape": None}
    assert exported_classes(transform_dir) == sorted(ODD_LABELS)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def other(): pass", "has no function preprocessing_fn"),
        ("preprocessing_fn = 3", "has no function preprocessing_fn"),
        ("import no_such_module_xyz", "failed to load .ModuleNotFoundError: No module named"),
        ("def broken(:", "failed to load .SyntaxError"),
        ("raise SystemExit(3)", "failed to load .SystemExit: 3"),
    ],
)
def test_module_that_does_not_load(tmp_path, source, message):
    path = tmp_path / "m.py"
    path.write_text(source)
    with pytest.raises(UserError, match=message):
        AnalyseColumns((), None, (), str(path), "tmp", "transform")


@pytest.mark.parametrize("name", ["/no/such/file.py", "no.such.module"])
def test_missing_module(name):
    with pytest.raises(UserError, match=f"--transform_module.*{name}"):
        TransformModule(name)


def test_dotted_module_is_found(tmp_path, monkeypatch):
    (tmp_path / "dotted_transform_module.py").write_text("def preprocessing_fn(inputs): return {}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert TransformModule("dotted_transform_module").load()({}) == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('x')", "preprocessing_fn raised KeyError: 'x'"),
        ("return inputs['nope']", "preprocessing_fn raised KeyError: 'nope'"),
        ("return [1]", "returned a list; expected a dict"),
        ("return {'image/height': inputs['n']}", "'image/height' as a feature, a name every"),
        ("return {'image/class/label': inputs['n']}", "'image/class/label' as a feature"),
        ("return {'x': 3}", "'x' as a int; expected a tensor"),
        ("import tensorflow as tf; return {'x': tf.cast(inputs['n'], tf.float64)}", "of float64"),
        ("import tensorflow as tf; return {'x': tf.constant(1.0)}", r"with shape \(\)"),
    ],
)
def test_preprocessing_fn_that_cannot_be_used(tmp_path, body, message):
    path = tmp_path / "m.py"
    path.write_text(f"def preprocessing_fn(inputs):\n    {body}\n")
    refs = [ImageRef("k", "u", "l", columns={"n": 1})]
    columns = (ColumnSpec("n", "int"),)
    with pytest.raises(UserError, match=message) as caught:
        analyse(tmp_path, [RefBatch(refs)], columns=columns, transform_module=str(path))
    assert "\n" not in str(caught.value)


# What is exported -------------------------------------------------------------------------

SERVE = """
import json, sys
import tensorflow as tf
transform = tf.saved_model.load(sys.argv[1] + "/transform_fn").transform_fn
feed = {"image/class/text": tf.constant(["-1", "never seen"])}
if sys.argv[2] == "columns":
    feed["float/scalar"] = tf.constant([1.5, 2.5])
    feed["int/var"] = tf.sparse.from_dense([[7, 8], [9, 0]])
    feed["int/var"] = tf.cast(feed["int/var"], tf.int64)
    feed["int/scalar/small"] = tf.constant([0, 0], tf.int64)
result = transform(feed)
kept = result.pop("kept", None)
result.pop("ragged", None)
plain = {name: tensor.numpy().tolist() for name, tensor in result.items()}
plain["kept"] = None if kept is None else tf.sparse.to_dense(kept).numpy().tolist()
print(json.dumps([plain, "tensorflow_transform" in sys.modules, "apache_beam" in sys.modules]))
"""


@pytest.mark.slow
def test_exported_model_serves_with_plain_tensorflow(labels_only, through_module):
    def served(transform_dir: str, kind: str) -> Any:
        command = [sys.executable, "-c", SERVE, transform_dir, kind]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(result.stdout.splitlines()[-1])

    assert served(labels_only[1], "labels") == [
        {"image/class/label": [0, -1], "kept": None},
        False,
        False,
    ]
    features, *imported = served(through_module[1], "columns")
    assert imported == [False, False]
    assert features["image/class/label"] == [0, -1]
    assert features["double"] == [3.0, 5.0]
    assert features["mean"] == [2.0, 2.0]
    assert features["kept"] == [[7, 8], [9, 0]]


def test_importing_columns_does_not_import_tensorflow():
    code = "import sys, beam_pipeline.columns; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
