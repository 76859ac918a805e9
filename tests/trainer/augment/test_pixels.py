from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import kernels, op_def_registry

from tests.support.augment_pictures import batch, smooth_picture
from trainer.augment import host, pixels
from trainer.augment.boxes import box_finisher
from trainer.augment.params import CUTMIX, MIXUP, NO_MIX
from trainer.augment.pixels import Pairs, mix_pairs
from trainer.dataset.spec import Boxes
from trainer.strengths import LIGHT, STRONG, Augment

CLASSES = 3
SIZE = (13, 17)


PICTURE = tf.constant(smooth_picture((8, 9), 5)[None], tf.float32)
LUMINANCE = PICTURE.numpy() @ np.array([0.299, 0.587, 0.114])


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ({"brightness": 1.25}, PICTURE * 1.25),
        ({"saturation": 0}, np.repeat(LUMINANCE[..., None], 3, -1)),
        ({"contrast": 0.5}, (PICTURE + round(LUMINANCE.mean())) / 2),
        # Grey has no saturation.
        ({"saturation": 0.2, "brightness": 0.5}, PICTURE[..., :1] * 0.5),
    ],
)
def test_colours_are_scaled(factors, expected):
    names = ("brightness", "contrast", "saturation")
    given = {name: tf.constant([factors.get(name, 1)], tf.float32) for name in names}
    found = pixels.adjust_colors(PICTURE[..., : expected.shape[-1]], given)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def _adjusted(pictures, **changes):
    count = len(pictures)
    plain = dict.fromkeys(("brightness", "contrast", "saturation", "erase_aspect"), 1.0)
    plain |= dict.fromkeys(("noise_std", "erase_area", "erase_y", "erase_x"), 0.0)
    params = {name: tf.fill([count], changes.get(name, value)) for name, value in plain.items()}
    params["erase"] = tf.fill([count], changes.get("erase", False))
    params["noise_key"] = tf.constant(range(count), tf.uint32)
    return pixels.adjust_pixels(pictures, params, [1, 2, 3]).numpy()


def test_noise_is_gaussian_and_of_the_strength_drawn():
    noise = _adjusted(tf.fill([4, 64, 64, 3], 100.0), noise_std=8.0) - 100
    assert abs(noise.mean()) < 0.3
    assert noise.std() == pytest.approx(8, rel=0.03)
    # Fourth moment of a Gaussian: three times the squared variance.
    assert np.mean(noise**4) / noise.std() ** 4 == pytest.approx(3, rel=0.1)
    assert np.abs(np.corrcoef(noise.reshape(4, -1)) - np.eye(4)).max() < 0.05
    assert (np.abs(np.corrcoef(noise[0].reshape(64, -1)) - np.eye(64)) > 0.9).sum() < 20


def test_an_erased_rectangle_has_the_drawn_area_and_shape_and_the_fill_colour():
    found = _adjusted(PICTURE[:, :8, :8], erase=True, erase_area=0.125, erase_aspect=0.5)
    erased = (np.abs(found[0] - [1, 2, 3]) < 1e-3).all(-1)
    expected = np.zeros((8, 8), bool)
    expected[:2, :4] = True
    np.testing.assert_array_equal(erased, expected)
    np.testing.assert_allclose(found[0][~expected], PICTURE[0, :, :8].numpy()[~expected], atol=0.01)
    # It may cover everything, but never leaves the picture.
    found = _adjusted(PICTURE, erase=True, erase_area=1.0, erase_aspect=3.0, erase_x=0.999)
    assert np.isfinite(found).all() and (found[0, :, -1] == [1, 2, 3]).all()
    rounded = pixels.clip_to_uint8(tf.constant([-3.0, 0.4, 0.6, 254.6, 300.0]))
    assert rounded.numpy().tolist() == [0, 0, 1, 255, 255]


def _mix_params(kind, share):
    values = {"mix": kind, "mix_share": share, "mix_y": 0.3, "mix_x": 0.8}
    return {name: tf.fill([2], value) for name, value in values.items()}


def _dark_and_bright():
    pictures = np.zeros((2, *SIZE, 3), np.uint8)
    pictures[1] = 255
    return batch(pictures)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.83, 1.0])
def test_cutmix_swaps_a_rectangle_and_labels_are_the_share_of_pixels_seen(share):
    result = mix_pairs(_dark_and_bright(), _mix_params(CUTMIX, share), CLASSES, 1)
    pictures = result["inputs"]["image"].numpy()
    assert set(np.unique(pictures)) <= {0, 255}
    pasted = (pictures[0] == 255).all(-1)
    np.testing.assert_array_equal(pasted, pasted.any(1)[:, None] & pasted.any(0))
    seen = (pictures[0] == 0).mean()
    np.testing.assert_allclose(result["label"][0], [seen, 1 - seen, 0], atol=1e-6)
    # The same rectangle in both.
    np.testing.assert_array_equal(pictures[0], 255 - pictures[1])
    np.testing.assert_allclose(result["label"][1], [1 - seen, seen, 0], atol=1e-6)
    assert seen == pytest.approx(share, abs=0.08)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9, 1.0])
def test_mixup_is_the_weighted_mean_of_both(share):
    pictures = np.random.default_rng(0).integers(0, 256, (2, *SIZE, 1), np.uint8)
    result = mix_pairs(batch(pictures), _mix_params(MIXUP, share), CLASSES, 1)
    expected = share * pictures.astype(float) + (1 - share) * pictures[::-1]
    assert np.abs(result["inputs"]["image"].numpy() - expected).max() <= 0.5 + 1e-3
    labels = [[share, 1 - share, 0], [1 - share, share, 0]]
    np.testing.assert_allclose(result["label"], labels, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "weight"), [(NO_MIX, [1.0, 1.0]), (MIXUP, [1.0, 0.0]), (CUTMIX, [1.0, 0.0])]
)
def test_unmixed_pairs_and_pairs_with_a_broken_record_stay_unchanged(kind, weight):
    given = _dark_and_bright() | {"weight": tf.constant(weight)}
    result = mix_pairs(given, _mix_params(kind, 0.3), CLASSES, 1)
    np.testing.assert_array_equal(result["inputs"]["image"], given["inputs"]["image"])
    np.testing.assert_array_equal(result["label"], [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(result["weight"], weight)


def test_weights_are_mixed_like_labels_which_sum_to_one_and_the_rest_of_the_batch_is_kept():
    given = _dark_and_bright() | {"weight": tf.constant([1.0, 3.0])}
    result = mix_pairs(given, _mix_params(MIXUP, 0.25), CLASSES, 1)
    np.testing.assert_allclose(result["weight"], [2.5, 1.5])
    given = batch(np.random.default_rng(3).integers(0, 256, (64, *SIZE, 3), np.uint8))
    given["inputs"]["age"] = tf.range(64)
    result = pixels.mix_batch(given, STRONG, 5, Pairs(CLASSES, lambda share: share // 4))
    assert result["label"].dtype == tf.float32
    np.testing.assert_allclose(tf.reduce_sum(result["label"], axis=1), 1, atol=1e-6)
    assert set(result) == set(given) and result["inputs"]["image"].dtype == tf.uint8
    for name in ("position", "record"):
        np.testing.assert_array_equal(result[name], given[name])
    np.testing.assert_array_equal(result["inputs"]["age"], tf.range(64))


@pytest.mark.parametrize("distance", [1, 3, 6])
@pytest.mark.one_row
def test_pictures_are_mixed_with_their_partners_on_the_device_and_on_the_host(distance):
    values = np.arange(0, 240, 20)
    given = batch(np.broadcast_to(values[:, None, None, None], (12, *SIZE, 3)).astype(np.uint8))
    given["weight"] = tf.constant([0.0, *[1.0] * 11])
    augment, pairs = Augment(mixup=1, cutmix=1, mix=0.8), Pairs(12, lambda share: distance)
    given["label"] = tf.range(12)
    found = pixels.mix_batch(given, augment, 5, pairs)
    partner = values.reshape(-1, 2, distance)[:, ::-1].ravel() // 20
    shares, pictures = found["label"].numpy(), found["inputs"]["image"].numpy()
    own = shares[range(12), range(12)]
    np.testing.assert_allclose(
        shares[range(12), partner] + own, 1 + (own == 1) * (own - 1), atol=1e-6
    )
    assert 4 < np.sum(own < 1) < 12 and own[0] == own[partner[0]] == 1
    mean = own * values + (1 - own) * values[partner]
    np.testing.assert_allclose(pictures.mean((1, 2, 3)), mean, atol=0.51)
    of_host = tf.function(lambda one: host.mix_batch(one, augment, 5, pairs))(given)
    tf.nest.map_structure(np.testing.assert_array_equal, of_host, found)


def _runs_on_a_gpu(node: Any) -> bool:
    """Whether a node has a kernel for GPUs that takes no number but int32 from the host."""
    types = {arg.name: arg.type or node.attr[arg.type_attr].type for arg in _inputs(node)}
    return any(
        kernel.device_type in ("GPU", "DEFAULT")
        and all(node.attr[c.name].type in c.allowed_values.list.type for c in kernel.constraint)
        and {types[name] for name in kernel.host_memory_arg if name in types}
        <= {types_pb2.DT_INT32}
        for kernel in kernels.get_registered_kernels_for_op(node.op).kernel
    )


def _inputs(node: Any) -> Any:
    return op_def_registry.get(node.op).input_arg


EVERYTHING = Augment.of("strong", mixup=0.2, cutmix=2, mix=1)


@pytest.mark.parametrize(
    ("augment", "has_boxes"),
    [(LIGHT, False), (STRONG, False), (EVERYTHING, False), (LIGHT, True), (STRONG, True)],
)
@pytest.mark.one_row
def test_all_operations_of_the_device_run_on_a_gpu(augment, has_boxes):
    """An operation without such a kernel would copy its input to the host in every step."""
    given = batch(np.zeros((8, 64, 64, 3), np.uint8))
    pairs = Pairs(CLASSES, lambda share: 2) if augment.mixes and not has_boxes else None
    finish: Any = None
    if has_boxes:
        given["boxes"] = {"boxes": tf.zeros([8, 2, 4]), "labels": tf.zeros([8, 2], tf.int64)}
        finish = box_finisher(mock.Mock(outputs={}), Boxes("labels"))
    traced = tf.function(pixels.augment_batch, autograph=False).get_concrete_function(
        given, augment, 1, (48, 48), pairs, [1, 2, 3], finish
    )
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    graphs = ("Placeholder", "PartitionedCall", "StatefulPartitionedCall")
    assert len(nodes) > 200
    assert [n.op for n in nodes if n.op not in graphs and not _runs_on_a_gpu(n)] == []
