"""`.idx` files for DALI, from the index."""

from __future__ import annotations

import pytest

from imageshards.commands.export_index import main
from imageshards.tfrecord import frame_record
from tests.support.dataset_factory import Dataset


def test_lines_are_offset_and_size_of_each_frame(tmp_path, capsys):
    dataset = Dataset(tmp_path)
    assert main([str(tmp_path), "--format", "dali"]) == 0
    assert "wrote 5 .idx files for 30 records" in capsys.readouterr().out
    for name, payloads in dataset.payloads.items():
        whole = b"".join(map(frame_record, payloads))
        lines = (tmp_path / f"{name}.idx").read_text().splitlines()
        places = [[int(number) for number in line.split(" ")] for line in lines]
        assert [whole[start : start + size] for start, size in places] == [
            frame_record(payload) for payload in payloads
        ]


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("index/train-00000-of-00003.parquet", "parquet is missing"),
        ("manifest.json", "there is no manifest.json"),
    ],
    ids=["index", "manifest"],
)
def test_what_cannot_be_exported_is_one_sentence(tmp_path, missing, said, capsys):
    Dataset(tmp_path)
    (tmp_path / missing).unlink()
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("imageshards export-index: DIR received")
    assert error.count("\n") == 1
    assert said in error
