"""What TensorFlow says of records that are not what the manifest says, in one sentence."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from tests.trainer_data import edit_manifest, make_data_set
from trainer.errors import UserError
from trainer.manifest import load_manifest

tf = pytest.importorskip("tensorflow")

from trainer import data, train  # noqa: E402

FILE = "train-00000-of-00001.tfrecord"


def _not_a_jpeg(folder: pathlib.Path) -> None:
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"no picture"])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[0])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    with tf.io.TFRecordWriter(str(folder / FILE)) as writer:
        for _ in range(6):
            writer.write(example.SerializeToString())


def _not_an_example(folder: pathlib.Path) -> None:
    with tf.io.TFRecordWriter(str(folder / FILE)) as writer:
        for _ in range(6):
            writer.write(b"\xff\xff\xff")


def _no_label(folder: pathlib.Path) -> None:
    with tf.io.TFRecordWriter(str(folder / FILE)) as writer:
        for _ in range(6):
            writer.write(tf.train.Example().SerializeToString())


def _another_size(folder: pathlib.Path) -> None:
    edit_manifest(folder, image={"size": 9, "mode": "crop", "channels": 3})


def _one_record_less(folder: pathlib.Path) -> None:
    records = list(tf.data.TFRecordDataset(str(folder / FILE)).as_numpy_iterator())
    with tf.io.TFRecordWriter(str(folder / FILE)) as writer:
        for record in records[1:]:
            writer.write(record)


def _flipped_bit(folder: pathlib.Path) -> None:
    content = bytearray((folder / FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / FILE).write_bytes(bytes(content))


@pytest.mark.parametrize(
    "spoil",
    [_not_a_jpeg, _not_an_example, _no_label, _another_size, _one_record_less, _flipped_bit],
)
def test_spoilt_records_are_told_from_bugs(
    tmp_path: pathlib.Path, spoil: Callable[[pathlib.Path], None]
) -> None:
    folder = make_data_set(tmp_path / "spoilt", {"train": 6}, num_shards=1, size_px=((8, 8),))
    spoil(folder)
    manifest = load_manifest(str(folder))
    size = manifest.image.size or (0, 0)
    batches = data.training_batches(manifest, manifest.splits["train"], 0, 2, size)
    with pytest.raises(UserError, match=r"--data received .* beam_pipeline\.verify") as caught:
        with train.broken_records_explained(str(folder)):
            list(batches.take(6))
    assert "\n" not in str(caught.value)


def test_an_error_of_the_program_itself_passes_through() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="Incompatible shapes"):
        with train.broken_records_explained("shards"):
            tf.constant([1, 2]) + tf.constant([1, 2, 3])
