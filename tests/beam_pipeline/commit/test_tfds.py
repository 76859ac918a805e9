"""TFDS reads a built dataset, as it is described by hand."""

import numpy as np
import pytest

from beam_pipeline.commit.tfds import tfds_files
from tests.support.builds import manifest, records_of
from tests.support.manifests import typed

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def builder(insects):
    return pytest.importorskip("tensorflow_datasets").builder_from_directory(insects)


@pytest.fixture
def described(insects):
    return manifest(insects)


def test_every_record_of_every_split_is_read(builder, insects, described):
    written = records_of(insects)
    for split in described["splits"]:
        expected_of = {key: of for key, of in written.items() if of["split"] == split}
        found = list(builder.as_dataset(split=split, shuffle_files=False).as_numpy_iterator())
        assert len(found) == len(expected_of) > 4
        for example in found:
            expected = expected_of.pop(example["image/filename"].decode())
            assert set(example) == set(described["features"])
            assert example.pop("image/encoded").shape == (24, 32, 3)
            for name, value in example.items():
                wanted = expected.get(name, [])
                np.testing.assert_array_equal(np.ravel(value), wanted, err_msg=name)


def test_tfds_reads_counts_names_and_shapes(builder, described):
    info = builder.info
    assert info.name == "image_shards"
    for split, content in described["splits"].items():
        counts = [shard["num_records"] for shard in content["shards"]]
        assert info.splits[split].shard_lengths == counts
    label = info.features["image/class/label"]
    assert label.names == described["classes"] == ["ant", "bee's nest", "Čmelák"]
    assert [label.int2str(i) for i in range(3)] == label.names
    assert info.features["tokens"].shape == (None,) and info.features["place"].shape == (2,)


def features_of(folder, described):
    """What TFDS makes of the features of a manifest."""
    tfds = pytest.importorskip("tensorflow_datasets")
    for file, text in tfds_files(typed(described)).items():
        (folder / file).write_text(text, encoding="utf-8")
    return tfds.builder_from_directory(folder).info.features


@pytest.mark.parametrize(
    ("image", "shape"),
    [
        ({"size": 32, "mode": "pad", "channels": 3}, (32, 32, 3)),
        ({"size": [16, 32], "mode": "stretch", "channels": 1}, (16, 32, 1)),
        ({"size": 32, "mode": "shortest", "channels": 3}, (None, None, 3)),
        ({"size": 32, "mode": "crop", "channels": 3, "only_shrink": True}, (None, None, 3)),
    ],
)
def test_picture_shape_follows_the_resize_mode(tmp_path, described, image, shape):
    assert features_of(tmp_path, described | {"image": image})["image/encoded"].shape == shape


@pytest.mark.parametrize("classes", [["a", " a"], ["a", " "]])
def test_names_tfds_would_confuse_are_left_out(tmp_path, described, classes):
    label = features_of(tmp_path, described | {"classes": classes})["image/class/label"]
    assert (label.num_classes, label.names) == (2, ["0", "1"])
