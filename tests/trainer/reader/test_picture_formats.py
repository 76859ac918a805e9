import numpy as np
import pytest
from PIL import Image

import imageshards as ims
from imageshards.adoption.command import adopt
from imageshards.jpeg import FORMATS
from imageshards.tfrecord import write_records
from tests.support.external_sets import example
from tests.support.pictures import saved

COLOURS = [(250, 10, 10), (20, 240, 30), (40, 60, 230), (90, 90, 90), (240, 240, 30)]
NONE, CACHED = {"augment": "none", "image_size": (32, 40)}, {"cache": "pixels"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Class i is a picture of one colour in format i, 40x32 px."""
    made = tmp_path_factory.mktemp("formats")
    flat = [Image.new("RGB", (40, 32), colour) for colour in COLOURS]
    pictures = [saved(one, kind) for one, kind in zip(flat, FORMATS, strict=True)]
    records = [example({"image": one, "label": i}) for i, one in enumerate(pictures)]
    for split in ("train", "val"):
        write_records(str(made / f"{split}.tfrecord"), records)
    assert adopt(str(made)).source.formats == dict.fromkeys(FORMATS, 2)
    return made


def _check(pictures, labels):
    for picture, label in zip(pictures, np.asarray(labels), strict=True):
        assert np.abs(np.asarray(picture, int) - COLOURS[int(label)]).max() <= 3


@pytest.mark.parametrize("options", [{}, {"augment_on": "device"}, NONE, CACHED])
@pytest.mark.one_row
def test_training_sees_every_picture(folder, tmp_path, options):
    if "cache" in options:
        options = options | {"cache_folder": str(tmp_path)}
    train = ims.open(folder).train(**{"batch_size": 5, "image_size": 16, "seed": 1} | options)
    pictures, labels = next(train.as_numpy())
    assert sorted(labels) == [0, 1, 2, 3, 4]
    _check(pictures, labels)


@pytest.mark.long
def test_strong_augmentation_evaluation_and_source_see_every_picture(folder):
    data = ims.open(folder)
    pictures, _ = next(data.train(batch_size=4, image_size=16, augment="strong").as_numpy())
    assert pictures.shape == (4, 16, 16, 3)
    for pictures, labels in data.evaluation(batch_size=5, image_size=24).as_numpy():
        _check(pictures, labels)
    records = list(data.source("val", decode=True))
    _check([record["image"] for record in records], [record["label"] for record in records])
