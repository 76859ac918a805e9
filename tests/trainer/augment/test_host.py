from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from imageshards.jpeg import FORMATS
from tests.support.augment_pictures import batch, image_spec, jpeg, smooth_picture
from tests.support.pictures import saved
from trainer.augment import host, pixels
from trainer.augment.decode import Rows
from trainer.strengths import Augment

COUNT = 16
FULL = (64, 80)


def _encoded(size=FULL, channels=3):
    return tf.constant([jpeg(smooth_picture(size, i, channels)) for i in range(COUNT)])


def _pictures(encoded, size, level, *, own=FULL, channels=3, formats=("JPEG",)):
    spec = image_spec(own, varies=own is None, channels=channels, formats=formats)
    pictures = host.augmented_pictures(spec, size, Augment.of(level), 3, [127.5] * channels)
    found = pictures(encoded, tf.range(len(encoded), dtype=tf.int64))
    assert found.dtype == tf.uint8 and found.shape == (len(encoded), *size, channels)
    return found.numpy().astype(int)


@pytest.mark.parametrize(
    ("level", "size", "channels"),
    [
        ("light", (48, 48), 3),
        ("light", (90, 90), 1),
        ("strong", (40, 72), 3),
        (Augment(), (48, 48), 3),
        (Augment(rotate=90), (48, 48), 3),
        (Augment(crop=(0.2, 0.4), ratio=(0.5, 0.6)), (32, 80), 3),
        (Augment(flip=0.5, brightness=0.4, noise=20, erase=1), (48, 60), 3),
        (Augment(flip=1, contrast=1), (48, 60), 1),
        (Augment(saturation=1, erase=0.5, erase_area=(0.5, 1), erase_ratio=1), (60, 48), 3),
    ],
)
@pytest.mark.one_row
def test_the_host_makes_the_pictures_of_the_device(level, size, channels):
    encoded = _encoded(channels=channels)
    found = _pictures(encoded, size, level, channels=channels)
    decoded = [tf.io.decode_jpeg(one, channels=channels).numpy() for one in encoded]
    pictures = batch(np.stack(decoded))
    result = pixels.augment_batch(pictures, Augment.of(level), 3, size, None, [127.5] * channels)
    difference = np.abs(found - result["inputs"]["image"].numpy().astype(int))
    # Where a rotation mirrors at the edge, slopes are as steep as the colours' stretch.
    assert difference.max() <= 3 and (difference.mean() < 0.1 or level == "light")


@pytest.mark.parametrize("level", ["light", "strong"])
@pytest.mark.one_row
def test_measured_sizes_give_the_pictures_of_known_sizes(level):
    encoded = _encoded()
    varied = image_spec(None, varies=True)
    pictures = host.augmented_pictures(varied, (24, 20), Augment.of(level), 3, [127.5] * 3)
    stream = tf.data.Dataset.from_tensor_slices((encoded, tf.range(COUNT, dtype=tf.int64)))
    stream = stream.batch(4, drop_remainder=True).map(pictures, num_parallel_calls=2)
    assert stream.element_spec == tf.TensorSpec((4, 24, 20, 3), tf.uint8)
    found = np.concatenate(list(stream.as_numpy_iterator())).astype(int)
    difference = np.abs(found - _pictures(encoded, (24, 20), level))
    # Grappler may reorder float32 arithmetic, so a value near one half may round otherwise.
    assert difference.max() <= 1 and (difference > 0).mean() < 1e-3


@pytest.mark.parametrize(
    ("level", "own"), [("light", FULL), ("strong", FULL), ("light", (180, 211))]
)
@pytest.mark.one_row
def test_cached_pictures_are_augmented_as_their_jpegs(level, own):
    encoded = _encoded(own)
    pixels = tf.stack([tf.io.decode_jpeg(one) for one in encoded] + [tf.zeros((*own, 3), tf.uint8)])
    pictures = host.augmented_pictures(image_spec(own), (40, 40), Augment.of(level), 3, [127.5] * 3)
    keys = tf.constant([*range(3), COUNT, *range(4, COUNT)], tf.int64)
    positions = tf.range(COUNT, dtype=tf.int64)
    # In a graph, where all ratios are traced.
    found = tf.function(lambda k, at: pictures(Rows(pixels, k), at))(keys, positions)
    found = found.numpy().astype(int)
    difference = np.delete(np.abs(found - _pictures(encoded, (40, 40), level, own=own)), 3, 0)
    # Along edges of a window colours come from outside of it, too, where a picture is whole.
    assert difference.max() <= 24 and difference.mean() < (0.1 if own == FULL else 1)
    assert level == "strong" or not found[3].any()


@pytest.mark.parametrize("level", ["light", "strong"])
@pytest.mark.parametrize("channels", [1, 3])
def test_sizes_and_channels_may_differ_within_a_batch(level, channels):
    sizes = [(64, 64), (31, 200), (300, 40), (1, 1), (9, 500), (700, 900)]
    encoded = tf.constant([jpeg(smooth_picture(size, 1, channels)) for size in sizes])
    found = _pictures(encoded, (24, 24), level, own=None, channels=3)
    assert channels == 3 or level == "strong" or (found[..., 0] == found[..., 2]).all()


@pytest.mark.parametrize(
    ("level", "own", "channels"),
    [("light", None, 3), ("light", FULL, 1), ("light", (160, 200), 3), ("strong", FULL, 3)],
)
def test_records_of_all_formats_give_the_pictures_of_jpeg_records(level, own, channels):
    drawn = [smooth_picture(own or FULL, i, channels) for i in range(5)]
    rgb = [Image.fromarray(one.squeeze()).convert("RGB") for one in drawn]
    encoded = [jpeg(drawn[0]), saved(Image.fromarray(drawn[1].squeeze()), "PNG")]
    encoded += [saved(rgb[2], "BMP"), saved(rgb[3], "WEBP", lossless=True)]
    encoded += [saved(rgb[4], "GIF", save_all=True, append_images=rgb[:1])]
    how: dict[str, Any] = {"own": own, "channels": channels}
    found = _pictures(tf.constant(encoded), (48, 48), level, **how, formats=FORMATS)
    expected = _pictures(tf.constant([jpeg(one) for one in drawn]), (48, 48), level, **how)
    difference = np.abs(found - expected)
    # The JPEGs differ by what was lost, and colours may be stretched. A GIF has 256 colours.
    assert difference[:4].max() <= 12 and difference[:4].mean() < 2 and difference[4].mean() < 8


@pytest.mark.parametrize("own", [(512, 640), None])
def test_large_pictures_are_averaged_when_shrunk(own):
    """Stripes of one pixel become grey; picking single pixels would show some of them."""
    stripes = np.zeros((512, 640, 3), np.uint8)
    stripes[:, ::2] = 200
    encoded = tf.constant([jpeg(stripes)] * 8)
    assert np.abs(_pictures(encoded, (32, 32), "light", own=own) - 100).max() < 12
