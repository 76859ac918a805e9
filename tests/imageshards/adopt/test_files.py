"""Files that others wrote: which split, which files of a series are missing."""

import pytest

from imageshards.adopt.files import list_files, split_files, split_of
from imageshards.errors import UserError


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("data/train-00000-of-00008", "train"),
        ("validation-00000-of-00128", "validation"),
        ("my_val_3.tfrecord", "val"),
        ("flowers-Train.tfrecord-00000-of-00002", "train"),
        ("data/test/00-224x224-798.tfrec", "test"),
        ("data/TRAIN/test-like.tfrec", "train"),
        ("trains-1.tfrec", None),
        ("contest00.tfrec", None),
        ("training/sub/x.tfrec", None),
        ("flowers00-230.tfrec", None),
    ],
)
def test_splits_in_names(path, split):
    assert split_of(path) == split


def test_files_that_name_no_split_are_train():
    assert split_files("d", ["d/a.tfrec", "d/b.tfrec"]) == {"train": ["d/a.tfrec", "d/b.tfrec"]}


def test_a_file_of_no_split_among_others_is_refused():
    with pytest.raises(UserError, match="extra.tfrec belongs to no split, but val-1.tfrec to val"):
        split_files("d", ["d/extra.tfrec", "d/val-1.tfrec"])


class TestListing:
    @pytest.fixture
    def folder(self, tmp_path):
        for name in (
            "a.tfrec",
            "b.tfrecord.gz",
            "c.tfrecord-00000-of-00002",
            "c.tfrecord-00001-of-00002",
            "train-00000-of-00001",
            "sub/d.tfrecords",
            "sub/notes.txt",
            "sub/deeper/e.tfrec",
            ".hidden/f.tfrec",
            ".g.tfrec",
            "dataset.json",
            "report-1-of-2.html",
        ):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path

    def names(self, folder, data):
        return [p.removeprefix(f"{folder}/") for p in list_files("DIR", str(data))]

    def test_a_folder_and_its_sub_folders_are_listed(self, folder):
        assert self.names(folder, folder) == [
            "a.tfrec",
            "b.tfrecord.gz",
            "c.tfrecord-00000-of-00002",
            "c.tfrecord-00001-of-00002",
            "sub/d.tfrecords",
            "train-00000-of-00001",
        ]

    def test_a_glob_takes_any_name(self, folder):
        assert self.names(folder, folder / "*.json") == ["dataset.json"]
        assert self.names(folder, folder / "c*00001*") == ["c.tfrecord-00001-of-00002"]

    def test_a_file_is_taken(self, folder):
        assert self.names(folder, folder / "a.tfrec") == ["a.tfrec"]

    def test_a_series_with_a_missing_file_is_refused(self, folder):
        (folder / "c.tfrecord-00000-of-00002").unlink()
        with pytest.raises(UserError, match=r"1 of 2 files are missing \(the first is number 0\)"):
            list_files("DIR", str(folder))
        assert self.names(folder, folder / "c*") == ["c.tfrecord-00001-of-00002"]

    def test_a_folder_without_records_is_refused(self, tmp_path):
        (tmp_path / "x.jpg").touch()
        for data in (tmp_path, tmp_path / "*.tfrec"):
            with pytest.raises(UserError, match="there is no TFRecord"):
                list_files("DIR", str(data))
        with pytest.raises(UserError, match="--split received .* cannot be listed"):
            list_files("--split", str(tmp_path / "none"))
