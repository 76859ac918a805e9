import pytest

from imageshards.adopt.files import split_of


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("my_val_3.tfrecord", "val"),
        ("flowers-Train.tfrecord-00000-of-00002", "train"),
        ("data/test/00-224x224-798.tfrec", "test"),
        ("training/part1/x.tfrec", "training"),
        ("test/validation-1.tfrec", "validation"),
        ("train/my_test_run/0.tfrec", "train"),
        ("train/train/0.tfrec", "train"),
        ("trainA/0.tfrec", "train"),
        ("seg_test/seg_test/0.tfrec", "test"),
        ("images_TRAIN/0.tfrec", "train"),
        ("val2017/0.tfrec", "val"),
        ("contest00.tfrec", None),
        ("pretrained/x.tfrec", None),
    ],
)
def test_the_file_says_its_split_or_else_a_folder_above_it(path, split):
    assert split_of(path) == split


@pytest.mark.parametrize("path", ["train_test-0.tfrec", "test/train/0.tfrec", "my_val/dev_1/0"])
def test_names_that_say_two_splits_are_ambiguous(path):
    with pytest.raises(ValueError, match="says (train|test|val) and (test|train|dev)"):
        split_of(path)
