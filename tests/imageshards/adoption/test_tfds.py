import json
import shutil

import pytest

from imageshards.adoption.command import adopt
from imageshards.errors import UserError
from imageshards.manifest import Image
from imageshards.tfrecord import write_records
from tests.support.external_sets import example, jpeg

PHOTO = {"image": {"shape": {"dimensions": ["-1", "-1", "1"]}}}
KIND = {"classLabel": {"numClasses": "2"}}
FEATURES = {"featuresDict": {"features": {"photo": PHOTO, "kind": KIND}}}


@pytest.fixture
def folder(tmp_path):
    """Version 1.10.0 of `shapes`, beside an empty 1.9.0."""
    made = tmp_path / "shapes" / "1.10.0"
    made.mkdir(parents=True)
    (tmp_path / "shapes" / "1.9.0").mkdir()
    (made / "features.json").write_text(json.dumps(FEATURES))
    (made / "kind.labels.txt").write_text("cat\nbig dog\n")
    lengths = {"train": ["3", "2"], "test": ["1"]}
    splits = [{"name": name, "shardLengths": told} for name, told in lengths.items()]
    info = {"name": "shapes", "fileFormat": "tfrecord", "splits": splits}
    (made / "dataset_info.json").write_text(json.dumps(info))
    for split, told in lengths.items():
        for number, length in enumerate(told):
            name = f"shapes-{split}.tfrecord-0000{number}-of-0000{len(told)}"
            payload = example({"photo": jpeg(), "kind": number})
            write_records(str(made / name), [payload] * int(length))
    return made


def test_splits_classes_and_features_are_those_of_the_description(folder):
    told = adopt(folder.parent)
    assert {n: e.num_records for n, e in told.splits.items()} == {"train": 5, "test": 1}
    assert told.classes == ["cat", "big dog"]
    assert (told.roles.image, told.roles.label) == ("photo", "kind")
    assert told.image == Image(size=(32, 40), mode="exact", channels=1)
    assert told.splits["train"].shards[1].folder == "1.10.0"
    shutil.copytree(folder, folder.parent / "1.11.0")
    with pytest.raises(UserError, match="several datasets of TFDS .*1.10.0, .*1.11.0.; expected"):
        adopt(folder.parent)


def say(folder, old, new):
    path = folder / "dataset_info.json"
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: next(f.glob("*test*")).unlink(), "shapes-test.tfrecord-00000-of-00001 cannot"),
        (lambda f: next(f.glob("*test*")).write_bytes(b""), "holds 0 records instead of 1"),
        (lambda f: (f / "dataset_info.json").write_text("{}"), "not what TensorFlow Datasets wri"),
        (lambda f: say(f, '"tfrecord"', '"riegeli"'), "the fileFormat is riegeli"),
        (lambda f: say(f, '"shard', '"filepathTemplate": "/x", "shard'), "'/x' is no name of a"),
        (lambda f: (f / "kind.labels.txt").write_text("cat"), "has kind 1; expected 0 to 0"),
    ],
)
def test_files_that_contradict_the_description_are_refused(folder, damage, sentence):
    damage(folder)
    with pytest.raises(UserError, match=sentence):
        adopt(folder)
