"""What a shard rejects is in a file beside its result, with its bytes."""

import hashlib
import os

import pytest

from beam_pipeline.planning.refs import ImageRef
from beam_pipeline.shards.result import WrittenFile
from beam_pipeline.shards.writer import RejectsFile
from imageshards.errors import ImageError
from imageshards.example import decode_example
from imageshards.tfrecord import read_records

REF = ImageRef("é.jpg", os.fsdecode(b"/in/\xff.jpg"), "cat", "train")
ERROR = ImageError("truncated", "in \udcff")


@pytest.mark.parametrize("keeps_bytes", [True, False])
def test_rejects_are_kept_as_they_come(tmp_path, keeps_bytes):
    path = tmp_path / "rejects"
    with RejectsFile(str(path), keeps_bytes) as file:
        file.add(REF, ERROR, "decode", b"\xff\xd8broken")
        file.add(REF, ERROR, "read")
        found, data = file.commit(), path.read_bytes()
        assert found == WrittenFile(len(data), hashlib.sha256(data).hexdigest())
        assert len(file.rejects) == 2
    first, second = (decode_example(record.payload) for record in read_records(str(path)))
    assert first.pop("image/encoded", None) == ([b"\xff\xd8broken"] if keeps_bytes else None)
    assert first.pop("stage") == [b"decode"] and second.pop("stage") == [b"read"]
    assert first == second
    assert second == {
        "image/filename": ["é.jpg".encode()], "uri": [b"/in/\\udcff.jpg"], "label": [b"cat"],
        "split": [b"train"], "reason": [b"truncated"], "message": [b"in \\udcff"],
    }  # fmt: skip


def test_there_is_no_file_without_rejects_or_after_an_error(tmp_path):
    with RejectsFile(str(tmp_path / "rejects"), True) as file:
        file.commit()
    with RejectsFile(str(tmp_path / "rejects"), True) as file:
        file.add(REF, ERROR, "decode", b"x")  # and never committed
    assert not list(tmp_path.iterdir())
