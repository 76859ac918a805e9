import dataclasses
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from imageshards.example import decode_example, encode_example
from tests.support.errors import refused
from tests.support.external_sets import flip_byte, records_of
from tests.support.trainer_data import make_dataset, rewrite_shard
from trainer.config import ReadConfig
from trainer.reader.batches import open_data
from trainer.reader.broken_records import LIST_FILE, BrokenRecord, BrokenRecords
from trainer.reader.stream import ReadError, TrainingStream, next_batch

FILE = "train-00000-of-00001.tfrecord"


def _stream(folder, output, **changes):
    given: dict[str, Any] = {"batch_size": 4, "seed": 5, "augment_on": "host", **changes}
    config = ReadConfig(str(folder), **given)
    reading, _ = open_data(config, output=str(output))
    broken = BrokenRecords(config.skip_broken, reading.subset.dataset, str(output))
    return TrainingStream(reading, tf.distribute.get_strategy(), broken), reading, broken


def _read_all(stream, broken, steps):
    found: list[Any] = []
    iterator = stream.iterator(0)
    while len(found) < steps:
        try:
            batch = next_batch(iterator)
        except ReadError as e:
            raise stream.explain(e.error, len(found)) from e
        found.append((batch["record"].numpy(), batch["weight"].numpy()))
        broken.count("train", len(found))
        broken.merge([broken.as_json()])
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A dataset of 6 records, and those of its first 3 batches."""
    folder = tmp_path_factory.mktemp("whole") / "d"
    make_dataset(folder, {"train": 6}, num_shards=1, size_px=((8, 8),))
    stream, _, broken = _stream(folder, folder, augment="none")
    return folder, [r for r, _ in _read_all(stream, broken, 3)]


@pytest.mark.parametrize("skip_broken", [0, 2])
@pytest.mark.one_row
def test_an_unreadable_record_ends_the_run_with_its_place(tmp_path, whole, skip_broken):
    folder = pathlib.Path(shutil.copytree(whole[0], tmp_path / "d"))
    payloads = [record.payload for record in records_of(folder / FILE)]
    payloads[2] = encode_example(decode_example(payloads[2]) | {"image/encoded": [b"no picture"]})
    rewrite_shard(folder, FILE, payloads)
    stream, _, broken = _stream(folder, tmp_path, augment="none", skip_broken=skip_broken)
    said = (f"{FILE}, record 2 at byte ", f"imageshards build --input {folder} --exclude KEYS")
    with refused("data", *said) as caught:
        _read_all(stream, broken, 3)
    assert "\n" not in str(caught.value) and not broken.found


def test_a_damaged_record_is_named_or_becomes_a_placeholder(tmp_path, whole):
    folder = pathlib.Path(shutil.copytree(whole[0], tmp_path / "d"))
    flip_byte(folder / FILE, records_of(folder / FILE)[2].offset_bytes + 30)
    stream, reading, broken = _stream(folder, tmp_path, augment="none")
    said = (f"{FILE}, record 2 at byte ", f"verify {folder}", "skip_broken=1")
    with refused("data", *said) as caught:
        _read_all(stream, broken, 3)
    assert "\n" not in str(caught.value)
    with pytest.raises(tf.errors.OpError, match="record 2 at byte"):
        list(reading.dataset().take(3))
    output = tmp_path / "o"
    output.mkdir()
    stream, reading, broken = _stream(folder, output, augment="none", skip_broken=1)
    found = _read_all(stream, broken, 3)
    for (records, weights), expected in zip(found, whole[1], strict=True):
        assert list(records) == list(expected)
        assert list(weights) == [float(record != 2) for record in records]
    (left_out,) = broken.found
    assert (left_out.number, left_out.record) == (2, 2) and left_out.path.endswith(FILE)
    weights = np.concatenate([weight for *_, weight in reading.dataset().take(3)])
    assert weights.tolist() == np.concatenate([w for _, w in found]).tolist()
    # A resumed run counts from the list.
    _, _, knowing = _stream(folder, output, augment="none", skip_broken=1)
    assert (output / LIST_FILE).is_file() and knowing.found == [left_out]


def test_a_foreign_list_is_refused_but_any_name_of_a_file_is_accepted(tmp_path, whole):
    listed = {"path": "a", "number": 2, "record": "2", "offset_bytes": 0, "reason": "none"}
    (tmp_path / LIST_FILE).write_text(json.dumps({"train": [listed]}))
    with refused("output", LIST_FILE, "record: expected `int`, got `str`", "delete the file"):
        _stream(whole[0], tmp_path, augment="none", skip_broken=1)
    odd = BrokenRecord("\udcff/" + FILE, 2, 2, 0, "none")
    (tmp_path / LIST_FILE).write_text(json.dumps({"train": [dataclasses.asdict(odd)]}))
    _, _, broken = _stream(whole[0], tmp_path, augment="none", skip_broken=1)
    assert broken.found == [odd]


def test_more_damaged_records_than_allowed_are_refused(tmp_path, whole):
    folder = pathlib.Path(shutil.copytree(whole[0], tmp_path / "d"))
    payloads = [record.payload for record in records_of(folder / FILE)]
    rewrite_shard(folder, FILE, [b"", *payloads[1:3], b"", *payloads[4:]])
    stream, _, broken = _stream(folder, tmp_path, augment="none", skip_broken=1)
    with refused("skip_broken", "1", "2 records"):
        _read_all(stream, broken, 3)
