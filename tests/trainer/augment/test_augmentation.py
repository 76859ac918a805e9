import numpy as np
import pytest

import imageshards as ims
from tests.support.augment_pictures import image_spec
from tests.support.errors import refused
from tests.support.trainer_data import make_dataset
from trainer.augment import augmentation


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


def test_the_device_gets_pictures_as_they_are_unless_far_too_large():
    shipped = augmentation.shipped_size
    assert shipped(image_spec((448, 448)), (224, 224)) == (448, 448)
    assert shipped(image_spec((256, 600)), (224, 224)) == (256, 256)
    assert shipped(image_spec((256, 256), varies=True), (224, 224)) == (256, 256)
    assert shipped(image_spec(None, varies=True), (160, 224)) == (183, 256)


@pytest.mark.process
def test_host_and_device_make_the_same_of_a_stream(tmp_path):
    data = ims.open(make_dataset(tmp_path, {"train": 12}, size_px=((64, 64),)))

    def stream(place, seed=5):
        how = {"image_size": 48, "augment": "strong", "augment_on": place, "seed": seed}
        batches = data.train(batch_size=4, **how).dataset().take(3).as_numpy_iterator()
        images, labels = map(np.concatenate, zip(*batches, strict=True))
        return images.astype(int), labels

    (on_host, host_labels), (on_device, device_labels) = stream("host"), stream("device")
    assert on_host.shape == (12, 48, 48, 3) and np.abs(on_host - on_device).mean() < 1
    np.testing.assert_allclose(host_labels, device_labels, atol=1e-6)
    assert np.abs(stream("device", 6)[0] - on_device).mean() > 10
