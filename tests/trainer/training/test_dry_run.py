"""`--dry_run`: what is printed of one batch, and its contact sheet."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imageshards.errors import UserError
from trainer.dataset.spec import DataSet, FeatureSpec, ImageSpec, ModelInputs, Split, Subset

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402

from trainer.training import dry_run  # noqa: E402

CLASSES = ("cat", "dog", "emu")
IMAGE = ImageSpec((8, 12), False, 3, (0.5,) * 3, (0.25,) * 3)
INPUTS = ModelInputs((8, 12), IMAGE)


def subset_of(classes: tuple[str, ...] = CLASSES, **changes: Any) -> Subset:
    features = {"image/encoded": FeatureSpec("string", ())}
    dataset = DataSet("d", {}, classes, IMAGE, "none", "balanced", features)
    counts = tuple(range(1, len(classes) + 1))
    subset = Subset(dataset, Split("train", ()), classes, None, (), sum(counts), counts)
    return dataclasses.replace(subset, **changes)


def batch_of(label: Any, **inputs: Any) -> dict[str, Any]:
    label = tf.constant(label)
    size = label.shape[0]
    image = tf.cast(tf.fill((size, 8, 12, 3), 7), tf.uint8)
    return {
        "inputs": {"image": image, **inputs},
        "label": label,
        "weight": tf.ones(size),
        "position": tf.range(size, dtype=tf.int64),
        "record": tf.range(size, dtype=tf.int64),
    }


@pytest.fixture(scope="module")
def model() -> keras.Model:
    image = keras.Input((8, 12, 3), dtype="uint8", name="image")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(image))
    model = keras.Model(image, keras.layers.Dense(3)(x))
    model.compile(keras.optimizers.Adam())
    model.optimizer.build(model.trainable_variables)
    return model


def test_a_dry_run_prints_its_batch_and_writes_a_contact_sheet(
    model: keras.Model, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "report"
    path = dry_run.describe(
        batch_of([0, 1, 1, 2] * 3),
        subset_of(),
        model,
        INPUTS,
        {"shuffle buffer": 64_000_000, "cache": 0},
        str(folder),
    )
    out = capsys.readouterr().out
    assert path == str(folder / "dry_run.png") and path in out
    assert re.search(r"inputs/image +uint8 +\[12, 8, 12, 3\] +7 +7", out)
    assert re.search(r"label +int32 +\[12\] +0 +2", out)
    assert re.search(r"dog +6 +2 +█{24}", out)
    # 8 * 12 * 3 * 3 weights and 3 biases of 4 bytes.
    assert re.search(r"3.47 kB +weights \(867 parameters\)", out)
    # Adam: two slots, the learning rate (float32) and the step (int64 or int32).
    assert re.search(r"6.9[45] kB +optimizer", out)
    assert "in the reader: 64 MB" in out and "cache" not in out
    with Image.open(path) as sheet:
        assert sheet.mode == "RGB" and sheet.width > sheet.height


def test_inputs_of_every_kind_are_described() -> None:
    batch = batch_of(
        [0, 1],
        age=tf.constant([1.5, -2.0]),
        tokens=tf.ragged.constant([[1, 2, 3], []], dtype=tf.int64),
        empty=tf.zeros((2, 0), tf.int64),
    )
    lines = dry_run.shape_lines(batch, INPUTS)
    assert any(re.match(r"inputs/age +float32 +\[2\] +-2 +1.5$", line) for line in lines)
    assert any(re.match(r"inputs/tokens +int64 +\[2, ragged\] +1 +3$", line) for line in lines)
    assert any(re.match(r"inputs/empty +int64 +\[2, 0\] +- +-$", line) for line in lines)


def test_mixed_labels_count_by_their_shares() -> None:
    labels = np.array([[0.75, 0.25, 0], [0, 0, 1]], np.float32)
    shares = dry_run.class_shares(labels, 3)
    assert shares.tolist() == [0.75, 0.25, 1.0]
    assert dry_run.caption(labels[0], 1.0, CLASSES) == "cat 75% + dog 25%"
    assert dry_run.caption(labels[1], 1.0, CLASSES) == "emu"
    assert dry_run.caption(np.int64(1), 1.0, CLASSES) == "dog"
    assert "broken" in dry_run.caption(np.int64(0), 0.0, CLASSES)


def test_many_classes_show_the_most_frequent_of_the_batch() -> None:
    names = tuple(f"c{i}" for i in range(300))
    shares = np.zeros(300)
    shares[[7, 200]] = [1, 5]
    lines = dry_run.class_lines(shares, subset_of(names))
    assert len(lines) == dry_run.MAX_CLASSES + 3
    assert re.match(r"c200 +5 +201 ", lines[1]) and re.match(r"c7 +1 +8 ", lines[2])
    assert lines[-2] == "and 280 more classes"


def test_class_weights_and_sampling_are_shown() -> None:
    weighted = dry_run.class_lines(np.ones(3), subset_of(class_weights=(2.0, 1.0, 0.667)))
    assert "weight 0.667" in weighted[3]
    sampled = dry_run.class_lines(np.ones(3), subset_of(sampling=True, num_records=9))
    assert sampled[-1] == "9 records in an epoch (copies of rare ones included)"
    unknown = dry_run.class_lines(np.ones(3), subset_of(class_counts=None))
    assert "split unknown" in unknown[0]


def test_a_folder_that_cannot_be_written_is_one_sentence(
    model: keras.Model, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"dry_run.png cannot be written .*--output"):
        dry_run.describe(batch_of([0]), subset_of(), model, INPUTS, {}, str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [((20, 40, 3), (144, 72)), ((500, 250, 1), (72, 144)), ((1, 900, 3), (144, 1))],
)
def test_small_pictures_are_enlarged_and_large_ones_reduced(
    given: tuple[int, int, int], expected: tuple[int, int]
) -> None:
    drawn = dry_run.thumb(np.full(given, 200, np.uint8))
    assert drawn.size == expected and drawn.mode == "RGB"
    assert drawn.getcolors() == [(expected[0] * expected[1], (200, 200, 200))]
