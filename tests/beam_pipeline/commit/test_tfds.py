"""What TFDS reads from a directory that was written without it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beam_pipeline.commit.tfds import tfds_files
from imageshards.manifest import RECORD_FEATURES

CLASSES = ["tabby cat", "a,b", "crème", '日本 "x"']
EXTRA: dict[str, dict[str, Any]] = {
    "weight": {"dtype": "float32", "shape": []},
    "vector": {"dtype": "float32", "shape": [3]},
    "id": {"dtype": "int64", "shape": []},
    "tokens": {"dtype": "int64", "shape": None},
    "image/object/bbox/xmin": {"dtype": "float32", "shape": None},
    "note": {"dtype": "string", "shape": []},
    "pair": {"dtype": "string", "shape": [2]},
    "caption words": {"dtype": "string", "shape": None},
    "grid": {"dtype": "int64", "shape": [2, 2]},
}


def manifest_of(**changes: Any) -> dict[str, Any]:
    shards = {"train": [3, 2, 3], "validation": [2]}
    return {
        "splits": {
            split: {
                "num_records": sum(counts),
                "shards": [
                    {
                        "file": f"{split}-{i:05}-of-{len(counts):05}.tfrecord",
                        "num_records": count,
                        "num_bytes": 1000 + i,
                    }
                    for i, count in enumerate(counts)
                ],
            }
            for split, counts in shards.items()
        },
        "classes": CLASSES,
        "features": {**RECORD_FEATURES, **EXTRA},
        "image": {"size": [6, 8], "mode": "crop", "channels": 3, "only_shrink": False},
        **changes,
    }


def values_of(n: int) -> dict[str, list[Any]]:
    """One record; `n` is its number over all splits."""
    jpeg = io.BytesIO()
    Image.new("RGB", (8, 6), (n * 20, 0, 0)).save(jpeg, "JPEG")
    return {
        "image/encoded": [jpeg.getvalue()],
        "image/format": [b"JPEG"],
        "image/height": [6],
        "image/width": [8],
        "image/channels": [3],
        "image/colorspace": [b"RGB"],
        "image/class/label": [n % len(CLASSES)],
        "image/class/text": [CLASSES[n % len(CLASSES)].encode()],
        "image/filename": [f"folder/é {n}.jpg".encode()],
        "image/key/sha256": [b"0" * 64],
        "weight": [n / 4],
        "vector": [n, 0.5, -n],
        "id": [n],
        "tokens": list(range(n % 3)),
        "image/object/bbox/xmin": [0.25] * (n % 3),
        "note": ["naïve".encode()],
        "pair": [b"\xff", b""],
        "caption words": [b"w"] * (n % 3),
        "grid": [n, 1, 2, 3],
    }


def serialized(values: dict[str, list[Any]], features: dict[str, dict[str, Any]]) -> bytes:
    import tensorflow as tf

    def feature(name: str) -> Any:
        dtype = features[name]["dtype"]
        if dtype == "string":
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values[name]))
        if dtype == "int64":
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values[name]))
        return tf.train.Feature(float_list=tf.train.FloatList(value=values[name]))

    message = tf.train.Example(
        features=tf.train.Features(feature={name: feature(name) for name in values})
    )
    return bytes(message.SerializeToString())


def write_data_set(directory: Path, manifest: dict[str, Any]) -> None:
    import tensorflow as tf

    n = 0
    for content in manifest["splits"].values():
        for shard in content["shards"]:
            with tf.io.TFRecordWriter(str(directory / shard["file"])) as writer:
                for _ in range(shard["num_records"]):
                    writer.write(serialized(values_of(n), manifest["features"]))
                    n += 1
    write_metadata(directory, manifest)


def write_metadata(directory: Path, manifest: dict[str, Any], name: str = "My-Cats") -> None:
    for file, text in tfds_files(manifest, name).items():
        (directory / file).write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def builder(tmp_path_factory) -> Any:
    tfds = pytest.importorskip("tensorflow_datasets")
    directory = tmp_path_factory.mktemp("dataset")
    write_data_set(directory, manifest_of())
    return tfds.builder_from_directory(directory)


def read(builder: Any, split: str) -> list[dict[str, Any]]:
    return list(builder.as_dataset(split=split, shuffle_files=False).as_numpy_iterator())


def test_every_record_of_every_split_is_read(builder):
    examples = [*read(builder, "train"), *read(builder, "validation")]
    ids = [int(example["id"]) for example in examples]
    assert sorted(ids[:8]) == list(range(8))
    assert ids[8:] == [8, 9]
    for n, example in zip(ids, examples, strict=True):
        expected = values_of(n)
        assert set(example) == set(expected)
        picture = example.pop("image/encoded")
        assert picture.shape == (6, 8, 3)
        assert abs(int(picture[0, 0, 0]) - n * 20) <= 3
        for name, value in example.items():
            np.testing.assert_array_equal(np.ravel(value), expected[name], err_msg=name)


def test_counts_names_and_shapes(builder):
    info = builder.info
    assert info.name == "my_cats"
    assert {s: info.splits[s].num_examples for s in info.splits} == {"train": 8, "validation": 2}
    assert info.splits["train"].num_shards == 3
    assert info.splits["train"].shard_lengths == [3, 2, 3]
    label = info.features["image/class/label"]
    assert label.names == CLASSES
    assert [label.int2str(i) for i in range(4)] == CLASSES
    assert info.features["image/encoded"].shape == (6, 8, 3)
    assert info.features["tokens"].shape == (None,)
    assert info.features["grid"].shape == (2, 2)


def test_sub_splits(builder):
    first = [int(example["id"]) for example in read(builder, "train[:50%]")]
    second = [int(example["id"]) for example in read(builder, "train[50%:]")]
    assert len(first) == 4
    assert sorted(first + second) == list(range(8))


def test_as_supervised_gives_picture_and_label(builder):
    pairs = builder.as_dataset(split="validation", as_supervised=True).as_numpy_iterator()
    pictures, labels = zip(*pairs, strict=True)
    assert sorted(labels) == sorted([8 % 4, 9 % 4])
    assert pictures[0].shape == (6, 8, 3)


@pytest.mark.parametrize(
    ("image", "shape"),
    [
        ({"size": 32, "mode": "pad", "channels": 3}, (32, 32, 3)),
        ({"size": [16, 32], "mode": "stretch", "channels": 1}, (16, 32, 1)),
        ({"size": 32, "mode": "shortest", "channels": 3}, (None, None, 3)),
        ({"size": 32, "mode": "none", "channels": 1}, (None, None, 1)),
        ({"size": 32, "mode": "crop", "channels": 3, "only_shrink": True}, (None, None, 3)),
    ],
)
def test_picture_shape_follows_the_resize_mode(tmp_path, image, shape):
    tfds = pytest.importorskip("tensorflow_datasets")
    write_metadata(tmp_path, manifest_of(image=image))
    assert tfds.builder_from_directory(tmp_path).info.features["image/encoded"].shape == shape


@pytest.mark.parametrize("classes", [["a", " a"], ["a", " "]])
def test_names_tfds_would_confuse_are_left_out(tmp_path, classes):
    tfds = pytest.importorskip("tensorflow_datasets")
    write_metadata(tmp_path, manifest_of(classes=classes))
    label = tfds.builder_from_directory(tmp_path).info.features["image/class/label"]
    assert label.num_classes == 2
    assert label.names == ["0", "1"]


def test_same_manifest_gives_the_same_bytes():
    manifest = manifest_of()
    reordered = {**manifest, "features": dict(reversed(manifest["features"].items()))}
    assert tfds_files(manifest, "x") == tfds_files(reordered, "x")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("shards", "shards"), ("Cats & Dogs", "cats_dogs"), ("日本", "images"), ("", "images")],
)
def test_name_is_made_one_tfds_takes(name, expected):
    assert json.loads(tfds_files(manifest_of(), name)["dataset_info.json"])["name"] == expected
