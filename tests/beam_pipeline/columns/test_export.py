"""The exported transform: with labels alone a copy of the package's graph with its vocabulary."""

import sys

import pytest

from beam_pipeline.columns import export
from beam_pipeline.columns.export import export_labels, exported_classes
from tests.support.builds import class_folders
from tests.support.commands import ForkedBuild

CLASSES = ["b", "a", "ž", " spaced out ", "0"]


def files_in(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("classes", [["one"], CLASSES, [f"class {i}" for i in range(1000)]])
def test_the_same_classes_are_read_back_from_the_same_files_however_often(tmp_path, classes):
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    export_labels(["x", "y", "z"], one)
    assert export_labels(classes, one) == one
    assert exported_classes(one) == classes
    assert export.exported_features(one) == {}
    export_labels(classes, other)
    assert files_in(tmp_path / "one") == files_in(tmp_path / "other")


MISSING = "tensorflow", "tensorflow_transform", "tensorflow_metadata", "tfx_bsl", "keras", "trainer"


def uninstall() -> None:
    """As where these are not installed: importing one raises ImportError."""
    if imported := sys.modules.keys() & MISSING:
        raise RuntimeError(f"Beam has imported {imported}")
    sys.modules.update(dict.fromkeys(MISSING))  # type: ignore[arg-type]


@pytest.mark.process
@pytest.mark.long
def test_labels_alone_are_built_without_tensorflow_and_its_relatives(tmp_path):
    class_folders(tmp_path / "photos", {"cat": 3, "dog": 3})
    table = tmp_path / "table.csv"
    rows = [f"{p.relative_to(tmp_path)},{p.parent.name},1" for p in tmp_path.rglob("*.jpg")]
    table.write_text("\n".join(["image,label,age", *rows]))
    given = ["--input", table, "--num_shards", "1", "--output"]
    refused, done = (
        ForkedBuild(*given, *more, before=uninstall).result()
        for more in ([tmp_path / "refused"], [tmp_path / "out", "--columns", ""])
    )
    assert refused.returncode == 2 and "pip install 'imageshards[columns]'" in refused.stdout
    assert not (tmp_path / "refused").exists()
    assert done.returncode == 0, done.stdout
    assert exported_classes(str(tmp_path / "out" / "transform")) == ["cat", "dog"]


@pytest.mark.slow
def test_exported_labels_are_opened_by_tensorflow_and_tensorflow_transform(tmp_path):
    import tensorflow as tf
    import tensorflow_transform as tft

    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    export_labels(CLASSES, one)
    export_labels(CLASSES[::-1], other)
    output = tft.TFTransformOutput(one)
    assert [v.decode() for v in output.vocabulary_by_name("label")] == CLASSES
    domain = output.transformed_domains()["image/class/label"]
    assert (domain.min, domain.max) == (-1, len(CLASSES) - 1)
    assert list(output.raw_feature_spec()) == ["image/class/text"]
    expected = [*range(len(CLASSES)), -1]
    assert ids_by(output.transform_raw_features) == expected
    # Two datasets in one process do not share a table.
    first, second = (tf.saved_model.load(f"{folder}/transform_fn") for folder in (one, other))
    assert ids_by(first.transform_fn) == expected
    assert ids_by(second.transform_fn) == [*range(len(CLASSES))[::-1], -1]
    assert ids_by(first.transform_fn) == expected


def ids_by(transform):
    import tensorflow as tf

    names = tf.constant([*CLASSES, "unknown"])
    return transform({"image/class/text": names})["image/class/label"].numpy().tolist()


@pytest.mark.slow
@pytest.mark.parametrize("label", export.LABEL_GRAPHS)
def test_the_packages_graphs_are_what_tensorflow_transform_traces_today(tmp_path, label):
    """If not: `python -m scripts.trace_label_graph`."""
    from scripts.trace_label_graph import trace

    trace(tmp_path / "traced", label)
    traced, packaged = files_in(tmp_path / "traced"), files_in(export.LABEL_GRAPHS[label])
    assert traced.keys() == packaged.keys()
    assert all(traced[name] == packaged[name] for name in traced if name.endswith(".pbtxt"))
