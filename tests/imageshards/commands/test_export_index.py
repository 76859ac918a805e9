"""`.idx` files for DALI: from the index, or by reading the shards."""

from __future__ import annotations

import pytest

from imageshards.commands.export_index import main
from imageshards.tfrecord import frame_record
from tests.support.dataset_factory import Dataset

FIRST = "train-00000-of-00003.tfrecord"


@pytest.mark.parametrize("index", [True, False])
def test_lines_are_offset_and_size_of_each_frame(tmp_path, index, capsys):
    dataset = Dataset(tmp_path, index=index)
    if index:  # the shards need not be read
        for name in dataset.payloads:
            (tmp_path / name).write_bytes(b"")
    assert main([str(tmp_path), "--format", "dali"]) == 0
    assert "wrote 5 .idx files for 30 records" in capsys.readouterr().out
    for name, payloads in dataset.payloads.items():
        whole = b"".join(map(frame_record, payloads))
        lines = (tmp_path / f"{name}.idx").read_text().splitlines()
        places = [[int(number) for number in line.split(" ")] for line in lines]
        assert [whole[start : start + size] for start, size in places] == [
            frame_record(payload) for payload in payloads
        ]


def damage_shard(dataset: Dataset) -> None:
    path = dataset.directory / FIRST
    path.write_bytes(path.read_bytes()[:-3])


def remove_shard(dataset: Dataset) -> None:
    (dataset.directory / FIRST).unlink()


def remove_manifest(dataset: Dataset) -> None:
    (dataset.directory / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_shard, "record 5 at byte"),
        (remove_shard, f"{FIRST} cannot be read"),
        (remove_manifest, "there is no manifest.json"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(tmp_path, damage, said, capsys):
    dataset = Dataset(tmp_path)
    damage(dataset)
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("imageshards export-index: DIR received")
    assert error.count("\n") == 1
    assert said in error
