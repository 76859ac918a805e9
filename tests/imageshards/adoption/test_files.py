import pytest

from imageshards.adoption.files import find_splits, list_files, split_files, split_of
from imageshards.errors import UserError
from tests.support.errors import refused

FOUND = ["a.tfrec", "b.tfrecord.gz", "c.tfrecord-00000-of-00002", "c.tfrecord-00001-of-00002"]
FOUND += ["sub/d.tfrecords", "sub/deeper/e.tfrec", "train-00000-of-00001"]
OTHERS = ["sub/notes.txt", ".hidden/f.tfrec", ".g.tfrec", "dataset.json", "report-1-of-2.html"]


@pytest.mark.parametrize(
    ("directory", "names", "splits"),
    [
        ("d", ["a", "b"], {"train": ["a", "b"]}),
        ("d", ["test/part1/0", "train/part1/0"], {"test": [0], "train": [1]}),
        ("test", ["train", "validation"], {"train": [0], "validation": [1]}),
        ("test", ["0", "more/1"], {"test": [0, 1]}),
        ("d/val/*", ["d/val/0", "d/val/1"], {"val": [0, 1]}),
        ("s3://b/test", ["seg_train/a", "seg_val/a"], {"train": [0], "val": [1]}),
    ],
)
def test_names_below_the_directory_say_splits_and_its_own_name_comes_last(directory, names, splits):
    above = "" if "*" in directory else f"{directory}/"
    paths = [f"{above}{name}.tfrec" for name in names]
    wanted = {
        split: [paths[each] if isinstance(each, int) else f"{above}{each}.tfrec" for each in some]
        for split, some in splits.items()
    }
    assert split_files(directory, paths) == wanted


def test_names_without_a_split_beside_others_or_with_two_splits_are_refused():
    with refused("DIR", "d/extra.tfrec says no split", "train=d/a*"):
        split_files("d", ["d/extra.tfrec", "d/val-1.tfrec"])
    with refused("DIR", "d/train/test/1.tfrec says train and test", "train=d/a*"):
        split_files("d", ["d/a-val.tfrec", "d/train/test/1.tfrec"])


@pytest.fixture
def folder(tmp_path):
    for name in (*FOUND, *OTHERS):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("", FOUND),
        ("/*.json", ["dataset.json"]),
        ("/c*00001*", ["c.tfrecord-00001-of-00002"]),
        ("/a.tfrec", ["a.tfrec"]),
    ],
)
def test_a_place_is_a_folder_a_glob_or_a_file(folder, place, found):
    listed = list_files("DIR", f"{folder}{place}")
    assert [path.removeprefix(f"{folder}/") for path in listed] == found


def test_a_place_without_records_or_with_a_partial_series_is_refused(folder):
    (folder / ".hidden" / "f.tfrec").unlink()
    for place in ("/.hidden", "/*.tfr", "/none"):
        with pytest.raises(
            UserError, match="--split received .*, which does not exist or holds no TFRecords"
        ):
            list_files("--split", f"{folder}{place}")
    (folder / "c.tfrecord-00000-of-00002").unlink()
    said = r"of c.tfrecord-\*-of-00002 1 of 2 files are missing \(the first is number 0\)"
    with pytest.raises(UserError, match=said):
        list_files("DIR", str(folder))


def test_a_series_is_as_long_as_its_files_and_not_as_its_name_claims(tmp_path):
    for number in (0, 2):
        (tmp_path / f"x.tfrecord-{number:05d}-of-999999999999").touch()
    with refused("DIR", "999999999997 of 999999999999 files are missing (the first is number 1)"):
        list_files("DIR", str(tmp_path))


def test_a_link_to_a_folder_above_is_passed_over_and_a_second_link_to_a_file_is_refused(tmp_path):
    folder = tmp_path / "set [v2]"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "a.tfrec").touch()
    (folder / "train" / "latest").symlink_to("..")
    (folder / "all").symlink_to(".")
    assert find_splits(str(folder), ()) == {"train": [f"{folder}/train/a.tfrec"]}
    (folder / "val").symlink_to("train")
    with refused("DIR", f"{folder}/val/a.tfrec twice", f"as {folder}/train/a.tfrec"):
        find_splits(str(folder), ())
    file = f"{folder}/train/a.tfrec"
    for place, other in ((file, file), (f"{folder}/train", f"{folder}/val/a.tfrec")):
        with refused("split", f"{other} twice"):
            find_splits(str(folder), [("train", place), ("val", other)])


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
        ("contest00.tfrec", ""),
        ("pretrained/x.tfrec", ""),
        ("my_val/dev_1/0", "val and dev"),
    ],
)
def test_the_file_says_its_split_or_else_a_folder_above_it(path, split):
    assert split_of(path) == split
