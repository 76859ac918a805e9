from tests.support.augment_pictures import image_spec
from trainer.augment import augmentation


def test_auto_is_the_device_if_there_are_gpus():
    for asked, gpus, found in (("auto", 0, "host"), ("auto", 8, "device"), ("host", 8, "host")):
        assert augmentation.resolve_augment_on(asked, gpus) == found


def test_the_device_gets_stored_sizes_unless_they_are_far_too_large():
    shipped = augmentation.shipped_size
    assert shipped(image_spec((448, 448)), (224, 224)) == (448, 448)
    assert shipped(image_spec((256, 600)), (224, 224)) == (256, 256)
    assert shipped(image_spec((256, 256), varies=True), (224, 224)) == (256, 256)
    assert shipped(image_spec(None, varies=True), (160, 224)) == (183, 256)
