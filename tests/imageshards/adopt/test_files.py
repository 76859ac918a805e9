import pytest

from imageshards.adopt.files import list_files, split_files, split_of
from imageshards.errors import UserError

FOUND = ["a.tfrec", "b.tfrecord.gz", "c.tfrecord-00000-of-00002", "c.tfrecord-00001-of-00002"]
FOUND += ["sub/d.tfrecords", "sub/deeper/e.tfrec", "train-00000-of-00001"]
OTHERS = ["sub/notes.txt", ".hidden/f.tfrec", ".g.tfrec", "dataset.json", "report-1-of-2.html"]


def test_files_without_a_split_name_are_train_if_no_file_has_one():
    assert split_of("my_val_3.tfrecord") == "val"
    assert split_of("flowers-Train.tfrecord-00000-of-00002") == "train"
    assert split_of("data/test/00-224x224-798.tfrec") == "test"
    assert split_of("contest00.tfrec") is split_of("training/sub/x.tfrec") is None
    assert split_files("d", ["d/a.tfrec", "d/b.tfrec"]) == {"train": ["d/a.tfrec", "d/b.tfrec"]}
    with pytest.raises(UserError, match="extra.tfrec belongs to no split, but val-1.tfrec to val"):
        split_files("d", ["d/extra.tfrec", "d/val-1.tfrec"])


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
