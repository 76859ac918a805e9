"""The training stream goes on past broken records."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from imageshards.errors import UserError
from tests.support.trainer_data import make_data_set, rewrite_shard
from trainer.config import ReadConfig
from trainer.reader.broken_records import LIST_FILE, BrokenRecordHandler

tf = pytest.importorskip("tensorflow")

from trainer.reader.batches import TrainingData, open_data  # noqa: E402
from trainer.reader.stream import TrainingStream, next_batch  # noqa: E402

FILE = "train-00000-of-00001.tfrecord"


def _stream(
    folder: pathlib.Path, output: pathlib.Path, **changes: Any
) -> tuple[TrainingStream, TrainingData, BrokenRecordHandler]:
    given: dict[str, Any] = {"batch_size": 4, "seed": 5, "augment_on": "host", **changes}
    config = ReadConfig(str(folder), **given)
    reading, _ = open_data(config, output=str(output))
    broken_handler = BrokenRecordHandler(config.skip_broken, str(output))
    stream = TrainingStream(reading, tf.distribute.get_strategy(), broken_handler)
    return stream, reading, broken_handler


def _not_a_jpeg(folder: pathlib.Path) -> None:
    records = _records(folder)
    example = tf.train.Example.FromString(records[2])
    example.features.feature["image/encoded"].bytes_list.value[0] = b"no picture"
    records[2] = example.SerializeToString()
    _write(folder, records)


def _not_an_example(folder: pathlib.Path) -> None:
    records = _records(folder)
    records[2] = b"\xff\xff\xff"
    _write(folder, records)


def _flipped_bit(folder: pathlib.Path) -> None:
    content = bytearray((folder / FILE).read_bytes())
    first = int.from_bytes(content[:8], "little") + 16
    second = first + int.from_bytes(content[first : first + 8], "little") + 16
    content[second + 40] ^= 1
    (folder / FILE).write_bytes(bytes(content))


def _records(folder: pathlib.Path) -> list[bytes]:
    return list(tf.data.TFRecordDataset(str(folder / FILE)).as_numpy_iterator())


def _write(folder: pathlib.Path, records: list[bytes]) -> None:
    rewrite_shard(folder, FILE, records)


def _read_all(stream: TrainingStream, steps: int) -> list[Any]:
    """As the loop reads: handles broken records and reads on."""
    found: list[Any] = []
    while len(found) < steps:
        try:
            iterator = stream.iterator(len(found))
            while len(found) < steps:
                batch = next_batch(iterator)
                found.append((batch["record"].numpy(), batch["weight"].numpy()))
        except tf.errors.OpError as e:
            stream.handle_broken(e, len(found))
    return found


# All that can be wrong is in test_broken_records: here as tf.data, Python and the decoder tell it.
SPOIL = [_not_a_jpeg, _not_an_example, _flipped_bit]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, list[Any]]:
    """A data set of 6 records, and those of its first 3 batches."""
    folder = tmp_path_factory.mktemp("whole") / "d"
    make_data_set(folder, {"train": 6}, num_shards=1, size_px=((8, 8),))
    return folder, [r for r, _ in _read_all(_stream(folder, folder, augment="none")[0], 3)]


@pytest.mark.parametrize("spoil", SPOIL)
def test_a_broken_record_is_named_or_becomes_a_placeholder(
    tmp_path: pathlib.Path,
    whole: tuple[pathlib.Path, list[Any]],
    spoil: Callable[[pathlib.Path], None],
) -> None:
    folder = pathlib.Path(shutil.copytree(whole[0], tmp_path / "d"))
    spoil(folder)
    stream, _, _ = _stream(folder, tmp_path, augment="none")
    with pytest.raises(UserError, match=rf"{FILE}.* record 2 .*byte \d+.*--skip_broken") as caught:
        _read_all(stream, 3)
    assert "\n" not in str(caught.value)

    stream, _, broken_handler = _stream(folder, tmp_path / "o", augment="none", skip_broken=1)
    (tmp_path / "o").mkdir()
    found = _read_all(stream, 3)
    for (records, weights), expected in zip(found, whole[1], strict=True):
        assert list(records) == list(expected)
        assert list(weights) == [float(record != 2) for record in records]
    (left_out,) = broken_handler.found
    assert (left_out.number, left_out.record) == (2, 2) and left_out.path.endswith(FILE)

    # Another process leaves it out from the start.
    again, _, knowing = _stream(folder, tmp_path / "o", augment="none", skip_broken=1)
    assert (tmp_path / "o" / LIST_FILE).is_file() and knowing.found == [left_out]
    assert again.subset == stream.subset and again.subset.broken == {2}


def test_more_broken_records_than_allowed_are_refused(tmp_path: pathlib.Path) -> None:
    folder = make_data_set(tmp_path / "d", {"train": 6}, num_shards=1, size_px=((8, 8),))
    records = _records(folder)
    _write(folder, [b"\xff", *records[1:3], b"\xff", *records[4:]])
    stream, _, _ = _stream(folder, tmp_path, augment="none", skip_broken=1)
    with pytest.raises(UserError, match="--skip_broken received 1, but 2 records of --data"):
        _read_all(stream, 3)


def test_an_error_without_a_broken_record_is_shown_as_it_is(tmp_path: pathlib.Path) -> None:
    folder = make_data_set(tmp_path / "d", {"train": 6}, num_shards=1, size_px=((8, 8),))
    stream, _, _ = _stream(folder, tmp_path, augment="none", skip_broken=1)
    error = tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [2] vs. [3]")
    with pytest.raises(UserError, match="Incompatible shapes"):
        stream.handle_broken(error, 0)
