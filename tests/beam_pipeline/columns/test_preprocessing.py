"""`--transform_module`, and the exported model in plain TensorFlow."""

import json
import subprocess
import sys

import pytest

from beam_pipeline.columns.export import exported_classes, exported_features
from beam_pipeline.columns.preprocessing import TransformModule
from beam_pipeline.columns.transforms import AnalyseColumns
from beam_pipeline.options import ColumnSpec
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards.manifest import FeatureSpec
from tests.support.columns_run import ODD_LABELS, analyse
from tests.support.errors import refused
from tests.support.listings import batches_of
from tests.support.script import run_script

GOOD_MODULE = """
import dataclasses
import tensorflow as tf
import tensorflow_transform as tft

@dataclasses.dataclass
class Settings:
    times: int = 2

def preprocessing_fn(inputs):
    x = inputs["half"]
    return {
        "double": x * Settings().times,
        "outer": tf.stack([tf.stack([x, -x], 1)] * 2, 1),
        # A vocabulary of its own does not disturb the labels'.
        "word": tft.compute_and_apply_vocabulary(tf.strings.as_string(inputs["number"])),
        "label length": tf.cast(tf.strings.length(inputs["image/class/text"]), tf.int64),
        "kept": inputs["times"],
        "ragged": tf.RaggedTensor.from_sparse(inputs["times"]),
        "mean": tf.zeros_like(x) + tft.mean(inputs["number"]),
    }
"""

COLUMNS = (
    ColumnSpec("half", "float"), ColumnSpec("times", "int", None), ColumnSpec("number", "int"),
)  # fmt: skip


@pytest.fixture(scope="module")
def through_module(tmp_path_factory) -> tuple[list[list[ImageRef]], str]:
    tmp = tmp_path_factory.mktemp("module")
    module = tmp / "transform_me.py"
    module.write_text(GOOD_MODULE)
    columns = [{"half": i / 2, "times": [i] * i, "number": i} for i in range(len(ODD_LABELS))]
    refs = [ImageRef(f"k00{i}", "u", ODD_LABELS[i], columns=row) for i, row in enumerate(columns)]
    return analyse(tmp, batches_of(refs, 2), columns=COLUMNS, transform_module=str(module))


@pytest.mark.long
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
            "word": [4 - i],  # of equally frequent words the last comes first
        }
    features = exported_features(transform_dir)
    assert features["outer"] == FeatureSpec("float32", (2, 2))
    assert features["kept"] == features["ragged"] == FeatureSpec("int64", None)
    assert exported_classes(transform_dir) == sorted(ODD_LABELS)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("preprocessing_fn = 3", "which has no such function"),
        ("import no_such_module_xyz", "failed to load (ModuleNotFoundError: No module named"),
        ("def broken(:", "failed to load (SyntaxError"),
        ("raise SystemExit(3)", "failed to load (SystemExit: 3"),
    ],
)
def test_a_module_that_does_not_load_is_refused(tmp_path, source, message):
    (tmp_path / "m.py").write_text(source)
    with refused("transform_module", message):
        TransformModule(str(tmp_path / "m.py"))
    for absent in ("/no/such/file.py", "no.such.module"):
        with refused("transform_module", absent):
            AnalyseColumns("transform", transform_module=absent)


def test_dotted_module_is_found(tmp_path, monkeypatch):
    (tmp_path / "dotted_transform_module.py").write_text("def preprocessing_fn(inputs): return {}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    assert TransformModule("dotted_transform_module").load()({}) == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('x')", "preprocessing_fn raised KeyError: 'x'"),
        ("return [1]", "returned a list; expected a dict"),
        ("return {'image/height': inputs['n']}", "'image/height' as a feature, a name every"),
        ("return {'x': 3}", "'x' as a int; expected a tensor"),
        ("import tensorflow as tf; return {'x': tf.cast(inputs['n'], tf.float64)}", "of float64"),
        ("import tensorflow as tf; return {'x': tf.constant(1.0)}", "with shape ()"),
    ],
)
def test_a_preprocessing_fn_that_cannot_be_used_is_refused(tmp_path, body, message):
    path = tmp_path / "m.py"
    path.write_text(f"def preprocessing_fn(inputs):\n    {body}\n")
    refs = [ImageRef("k", "u", "l", columns={"n": 1})]
    columns = (ColumnSpec("n", "int"),)
    with refused(None, message):
        analyse(tmp_path, [RefBatch(refs)], columns=columns, transform_module=str(path))


SERVE = """
import json, sys
import tensorflow as tf

transform = tf.saved_model.load(sys.argv[1] + "/transform_fn").transform_fn
served = transform({
    "image/class/text": tf.constant(["-1", "never seen"]),
    "half": tf.constant([1.5, 2.5]),
    "times": tf.cast(tf.sparse.from_dense([[7, 8], [9, 0]]), tf.int64),
    "number": tf.constant([0, 0], tf.int64),
})
kept = tf.sparse.to_dense(served["kept"]).numpy().tolist()
plain = {n: served[n].numpy().tolist() for n in ("image/class/label", "double", "mean")}
imported = {"tensorflow_transform", "apache_beam"} & sys.modules.keys()
print(json.dumps([plain | {"kept": kept}, sorted(imported)]))
"""


@pytest.mark.slow
@pytest.mark.long
def test_exported_model_serves_with_plain_tensorflow(through_module):
    printed = run_script(SERVE, through_module[1])
    served = {"double": [3.0, 5.0], "mean": [2.0, 2.0], "kept": [[7, 8], [9, 0]]}
    expected = [{"image/class/label": [0, -1]} | served, []]
    assert json.loads(printed.splitlines()[-1]) == expected


@pytest.mark.slow
@pytest.mark.long
def test_tensorflow_transform_comes_without_keras_3_matplotlib_or_its_start_up_lines():
    code = (
        "import sys\n"
        "from beam_pipeline.columns.preprocessing import import_tensorflow_transform\n"
        "import_tensorflow_transform()\n"
        "sys.exit(str({'keras', 'matplotlib', 'trainer'} & sys.modules.keys() or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
