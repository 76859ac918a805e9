"""Data sets that others wrote: TFDS, counts in names, ImageNet as tf-slim writes it."""

import dataclasses
import gzip
import shutil

import pytest

from imageshards.errors import UserError
from imageshards.tfrecord import write_records
from tests.support.external_sets import (
    example,
    flip_byte,
    jpeg,
    records_of,
    whole_split,
    write_kaggle,
    write_slim,
)
from trainer.config import DataConfig
from trainer.dataset.external import has_records, open_external
from trainer.dataset.spec import FeatureSpec, ImageSpec, ModelInputs, ReadOptions
from trainer.reader.find_broken import find_broken

TEXTS = {1: "tench", 2: "crane", 3: "crane"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "imageshards" / "counts"


def counts_of(dataset):
    return {name: [s.num_records for s in split.shards] for name, split in dataset.splits.items()}


def labels_read(dataset, split="train"):
    """The classes as the reader finds them, sorted, and the size of its pictures."""
    from trainer.reader.pipeline import evaluation_batches

    inputs = ModelInputs((16, 16), dataset.image)
    batches = evaluation_batches(whole_split(dataset, split), ReadOptions(threads=1), 4, inputs)
    labels = []
    for batch in batches.as_numpy_iterator():
        assert batch["inputs"]["image"].shape[1:] == (16, 16, 3)
        assert batch["inputs"]["image"].any(axis=(1, 2, 3)).all()
        labels += batch["label"].tolist()
    return sorted(labels)


class TestTfds:
    """A directory that TensorFlow Datasets itself has written."""

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory):
        import numpy as np
        import tensorflow_datasets as tfds

        def records(start, number):
            rng = np.random.default_rng(start)
            for i in range(start, start + number):
                pixels = rng.integers(0, 256, (24, 20 + i % 2, 3), np.uint8)
                yield {"photo": pixels, "kind": i % 3, "name": f"p{i}", "boxes": [0.5] * (i % 3)}

        class Shapes(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.10.0")

            def _info(self):
                features = tfds.features.FeaturesDict(
                    {
                        "photo": tfds.features.Image(encoding_format="jpeg"),
                        "kind": tfds.features.ClassLabel(names=["cat", "dog", "big cat"]),
                        "name": tfds.features.Text(),
                        "boxes": tfds.features.Sequence(np.float32),
                    }
                )
                return tfds.core.DatasetInfo(
                    builder=self, features=features, supervised_keys=("photo", "kind")
                )

            def _split_generators(self, dl_manager):
                return {"train": list(enumerate(records(0, 13))), "test": enumerate(records(20, 4))}

            def _generate_examples(self, found):
                return found

        data_dir = tmp_path_factory.mktemp("tfds")
        builder = Shapes(data_dir=str(data_dir))
        builder.download_and_prepare()
        (data_dir / "shapes" / "1.9.0").mkdir()
        return data_dir / "shapes"

    def test_everything_is_read_from_its_metadata(self, folder, capsys):
        dataset = open_external(DataConfig(str(folder / "1.10.0")))
        assert counts_of(dataset) == {"train": [13], "test": [4]}
        assert dataset.classes == ("cat", "dog", "big cat")
        assert (dataset.image_feature, dataset.label_feature) == ("photo", "kind")
        assert dataset.features == {
            "photo": FeatureSpec("string", ()),
            "kind": FeatureSpec("int64", ()),
            "name": FeatureSpec("string", ()),
            "boxes": FeatureSpec("float32", None),
        }
        assert dataset.image == ImageSpec(None, True, 3, (0.5,) * 3, (0.25,) * 3)
        assert not dataset.has_manifest
        assert "counting" not in capsys.readouterr().err

    def test_its_records_are_what_the_reader_expects(self, folder):
        dataset = open_external(DataConfig(str(folder / "1.10.0")))
        assert labels_read(dataset) == [0] * 5 + [1] * 4 + [2] * 4
        assert labels_read(dataset, "test") == [0, 1, 2, 2]
        assert find_broken(whole_split(dataset)) == []

    def test_the_folder_above_means_its_latest_version(self, folder):
        shutil.copytree(folder / "1.10.0", folder / "1.9.0", dirs_exist_ok=True)
        dataset = open_external(DataConfig(str(folder)))
        assert "/1.10.0/" in dataset.splits["train"].shards[0].path
        assert has_records(str(folder))

    def test_files_to_validate_on_are_counted(self, folder, tmp_path):
        payloads = [example({"photo": jpeg(), "kind": 1, "name": "x"})] * 3
        write_records(str(tmp_path / "more-2.tfrecord"), payloads)
        config = DataConfig(
            str(folder / "1.10.0"), validation_data=str(tmp_path / "more-2.tfrecord")
        )
        dataset = open_external(config)
        assert counts_of(dataset) == {"train": [13], "test": [4], "validation": [3]}
        assert dataset.classes == ("cat", "dog", "big cat")

    def test_a_missing_shard_is_named(self, folder, tmp_path):
        copy = shutil.copytree(folder / "1.10.0", tmp_path / "copy")
        shard = next(copy.glob("shapes-test*"))
        shard.unlink()
        with pytest.raises(UserError, match=shard.name):
            open_external(DataConfig(str(copy)))

    def test_damaged_metadata_is_refused(self, folder, tmp_path):
        copy = shutil.copytree(folder / "1.10.0", tmp_path / "copy")
        (copy / "dataset_info.json").write_text('{"name": "shapes"}')
        with pytest.raises(UserError, match="not what TensorFlow Datasets writes"):
            open_external(DataConfig(str(copy)))

    def test_another_format_is_refused(self, folder, tmp_path):
        copy = shutil.copytree(folder / "1.10.0", tmp_path / "copy")
        info = copy / "dataset_info.json"
        info.write_text(info.read_text().replace('"tfrecord"', '"array_record"'))
        with pytest.raises(UserError, match="fileFormat is array_record"):
            open_external(DataConfig(str(copy)))


class TestCountsInNames:
    """Kaggle's flowers: `flowers00-230.tfrec`, features `image`, `class`, `id`."""

    @pytest.fixture
    def folder(self, tmp_path):
        root = tmp_path / "kaggle"
        write_kaggle(root / "train", {"00-7.tfrec": 7, "01-5.tfrec": 5})
        write_kaggle(root / "val", {"00-3.tfrec": 3})
        write_kaggle(root / "test", {"00-2.tfrec": 2}, **{"class": "number"})
        return root

    def test_with_names_of_classes_nothing_is_counted(self, folder, capsys):
        dataset = open_external(DataConfig(str(folder), class_names=("rose", "tulip", "daisy")))
        assert counts_of(dataset) == {"train": [7, 5], "val": [3]}
        assert dataset.classes == ("rose", "tulip", "daisy")
        assert (dataset.image_feature, dataset.label_feature) == ("image", "class")
        assert dataset.filename_feature == "id"
        said = capsys.readouterr().err
        assert labels_read(dataset) == [0] * 5 + [1] * 4 + [2] * 3
        assert "counting" not in said
        assert "split test is left out, since its records have no feature class" in said

    def test_without_them_one_pass_finds_the_classes(self, folder, capsys):
        dataset = open_external(DataConfig(str(folder)))
        assert dataset.classes == ("0", "1", "2")
        assert dataset.splits["train"].shards[0].classes == {"0": 3, "1": 2, "2": 2}
        assert "counting" in capsys.readouterr().err

    def test_a_running_number_in_a_name_is_no_count(self, tmp_path, capsys):
        write_kaggle(tmp_path / "d", {"part-0.tfrec": 4, "part-1.tfrec": 2})
        dataset = open_external(DataConfig(str(tmp_path / "d"), class_names=("a", "b", "c")))
        assert counts_of(dataset) == {"train": [4, 2]}
        assert "are not taken for counts" in capsys.readouterr().err

    def test_a_count_that_is_wrong_elsewhere_is_refused(self, tmp_path):
        write_kaggle(tmp_path / "d", {"a-9.tfrec": 7, "b-2.tfrec": 2})
        with pytest.raises(UserError, match=r"a-9.tfrec holds 7 records, not the 9"):
            open_external(DataConfig(str(tmp_path / "d")))

    def test_a_wrong_count_is_accepted_up_to_skip_broken(self, tmp_path):
        write_kaggle(tmp_path / "d", {"a-9.tfrec": 7, "b-2.tfrec": 2})
        dataset = open_external(DataConfig(str(tmp_path / "d"), skip_broken=2))
        assert counts_of(dataset) == {"train": [9, 2]}
        assert [r.record for r in find_broken(whole_split(dataset))] == [7, 8]

    def test_features_can_be_named(self, tmp_path):
        write_kaggle(tmp_path / "d", {"a-2.tfrec": 2}, image="picture", **{"class": "kind"})
        names = {"image": "picture", "label": "kind", "filename": "id"}
        dataset = open_external(DataConfig(str(tmp_path / "d"), feature_map=names))
        assert (dataset.image_feature, dataset.label_feature) == ("picture", "kind")
        with pytest.raises(UserError, match=r"no feature is known to be the image; .*id, kind, pi"):
            open_external(DataConfig(str(tmp_path / "d")))

    @pytest.mark.parametrize(
        ("feature_map", "sentence"),
        [
            ({"picture": "image"}, "received 'picture'; expected NAME=FEATURE.*image, label, fi"),
            ({"image": "imag"}, "no such feature; did you mean image"),
            ({"image": "class"}, "image=class, a feature of int64; expected one string .*: id, im"),
            ({"image": "id"}, "feature 'id' holds no encoded picture"),
        ],
    )
    def test_wrong_feature_maps_are_refused(self, folder, feature_map, sentence):
        with pytest.raises(UserError, match=sentence):
            open_external(DataConfig(str(folder), feature_map=feature_map))

    def test_validation_data_is_a_split(self, folder):
        train, other = str(folder / "train" / "00*"), str(folder / "train" / "01*")
        dataset = open_external(DataConfig(train, validation_data=other))
        assert counts_of(dataset) == {"train": [7], "validation": [5]}
        with pytest.raises(UserError, match="00-7.tfrec is also part of the split train"):
            open_external(DataConfig(train, validation_data=train))

    def test_class_names_must_differ(self, folder):
        with pytest.raises(UserError, match="expected every name once"):
            open_external(DataConfig(str(folder), class_names=("a", "a", "b")))

    def test_too_few_class_names_are_refused(self, folder):
        copy = folder / "train" / "00-7.tfrec"
        (folder / "train" / "00.tfrec").write_bytes(copy.read_bytes())
        with pytest.raises(UserError, match=r"record 2 of .*00-7.tfrec has class 2; expected 0 to"):
            open_external(DataConfig(str(folder), class_names=("a", "b")))


class TestSlim:
    """tf-slim's ImageNet: 1-based labels, names without endings, no counts anywhere."""

    @pytest.fixture
    def folder(self, tmp_path):
        shards = {
            "train-00000-of-00002": [1, 2, 3, 1],
            "train-00001-of-00002": [3, 3, 1],
            "validation-00000-of-00001": [2, 1],
        }
        write_slim(tmp_path / "slim", shards, TEXTS)
        return tmp_path / "slim"

    def config(self, folder, **options):
        return DataConfig(str(folder), label_offset=1, **options)

    def test_one_pass_counts_everything(self, folder):
        dataset = open_external(self.config(folder))
        assert counts_of(dataset) == {"train": [4, 3], "validation": [2]}
        assert dataset.classes == ("tench", "crane 1", "crane 2")
        first, second = dataset.splits["train"].shards
        assert first.classes == {"tench": 2, "crane 1": 1, "crane 2": 1}
        assert second.classes == {"tench": 1, "crane 2": 2}
        assert dataset.label_offset == 1
        assert dataset.features["image/object/bbox/xmin"] == FeatureSpec("float32", None)
        assert labels_read(dataset) == [0, 0, 0, 1, 2, 2, 2]
        assert find_broken(whole_split(dataset)) == []

    def test_the_pass_is_made_once(self, folder, cache, capsys):
        first = open_external(self.config(folder))
        assert "counting, once" in capsys.readouterr().err
        assert open_external(self.config(folder)) == first
        said = capsys.readouterr().err
        assert "counting" not in said
        assert f"counted before, see {next(cache.iterdir())}" in said

    def test_another_offset_needs_no_other_pass(self, folder, capsys):
        open_external(self.config(folder))
        capsys.readouterr()
        dataset = open_external(DataConfig(str(folder)))
        said = capsys.readouterr().err
        assert "counted before" in said
        assert "labels of" in said
        assert "begin at 1" in said
        assert len(dataset.classes) == 4

    def test_changed_files_are_counted_again(self, folder):
        open_external(self.config(folder))
        write_slim(folder, {"train-00001-of-00002": [3, 3, 1, 1]}, TEXTS)
        assert counts_of(open_external(self.config(folder)))["train"] == [4, 4]

    def test_files_changed_at_equal_size_are_counted_again(self, folder):
        open_external(self.config(folder))
        flip_byte(folder / "train-00001-of-00002", 60)
        with pytest.raises(UserError, match="record 0, byte 0: the payload's checksum is wrong"):
            open_external(self.config(folder))

    def test_a_damaged_cache_is_made_anew(self, folder, cache):
        first = open_external(self.config(folder))
        next(cache.iterdir()).write_text("{")
        assert open_external(self.config(folder)) == first

    def test_without_a_place_for_the_cache_it_works(self, folder, tmp_path, monkeypatch, capsys):
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert open_external(self.config(folder)).splits["train"].num_records == 7
        assert "not kept" in capsys.readouterr().err

    def test_the_fingerprint_is_stable_and_sees_changes(self, folder, tmp_path):
        first = open_external(self.config(folder)).fingerprint
        copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
        assert open_external(self.config(copy)).fingerprint == first
        changed = open_external(self.config(folder, class_names=("a", "b", "c")))
        assert changed.fingerprint != first
        # The same records in another order: sizes and counts stay.
        write_slim(folder, {"train-00001-of-00002": [1, 3, 3]}, TEXTS)
        swapped = open_external(self.config(folder))
        assert counts_of(swapped)["train"] == [4, 3]
        assert swapped.fingerprint != first

    def test_labels_from_one_without_offset_are_explained(self, folder):
        with pytest.raises(UserError, match=r"has image/class/label 3; .* need --label_offset 1"):
            open_external(DataConfig(str(folder), class_names=("a", "b", "c")))

    def test_too_large_an_offset_is_refused(self, folder):
        with pytest.raises(UserError, match=r"record 0 of .*has image/class/label 1; .*lower --l"):
            open_external(DataConfig(str(folder), label_offset=2))

    def test_gzip_is_recognised(self, folder):
        plain = open_external(self.config(folder))
        for path in folder.iterdir():
            path.write_bytes(gzip.compress(path.read_bytes()))
        dataset = open_external(self.config(folder))
        assert dataset.compression == "gzip"
        assert counts_of(dataset) == counts_of(plain)

    def test_mixed_compression_is_refused(self, folder):
        path = folder / "train-00000-of-00002"
        path.write_bytes(gzip.compress(path.read_bytes()))
        with pytest.raises(UserError, match="train-00000-of-00002 is compressed and .* is not"):
            open_external(self.config(folder))

    def test_other_files_are_refused(self, folder):
        (folder / "train-00000-of-00002").write_bytes(b"a text, not a TFRecord")
        with pytest.raises(UserError, match="train-00000-of-00002 is no TFRecord file"):
            open_external(self.config(folder))

    def test_broken_records_stop_the_pass_or_are_counted(self, folder):
        path = folder / "train-00001-of-00002"
        offset = records_of(path)[1].offset_bytes
        flip_byte(path, offset + 40)
        place = rf"{path.name} is broken at record 1, byte {offset}: the payload's checksum"
        with pytest.raises(UserError, match=place):
            open_external(self.config(folder))
        dataset = open_external(self.config(folder, skip_broken=1))
        assert counts_of(dataset)["train"] == [4, 3]
        assert dataset.splits["train"].shards[1].classes is None
        with pytest.raises(UserError, match=place):
            open_external(self.config(folder))

    def test_an_unknown_number_of_lost_records_is_always_refused(self, folder):
        path = folder / "train-00001-of-00002"
        offset = records_of(path)[1].offset_bytes
        flip_byte(path, offset)
        with pytest.raises(
            UserError, match=f"record 1, byte {offset}: .* and the number of records lost"
        ):
            open_external(self.config(folder, skip_broken=100))


def test_names_as_labels_are_classes(tmp_path):
    payloads = [example({"image": jpeg(), "label": name}) for name in ("dog", "cat", "dog")]
    write_records(str(tmp_path / "x.tfrecord"), payloads)
    dataset = open_external(DataConfig(str(tmp_path)))
    assert dataset.classes == ("cat", "dog")
    assert dataset.splits["train"].shards[0].classes == {"cat": 1, "dog": 2}
    assert labels_read(dataset) == [0, 1, 1]
    assert find_broken(whole_split(dataset)) == []
    with pytest.raises(UserError, match="record 1 of .* has label 'cat'; expected the name of ev"):
        open_external(DataConfig(str(tmp_path), class_names=("dog", "cow")))


def test_an_id_is_preferred_to_a_name(tmp_path):
    records = {"image": jpeg(), "label": "dog", "class": 0}
    write_records(str(tmp_path / "x.tfrecord"), [example(records)])
    assert open_external(DataConfig(str(tmp_path))).label_feature == "class"


def test_features_are_inferred(tmp_path):
    records = [
        {"image": jpeg(), "label": 0, "meta": [0.5, 1.0], "some": 3, "tokens": [1, 2]},
        {"image": jpeg(), "label": 1, "meta": [0.5, 2.0], "tokens": [1]},
    ]
    write_records(str(tmp_path / "x.tfrecord"), map(example, records))
    dataset = open_external(DataConfig(str(tmp_path), image_size=(8, 9)))
    assert dataset.features == {
        "image": FeatureSpec("string", ()),
        "label": FeatureSpec("int64", ()),
        "meta": FeatureSpec("float32", (2,)),
        "some": FeatureSpec("int64", None),
        "tokens": FeatureSpec("int64", None),
    }
    assert dataclasses.astuple(dataset.image)[:3] == ((8, 9), True, 3)


def test_shards_of_one_class_each_are_recognised(tmp_path):
    for label in (0, 1):
        payload = example({"image": jpeg(), "label": label})
        write_records(str(tmp_path / f"{'ab'[label]}.tfrecord"), [payload])
    assert open_external(DataConfig(str(tmp_path))).shard_by == "class"
    write_records(str(tmp_path / "a.tfrecord"), [payload, example({"image": jpeg(), "label": 0})])
    assert open_external(DataConfig(str(tmp_path))).shard_by == "balanced"


def test_a_number_that_is_no_class_id_is_refused(tmp_path):
    payload = example({"image": jpeg(), "label": 20210101})
    write_records(str(tmp_path / "a.tfrecord"), [payload])
    with pytest.raises(UserError, match="label is up to 20210101; expected class ids"):
        open_external(DataConfig(str(tmp_path)))


def test_a_folder_without_records_has_none(tmp_path):
    (tmp_path / "x.jpg").touch()
    assert not has_records(str(tmp_path))
    assert not has_records(str(tmp_path / "none"))
