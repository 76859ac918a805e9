import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from imageshards.jpeg import FORMATS
from tests.support.augment_pictures import image_spec, jpeg, smooth_picture
from tests.support.pictures import saved
from trainer.augment.decode import MOST_UNROLLED, batch_pictures, fit_inside

RNG = np.random.default_rng(0)


def _decode(jpegs, spec, size):
    return batch_pictures(spec, size)(jpegs, tf.range(len(jpegs), dtype=tf.int64))


SIZE = (12, 20)
RGB = Image.fromarray(smooth_picture(SIZE, 0))
GREY = RGB.convert("L")
DEEP = Image.fromarray(np.arange(240, dtype=np.uint16).reshape(SIZE) * 257)
CLEAR = Image.merge("RGBA", (*RGB.split(), GREY))
STORED = {
    "jpeg": (saved(RGB, quality=100, subsampling="4:4:4"), RGB),
    "png": (saved(RGB, "PNG"), RGB),
    "grey png": (saved(GREY, "PNG"), GREY),
    "palette": (saved(RGB.quantize(16), "PNG"), RGB.quantize(16)),
    "transparent png": (saved(CLEAR, "PNG"), RGB),
    "transparent webp": (saved(CLEAR, "WEBP", lossless=True, exact=True), RGB),
    "webp": (saved(RGB, "WEBP", lossless=True), RGB),
    "bmp": (saved(RGB, "BMP"), RGB),
    "gif": (saved(GREY, "GIF", save_all=True, append_images=[GREY.rotate(180)]), GREY),
    "16 bits": (saved(DEEP, "PNG"), Image.fromarray(np.arange(240, dtype=np.uint8).reshape(SIZE))),
}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("channels", [3, 1])
def test_pictures_of_all_formats_are_decoded(channels, exact):
    encoded, expected = zip(*STORED.values(), strict=True)
    spec = image_spec(SIZE, varies=not exact, channels=channels, formats=FORMATS)
    found = _decode(tf.constant(encoded), spec, SIZE).numpy().astype(int)
    for pixels, picture in zip(found, expected, strict=True):
        same = np.atleast_3d(np.asarray(picture.convert("RGB" if channels == 3 else "L")))
        # A JPEG loses something, and Pillow's weights of colours have more digits.
        assert np.abs(pixels - same).max() <= (6 if picture is RGB else 1)


@pytest.mark.parametrize("size", [(5, 11), (1, 1), (64, 3)])
@pytest.mark.parametrize("shape", [(8, 16, 3), (31, 4, 1), (1, 40, 3)])
def test_any_picture_fits_any_size(shape, size):
    picture = RNG.integers(0, 256, shape, np.uint8)
    found = fit_inside(tf.constant(picture), size)
    assert found.shape == (*size, shape[2]) and found.dtype == tf.uint8
    np.testing.assert_array_equal(fit_inside(tf.constant(picture), shape[:2]), picture)
    assert fit_inside(tf.constant(picture), size, 0.01).shape == (*size, shape[2])


def test_the_central_crop_keeps_the_aspect_and_rounds_sides():
    # Left and right quarters are black, the middle square is grey: only it may remain.
    image = np.zeros((20, 40, 3), np.uint8)
    image[:, 10:30] = 100
    for picture, side in ((image, 10), (np.transpose(image, (1, 0, 2)), 40)):
        found = fit_inside(tf.constant(picture), (side, side))
        np.testing.assert_array_equal(found, np.full((side, side, 3), 100))
    # 3 px wide at 3:2 is 4.5 px high: rows 1 to 5 of these 7 are kept, not 1 to 4.
    image = np.full((7, 3, 1), 100, np.uint8)
    image[5] = 0
    assert fit_inside(tf.constant(image), (3, 2)).numpy().min() < 90


def test_shrinking_is_antialiased_and_rounds_to_nearest():
    stripes = np.zeros((64, 64, 1), np.uint8)
    stripes[:, 3::8] = stripes[:, 4::8] = 255
    shrunk = fit_inside(tf.constant(stripes), (8, 8)).numpy()
    # A quarter of the pixels is white; without antialiasing only those would be seen.
    assert 30 < shrunk.min() and shrunk.max() < 130
    halves = tf.constant([[[1], [2]], [[2], [2]]], tf.uint8)
    assert int(fit_inside(halves, (1, 1))[0, 0, 0]) == 2  # 1.75


@pytest.mark.parametrize(("count", "channels"), [(2, 3), (MOST_UNROLLED + 1, 1)])
def test_a_batch_is_decoded_alike_eagerly_and_in_a_pipeline(count, channels):
    values = [(i * 7) % 250 for i in range(count)]
    jpegs = tf.constant([jpeg(np.full((8, 8, 3), value, np.uint8)) for value in values])
    spec = image_spec((8, 8), channels=channels)
    eager = _decode(jpegs, spec, (8, 8))
    mapped = tf.data.Dataset.from_tensors(jpegs).map(lambda j: _decode(j, spec, (8, 8)))
    assert eager.shape == (count, 8, 8, channels) and eager.dtype == tf.uint8
    np.testing.assert_allclose(eager[:, 3, 3, 0], values, atol=2)
    np.testing.assert_array_equal(next(mapped.as_numpy_iterator()), eager)
    assert mapped.element_spec.shape == eager.shape


def test_pictures_of_another_size_and_animations_without_alpha_are_errors():
    jpegs = tf.constant([jpeg(np.zeros((12, 18, 3), np.uint8))])
    with pytest.raises(tf.errors.InvalidArgumentError, match="EnsureShape|not compatible"):
        _decode(jpegs, image_spec((8, 8)), (8, 8))
    assert _decode(jpegs, image_spec((8, 8), varies=True), (8, 8)).shape == (1, 8, 8, 3)
    # Not a corrupted memory.
    encoded = saved(RGB, "WEBP", lossless=True, save_all=True, append_images=[RGB.rotate(180)])
    with pytest.raises(tf.errors.InvalidArgumentError):
        _decode(tf.constant([encoded]), image_spec(SIZE, formats=FORMATS), SIZE)
