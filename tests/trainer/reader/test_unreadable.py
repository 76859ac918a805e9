import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from imageshards.index import read_index
from imageshards.tfrecord import RecordError
from tests.support.external_sets import example, flip_byte, jpeg, records_of, whole_split
from tests.support.trainer_data import make_dataset, rewrite_shard
from trainer.dataset.manifest import load_manifest
from trainer.reader.pieces import PieceReader
from trainer.reader.unreadable import explain, find_unreadable

NUM_RECORDS = 20
LABEL, IMAGE = "image/class/label", "image/encoded"
PICTURE = jpeg(size_px=(16, 16))


@pytest.fixture
def folder(tmp_path):
    """Shards of 7, 7 and 6 records."""
    return make_dataset(tmp_path / "d", {"train": NUM_RECORDS}, size_px=[(16, 16)])


def shard(folder, index):
    return folder / f"train-{index:05d}-of-00003.tfrecord"


def load(folder):
    return whole_split(load_manifest(str(folder)))


def spoil(folder, index, number, payload):
    path = shard(folder, index)
    payloads = [r.payload for r in records_of(path)]
    payloads[number] = payload
    rewrite_shard(folder, path.name, payloads)
    return records_of(path)[number].offset_bytes


def find(subset, numbers=range(NUM_RECORDS)):
    return find_unreadable(subset, np.array(numbers))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"no example \xff\xfe", "it is no tf.train.Example"),
        (example({IMAGE: PICTURE}), f"its {LABEL} is missing, or has another type"),
        (example({LABEL: 1, IMAGE: b""}), f"it has no picture in {IMAGE}"),
        (
            example({LABEL: 3, IMAGE: PICTURE}),
            f"its {LABEL} is no class, 0 to 2 (see label_offset): 3",
        ),
        (example({LABEL: 1, IMAGE: PICTURE[:300]}), "its picture cannot be decoded (jpeg::"),
        (example({LABEL: 1, IMAGE: jpeg(size_px=(16, 20))}), "its picture is not of 16x16 px"),
    ],
)
def test_an_unreadable_record_is_found_with_number_and_offset(folder, payload, reason):
    offset = spoil(folder, 1, 2, payload)
    found = find(load(folder), [3, 9, 15])
    assert dataclasses.astuple(found)[1:4] == (2, 9, offset)
    assert found.path == str(shard(folder, 1))
    assert found.reason.startswith(reason)


def test_the_first_unreadable_record_of_those_asked_for_is_found(folder):
    spoil(folder, 1, 2, b"no example")
    assert find(load(folder)) == find(load(folder), [3, 9, 15])
    assert find(load(folder), [3, 8, 15]) is None


def test_wrong_checksums_and_missing_records_are_found(folder):
    flip_byte(shard(folder, 0), records_of(shard(folder, 0))[3].offset_bytes + 30)
    whole = records_of(shard(folder, 1))
    shard(folder, 1).write_bytes(shard(folder, 1).read_bytes()[: whole[5].offset_bytes])
    shard(folder, 2).unlink()
    subset = load(folder)
    reader = PieceReader(subset)
    read = [one for piece in range(len(subset.pieces)) for one in reader.read(piece)]
    found = {i: one for i, one in enumerate(read) if isinstance(one, RecordError)}
    assert [*found] == [3, 12, 13, *range(14, 20)]
    assert [r.number for r in found.values()] == [3, 5, 6, *range(6)]
    reasons = ["the payload's checksum is wrong", *["the file is missing, or ends before it"] * 8]
    assert [r.reason for r in found.values()] == reasons
    assert found[12].offset_bytes == whole[5].offset_bytes
    assert find(load(folder)) is None


def test_the_error_names_file_record_offset_and_remedy(folder):
    offset = spoil(folder, 1, 2, b"no example")
    subset = load(folder)
    told = str(explain(ValueError("x"), subset, np.arange(NUM_RECORDS)))
    assert told.count("\n") == 0
    assert f"{shard(folder, 1)}, record 2 at byte {offset}: it is no tf.train.Example" in told
    key = read_index(str(folder), subset.dataset.manifest, "train", ["key"])["key"][9]
    assert told.endswith(f"--output NEW, where KEYS is a text file with the line {key}.")
    adopted = whole_split(dataclasses.replace(subset.dataset, adopted=True))
    told = str(explain(ValueError("x"), adopted, np.arange(NUM_RECORDS)))
    assert told.endswith("then run imageshards adopt again.")


def test_without_a_broken_record_the_error_quotes_tensorflow(folder):
    told = str(explain(ValueError("a first\nb second"), load(folder), np.arange(3)))
    assert "(b second)" in told and f"imageshards verify {folder}" in told


@pytest.mark.long
def test_real_broken_pictures_are_found_exactly_where_the_reader_fails(broken_jpegs, tmp_path):
    files = sorted(p for p in broken_jpegs.rglob("*") if p.is_file())
    pictures = [p.read_bytes() for p in files if p.stat().st_size < 200_000][:40:2]
    data = make_dataset(tmp_path / "d", {"train": 3}, num_shards=1, mode="shortest")
    payloads = [example({LABEL: 0, IMAGE: picture}) for picture in pictures]
    rewrite_shard(data, "train-00000-of-00001.tfrecord", payloads)

    def fails(picture):
        try:
            tf.io.decode_jpeg(picture, channels=3)
        except tf.errors.InvalidArgumentError:
            return True
        return not picture

    subset = load(data)
    found = [find(subset, [i]) is not None for i in range(len(pictures))]
    assert found == [fails(picture) for picture in pictures] and len({*found}) == 2
