import numpy as np
import pytest
import tensorflow as tf

from tests.support.augment_pictures import batch, smooth_picture
from trainer.augment import pixels
from trainer.augment.params import CUTMIX, MIXUP, NO_MIX, draw_params
from trainer.augment.pixels import mix_pairs

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
    noise = pixels.noise_rows(pictures.shape[2], pictures.shape[3])
    return pixels.adjust_pixels(pictures, params, noise, [1, 2, 3]).numpy()


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
    result = mix_pairs(_dark_and_bright(), _mix_params(CUTMIX, share), CLASSES)
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
    result = mix_pairs(batch(pictures), _mix_params(MIXUP, share), CLASSES)
    expected = share * pictures.astype(float) + (1 - share) * pictures[::-1]
    assert np.abs(result["inputs"]["image"].numpy() - expected).max() <= 0.5 + 1e-3
    labels = [[share, 1 - share, 0], [1 - share, share, 0]]
    np.testing.assert_allclose(result["label"], labels, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "weight"), [(NO_MIX, [1.0, 1.0]), (MIXUP, [1.0, 0.0]), (CUTMIX, [1.0, 0.0])]
)
def test_unmixed_pairs_and_pairs_with_a_broken_record_stay_unchanged(kind, weight):
    given = _dark_and_bright() | {"weight": tf.constant(weight)}
    result = mix_pairs(given, _mix_params(kind, 0.3), CLASSES)
    np.testing.assert_array_equal(result["inputs"]["image"], given["inputs"]["image"])
    np.testing.assert_array_equal(result["label"], [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(result["weight"], weight)


def test_weights_are_mixed_like_labels_which_sum_to_one_and_the_rest_of_the_batch_is_kept():
    given = _dark_and_bright() | {"weight": tf.constant([1.0, 3.0])}
    result = mix_pairs(given, _mix_params(MIXUP, 0.25), CLASSES)
    np.testing.assert_allclose(result["weight"], [2.5, 1.5])
    given = batch(np.random.default_rng(3).integers(0, 256, (64, *SIZE, 3), np.uint8))
    given["inputs"]["age"] = tf.range(64)
    result = mix_pairs(given, draw_params("strong", 5, given["position"]), CLASSES)
    assert result["label"].dtype == tf.float32
    np.testing.assert_allclose(tf.reduce_sum(result["label"], axis=1), 1, atol=1e-6)
    assert set(result) == set(given) and result["inputs"]["image"].dtype == tf.uint8
    for name in ("position", "record"):
        np.testing.assert_array_equal(result[name], given[name])
    np.testing.assert_array_equal(result["inputs"]["age"], tf.range(64))
