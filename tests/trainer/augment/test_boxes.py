import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import imageshards as ims
from tests.support.box_sets import make_boxes
from tests.support.errors import refused
from trainer.augment.boxes import View, cut_boxes, move_boxes
from trainer.augment.geometry import Window, affine_maps
from trainer.augment.params import draw_params
from trainer.strengths import STRONG

NAN = math.nan
BOTH, XMIN = ["image", "bounding_boxes"], ["image", "image/object/bbox/xmin"]
units = st.integers(0, 2**24).map(lambda number: number / 2**24)


def _floats(*values):
    return tf.constant(values, tf.float32)


@pytest.mark.parametrize(
    ("box", "least", "expected"),
    [
        pytest.param([-0.5, 0, 0.5, 0.5], 0.5, [0, 0, 0.5, 0.5], id="half is left"),
        pytest.param([-0.5, 0, 0.25, 0.5], 0.5, None, id="a third is left"),
        pytest.param([0.25, 0.5, 0.25, 1], 0.1, [0.25, 0.5, 0.25, 1], id="a line"),
        pytest.param([1.25, 0.5, 1.25, 1], 0.0, None, id="a line outside"),
        pytest.param([0.5, 0, 0.25, 1], 0.0, None, id="reversed"),
        pytest.param([NAN] * 4, 0.0, None, id="absent"),
        pytest.param([0, 0.5, 0.5, 1], 0.75, [0, 0.5, 0.5, 1], id="a quarter is erased"),
        pytest.param([0, 0.5, 0.5, 1], 0.8, None, id="too much is erased"),
        pytest.param([-0.5, 0.5, 0.5, 1], 0.375, [0, 0.5, 0.5, 1], id="cut and erased"),
        pytest.param([-0.5, 0.5, 0.5, 1], 0.4, None, id="cut and erased too much"),
        pytest.param([0.3, 0.8, 0.5, 1], 0.0, None, id="all is erased"),
    ],
)
def test_boxes_are_cut_off_at_the_edges_and_hidden_ones_dropped(box, least, expected):
    other = [0.0, 0.0, 1.0, 1.0]
    labels = tf.constant([[0, 1]], tf.int64)
    erased = Window(*(_floats(side) for side in (0.75, 0.25, 0.25, 0.75)))
    given = {"boxes": tf.constant([[box, other]]), "labels": labels}
    found = cut_boxes(given, least, erased=erased)
    boxes, labels = (found[name][0].numpy().tolist() for name in ("boxes", "labels"))
    assert labels == ([0, 1] if expected else [1, -1])
    assert boxes == ([expected, other] if expected else [other, [-1] * 4])


@settings(max_examples=100, deadline=None)
@given(units, units, st.booleans(), units, units, units)
def test_points_move_as_the_affine_map_moves_their_pixels(x, y, flip, turn, top, left):
    half_tangent = 0.4 * turn - 0.2
    height, width, size = 90.0, 120.0, (50, 40)
    window = Window(*(_floats(v) for v in (30 * top, 40 * left, 60.0, 80.0)))
    view = View(window, _floats(height), _floats(width), tf.constant([flip]), _floats(half_tangent))
    point = tf.constant([[[x, y, x, y]]], tf.float32)
    found = move_boxes({"boxes": point}, view)["boxes"][0, 0].numpy()
    # The map leads from centres of the output's pixels to those of the stored picture's.
    drawn = {"flip": tf.constant([flip]), "half_tangent": _floats(half_tangent)}
    maps = affine_maps(window, drawn, size)
    x_x, x_y, x_0, y_x, y_y, y_0, *_ = maps[0].numpy()
    column, row = found[0] * size[1] - 0.5, found[1] * size[0] - 0.5
    back = x_x * column + x_y * row + x_0 + 0.5, y_x * column + y_y * row + y_0 + 0.5
    np.testing.assert_allclose(back, [x * width, y * height], atol=1e-2)


SETTINGS: dict[str, dict[str, Any]] = {
    "none": {"augment": "none", "image_size": (96, 128)},
    "light, cached": {"augment": "light", "cache": "pixels", "image_size": (128, 96)},
    "light, device": {"augment": "light", "augment_on": "device", "image_size": (72, 96)},
    "strong, smaller": {"augment": "strong", "image_size": 72},
    "strong, device": {"augment": "strong", "augment_on": "device"},
    "numbers": {"augment": ims.Augment(flip=1, noise=5, contrast=0.2), "image_size": (72, 96)},
}


def _coloured(picture):
    red, green = picture[..., 0].astype(int), picture[..., 1].astype(int)
    rows, columns = np.nonzero(red - green > 40)
    height, width = picture.shape[:2]
    low, high = (rows.min(), columns.min()), (rows.max() + 1, columns.max() + 1)
    return low[1] / width, low[0] / height, high[1] / width, high[0] / height


def _overlap(a, b):
    """Intersection over union."""
    sides = [max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1)]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return sides[0] * sides[1] / (sum(areas) - sides[0] * sides[1])


VARIED = ("light, device", "strong, smaller")


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.one_row
def test_the_box_of_a_coloured_rectangle_is_around_its_pixels(name, tmp_path):
    folder, _ = make_boxes(tmp_path / "set", varies=name in VARIED)
    asked: dict[str, Any] = {"image_size": (160, 160)} | SETTINGS[name]
    asked["cache_folder"] = tmp_path / "cache" if "cached" in name else None
    is_strong = "strong" in name
    with pytest.warns(UserWarning, match="MixUp and CutMix") if is_strong else nullcontext():
        train = ims.open(folder).train(batch_size=8, inputs=BOTH, seed=3, **asked)
    compared = 0
    for step, (inputs, _) in zip(range(12), train.as_numpy(), strict=False):
        erased = np.zeros(8, bool)
        if is_strong:
            positions = tf.range(8 * step, 8 * step + 8, dtype=tf.int64)
            erased = draw_params(STRONG, 3, positions)["erase"].numpy()
        boxes, labels = inputs["bounding_boxes"]["boxes"], inputs["bounding_boxes"]["labels"]
        assert boxes.shape[:2] == labels.shape
        np.testing.assert_array_equal(labels < 0, (boxes == -1).all(-1))
        for picture, (first, *_), hidden in zip(inputs["image"], boxes, erased, strict=True):
            if not hidden and 0 < first[:2].min() and first[2:].max() < 1:
                assert _overlap(_coloured(picture), first) >= 0.9, (step, first)
                compared += 1
    assert compared >= 20


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.one_row
def test_a_box_whose_pixels_are_erased_is_dropped_on_the_host_and_on_the_device(where, tmp_path):
    data = ims.open(make_boxes(tmp_path / "set")[0])
    asked: dict[str, Any] = {"batch_size": 8, "inputs": BOTH, "seed": 3, "image_size": (160, 160)}
    erase = ims.Augment(erase=1.0, erase_area=(0.1, 0.6))
    plain = data.train(**asked, augment="none").as_numpy()
    erased = data.train(**asked, augment=erase, augment_on=where, min_box_visibility=0.5).as_numpy()
    kept = dropped = 0
    for _, (whole, _), (inputs, _) in zip(range(6), plain, erased, strict=False):
        changed = np.abs(whole["image"].astype(int) - inputs["image"]).max(-1) > 8
        sets = zip(whole["bounding_boxes"]["boxes"], inputs["bounding_boxes"]["boxes"], strict=True)
        for hidden, (boxes, left) in zip(changed, sets, strict=True):
            found = [list(box) for box in left if box[0] >= 0]
            for box in (box for box in boxes if box[0] >= 0):
                x0, y0, x1, y1 = (round(float(side) * 160) for side in box)
                share = 1 - hidden[y0:y1, x0:x1].mean()
                if abs(share - 0.5) > 0.01:
                    assert (list(box) in found) == (share > 0.5), (box, share)
                    kept, dropped = kept + (share > 0.5), dropped + (share < 0.5)
    assert kept >= 10 and dropped >= 5


def test_evaluation_moves_boxes_with_the_central_crop(tmp_path):
    data = ims.open(make_boxes(tmp_path / "set")[0])
    val = data.evaluation(batch_size=8, inputs=BOTH, image_size=(96, 160), eval_crop=0.9)
    ((inputs, _),) = val.as_numpy()
    found = zip(inputs["image"], inputs["bounding_boxes"]["boxes"], strict=True)
    for picture, boxes in [*found][1:]:
        assert _overlap(_coloured(picture), boxes[0]) >= 0.9


def test_labels_are_numbered_names_and_follow_their_boxes(tmp_path):
    folder, boxes = make_boxes(tmp_path / "set")
    how: dict[str, Any] = {"augment": "none", "min_box_visibility": 0.5}
    train = ims.open(folder).train(batch_size=8, inputs=BOTH, **how)
    assert train.box_classes == ("high", "wide")
    batch = next(train.batches().as_numpy_iterator())
    found = batch["inputs"]["bounding_boxes"]
    of_records = zip(batch["record"], found["boxes"], found["labels"], strict=True)
    for record, of_one, labels in of_records:
        box = boxes[record]
        label = int(box[2] - box[0] > box[3] - box[1])
        count = (0, 2)[record % 8] if record % 8 < 2 else 1
        assert labels.tolist() == [label, 1][:count] + [-1] * (len(labels) - count)
        if count:
            np.testing.assert_allclose(of_one[0], box, atol=1e-6)


@pytest.mark.parametrize(
    ("each", "classes"), [(8, ("", "wide")), (1, ())], ids=["an empty name", "no box at all"]
)
@pytest.mark.one_row
def test_datasets_with_empty_names_or_without_boxes_are_read(each, classes, tmp_path):
    folder, _ = make_boxes(tmp_path / "set", each=each, kinds=("", "wide"))
    how: dict[str, Any] = {"batch_size": 3 * each, "augment": "none"}
    train = ims.open(folder).train(target="bounding_boxes", **how)
    assert train.box_classes == classes
    _, label = next(train.as_numpy())
    assert label["labels"].dtype == np.int64
    assert {*label["labels"].ravel()} - {-1} == {*range(len(classes))}


def test_classes_of_more_boxes_than_the_index_holds_are_known(tmp_path):
    folder, _ = make_boxes(tmp_path / "set", crowd=70)
    train = ims.open(folder).train(batch_size=24, target="bounding_boxes", augment="none")
    assert train.box_classes == ("crowd", "high", "wide")
    batch = next(train.batches().as_numpy_iterator())
    counts = (batch["label"]["labels"] == 0).sum(1)[np.argsort(batch["record"])]
    assert counts[[1, 2, 10]].tolist() == [0, 70, 70]


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.one_row
def test_hidden_boxes_take_no_place_of_a_visible_one(place, tmp_path):
    data = ims.open(make_boxes(tmp_path / "set", crowd=3)[0])
    how: dict[str, Any] = {"batch_size": 24, "inputs": BOTH, "augment_on": place}
    how |= {"augment": "light", "min_box_visibility": 0.99}
    trains = [data.train(sequence_length=most, **how) for most in (None, 1, 9)]
    whole, one, nine = (next(train.as_numpy())[0]["bounding_boxes"] for train in trains)
    assert whole["labels"].shape == (24, 4) and set(whole["labels"][:, 0]) == {-1, 1, 2}
    for name, values in whole.items():
        np.testing.assert_array_equal(one[name], values[:, :1])
        np.testing.assert_array_equal(nine[name][:, :4], values)
        assert np.all(nine[name][:, 4:] == -1) and nine[name].shape[:2] == (24, 9)
    assert trains[1].dataset().element_spec[0]["bounding_boxes"]["boxes"].shape == (24, 1, 4)


def test_boxes_are_a_target_alone_and_beside_others(tmp_path):
    data = ims.open(make_boxes(tmp_path / "set")[0])
    how: dict[str, Any] = {"batch_size": 8, "augment": "none", "sequence_length": 3}
    _, alone = next(data.train(target="bounding_boxes", **how).as_numpy())
    assert (alone["boxes"].shape, alone["labels"].shape) == ((8, 3, 4), (8, 3))
    train = data.train(target=["label", "bounding_boxes"], **how)
    _, both = next(train.as_numpy())
    np.testing.assert_array_equal(both["bounding_boxes"]["boxes"], alone["boxes"])
    assert both["label"].shape == (8,)
    assert train.element_spec[1]["bounding_boxes"]["boxes"].shape == (8, 3, 4)
    light = data.train(target="bounding_boxes", augment="light", augment_on="device", batch_size=8)
    assert light.element_spec[1]["boxes"].shape == (8, None, 4)


@pytest.mark.parametrize(
    ("asked", "argument", "word"),
    [
        ({"inputs": XMIN, "augment": "light"}, "inputs", "bounding_boxes"),
        ({"inputs": XMIN, "augment": "none", "image_size": (80, 160)}, "inputs", "image_size"),
        ({"inputs": XMIN, "augment": lambda a, b, c: (a, b)}, "inputs", "bounding_boxes"),
        ({"inputs": BOTH, "target": "bounding_boxes"}, "inputs", "is the target"),
        ({"inputs": BOTH, "augment": lambda a, b, c: (a, b)}, "augment", "a function"),
    ],
)
def test_options_that_cannot_move_boxes_are_refused(asked, argument, word, tmp_path):
    data = ims.open(make_boxes(tmp_path / "set")[0])
    with refused(argument, word):
        data.train(batch_size=8, **asked)


def test_a_single_side_of_boxes_is_an_input_if_pixels_do_not_move(tmp_path):
    data = ims.open(make_boxes(tmp_path / "set")[0])
    how: dict[str, Any] = {"batch_size": 8, "inputs": XMIN}
    for one in (data.train(augment="none", **how), data.evaluation(**how)):
        assert next(one.as_numpy())[0]["image_object_bbox_xmin"].shape == (8, 2)
    with refused("inputs", "eval_crop", "bounding_boxes"):
        data.evaluation(eval_crop=0.9, **how)
