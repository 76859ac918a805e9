"""Augmentation inside the step: whole batches, the same pictures for any slice of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.support.augment_pictures import batch, smooth_picture  # noqa: E402
from trainer.augment import pixels  # noqa: E402

CLASSES = 3
FULL, SIZE = (40, 48), (32, 36)


def _batch(count: int = 12, start: int = 0, channels: int = 3) -> dict[str, Any]:
    pictures = [smooth_picture(FULL, i, channels) for i in range(count)]
    return batch(np.stack(pictures), start)


def _apply(given: dict[str, Any], level: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    fill = [127.5] * given["inputs"]["image"].shape[-1]
    mixed_classes = CLASSES if level == "strong" else None
    args: dict[str, Any] = {"size": SIZE, "num_classes": mixed_classes, "fill": fill} | changes
    return pixels.augment_batch(given, level, seed, **args)


def _image(result: dict[str, Any]) -> np.ndarray:
    return result["inputs"]["image"].numpy().astype(int)


@pytest.mark.parametrize(("level", "channels"), [("light", 3), ("strong", 1)])
def test_pictures_come_in_the_size_of_the_model(level: str, channels: int) -> None:
    given = _batch(channels=channels)
    step = tf.function(lambda some: _apply(some, level))
    result = step(given)
    image = result["inputs"]["image"]
    assert image.dtype == tf.uint8 and image.shape == (12, *SIZE, channels)
    traced = step.get_concrete_function(given).structured_outputs["inputs"]["image"]
    assert traced.shape == (12, *SIZE, channels)
    assert set(result) == set(given)


PICTURE = tf.constant(smooth_picture((8, 9), 5)[None], tf.float32)
LUMINANCE = PICTURE.numpy() @ np.array([0.299, 0.587, 0.114])


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ({}, PICTURE),
        ({"brightness": 1.25}, PICTURE * 1.25),
        ({"saturation": 0}, np.repeat(LUMINANCE[..., None], 3, -1)),
        ({"contrast": 0}, np.full_like(PICTURE, round(LUMINANCE.mean()))),
        ({"contrast": 0.5}, (PICTURE + round(LUMINANCE.mean())) / 2),
        # Grey has no saturation.
        ({"saturation": 0.2, "brightness": 0.5}, PICTURE[..., :1] * 0.5),
    ],
    ids=str,
)
def test_colours_are_scaled(factors: dict[str, float], expected: Any) -> None:
    names = ("brightness", "contrast", "saturation")
    given = {name: tf.constant([factors.get(name, 1)], tf.float32) for name in names}
    found = pixels.adjust_colors(PICTURE[..., : expected.shape[-1]], given)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def _pixel_params(count: int, **changes: Any) -> dict[str, Any]:
    plain = dict.fromkeys(("brightness", "contrast", "saturation", "erase_aspect"), 1.0)
    plain |= dict.fromkeys(("noise_std", "erase_area", "erase_y", "erase_x"), 0.0)
    params = {name: tf.fill([count], changes.get(name, value)) for name, value in plain.items()}
    return params | {
        "erase": tf.fill([count], changes.get("erase", False)),
        "noise_key": tf.constant(range(count), tf.uint32),
    }


def _adjusted(pictures: Any, fill: tuple[float, ...] = (1, 2, 3), **changes: Any) -> np.ndarray:
    params = _pixel_params(len(pictures), **changes)
    noise = pixels.noise_rows(pictures.shape[2], pictures.shape[3])
    return pixels.adjust_pixels(pictures, params, noise, list(fill)).numpy()


def test_noise_is_gaussian_and_of_the_strength_drawn() -> None:
    flat = tf.fill([4, 64, 64, 3], 100.0)
    noise = _adjusted(flat, noise_std=8.0) - 100
    assert abs(noise.mean()) < 0.3
    assert noise.std() == pytest.approx(8, rel=0.03)
    # Fourth moment of a Gaussian: three times the squared variance.
    assert np.mean(noise**4) / noise.std() ** 4 == pytest.approx(3, rel=0.1)
    between = np.corrcoef(noise.reshape(4, -1))
    assert np.abs(between - np.eye(4)).max() < 0.05
    rows = np.corrcoef(noise[0].reshape(64, -1))
    assert (np.abs(rows - np.eye(64)) > 0.9).sum() < 20


def test_an_erased_rectangle_has_the_area_the_shape_and_the_colour_asked_for() -> None:
    found = _adjusted(PICTURE[:, :8, :8], erase=True, erase_area=0.125, erase_aspect=0.5)
    erased = (np.abs(found[0] - [1, 2, 3]) < 1e-3).all(-1)
    expected = np.zeros((8, 8), bool)
    expected[:2, :4] = True
    np.testing.assert_array_equal(erased, expected)
    np.testing.assert_allclose(found[0][~expected], PICTURE[0, :, :8].numpy()[~expected], atol=0.01)
    # It may cover everything, but never leaves the picture.
    found = _adjusted(PICTURE, erase=True, erase_area=1.0, erase_aspect=3.0, erase_x=0.999)
    assert np.isfinite(found).all() and (found[0, :, -1] == [1, 2, 3]).all()


def test_pixels_are_rounded_and_clipped() -> None:
    found = pixels.clip_to_uint8(tf.constant([-3.0, 0.4, 0.6, 254.6, 300.0]))
    np.testing.assert_array_equal(found, [0, 0, 1, 255, 255])
