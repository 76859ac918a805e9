"""`.idx` files for DALI, from the index."""

from __future__ import annotations

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
