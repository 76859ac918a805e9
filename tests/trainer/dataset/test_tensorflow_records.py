"""Records of local files are read without TensorFlow."""

import pathlib
import subprocess
import sys

import pytest

from imageshards.tfrecord import write_records

pytestmark = pytest.mark.process


def test_tensorflow_is_not_needed_for_local_records(tmp_path):
    shard = tmp_path / "x.tfrecord"
    write_records(str(shard), [b"x"])
    code = (
        "import sys; from trainer.dataset import index, mix; "
        "from trainer.reader import broken_records; "
        "from imageshards.tfrecord import read_records; "
        f"list(read_records({str(shard)!r})); "
        "sys.exit(bool({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    )
    root = pathlib.Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
