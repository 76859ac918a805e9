"""Where augmentation is done, and the same pictures from the host and from the device."""

import numpy as np
import pytest

from tests.support.augment_pictures import image_spec, jpeg, smooth_picture
from tests.support.errors import refused
from trainer.augment import augmentation

CLASSES = 3
COUNT = 12


def test_auto_is_the_device_if_there_are_gpus():
    for asked, gpus, found in (("auto", 0, "host"), ("auto", 8, "device"), ("host", 8, "host")):
        assert augmentation.resolve_augment_on(asked, gpus) == found


@pytest.mark.parametrize(
    ("batch_size", "replicas", "nearest"), [(33, 1, 32), (1, 1, 2), (6, 2, 8), (24, 8, 32)]
)
def test_mixing_needs_whole_pairs_in_each_replica(batch_size, replicas, nearest):
    with refused("batch_size", str(batch_size), f" {nearest},"):
        augmentation.check_pairs("strong", batch_size, replicas)
    augmentation.check_pairs("strong", nearest, replicas)
    augmentation.check_pairs("light", batch_size, replicas)
    augmentation.check_pairs("strong", batch_size, replicas, mix=False)


def test_the_device_gets_stored_sizes_unless_they_are_far_too_large():
    shipped = augmentation.shipped_size
    assert shipped(image_spec((448, 448)), (224, 224)) == (448, 448)
    assert shipped(image_spec((256, 600)), (224, 224)) == (256, 256)
    assert shipped(image_spec((256, 256), varies=True), (224, 224)) == (256, 256)
    assert shipped(image_spec(None, varies=True), (160, 224)) == (183, 256)


def _stream(parts):
    import tensorflow as tf

    encoded = tf.constant([jpeg(smooth_picture((64, 64), i)) for i in range(COUNT)])

    def read(encoded, position):
        batch = {
            "inputs": {"image": parts.pictures(encoded, position)},
            "label": position % CLASSES,
            "weight": tf.ones([4]),
            "position": position,
            "record": position,
        }
        return parts.finish(batch) if parts.finish else batch

    records = tf.data.Dataset.from_tensor_slices((encoded, tf.range(COUNT, dtype=tf.int64)))
    batches = records.batch(4, drop_remainder=True).map(read)
    step = tf.function(parts.device) if parts.device else (lambda batch: batch)
    return [step(batch) for batch in batches]


def _make(augment_on, **changes):
    pytest.importorskip("tensorflow")
    args = {"image": image_spec((64, 64)), "size": (48, 48), "seed": 5, "num_classes": CLASSES}
    return augmentation.make_augmentation("strong", augment_on, **(args | changes))


def _images(batches):
    return np.concatenate([batch["inputs"]["image"] for batch in batches]).astype(int)


def test_host_and_device_augment_a_stream_in_the_same_way():
    host, device = _make("host"), _make("device")
    assert host.reader_size == (48, 48) and host.device is None
    assert device.reader_size == (64, 64) and device.finish is None
    on_host, on_device = _stream(host), _stream(device)
    difference = np.abs(_images(on_host) - _images(on_device))
    assert _images(on_host).shape == (COUNT, 48, 48, 3)
    assert difference.max() <= 4 and difference.mean() < 0.2
    for left, right in zip(on_host, on_device, strict=True):
        for name in ("label", "weight", "position"):
            np.testing.assert_allclose(left[name], right[name], atol=1e-6)
    assert np.abs(_images(_stream(_make("device", seed=6))) - _images(on_device)).max() > 10
