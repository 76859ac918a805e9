"""Records on filesystems that only TensorFlow knows, and where TensorFlow is not needed."""

import gzip
import pathlib
import subprocess
import sys

import pytest

import trainer  # noqa: F401  # registers the filesystems that TensorFlow knows
from imageshards.tfrecord import Record, read_records, write_records

pytestmark = pytest.mark.process

# tf.io.TFRecordWriter of TensorFlow 2.21, which wrote b"" and b"shard".
GOLDEN = bytes.fromhex("000000000000000029039807d8ea82a20500000000000000eab2043e7368617264d21d1056")


@pytest.fixture(scope="module")
def folder():
    """`ram://` is a filesystem of TensorFlow's own."""
    import tensorflow as tf

    # Written once: this filesystem appends to what is there.
    tf.io.gfile.makedirs("ram://tfrecord/sub")
    for name, data in (("x.tfrecord", GOLDEN), ("x.gz", gzip.compress(GOLDEN))):
        with tf.io.gfile.GFile(f"ram://tfrecord/{name}", "wb") as f:
            f.write(data)
    return "ram://tfrecord"


@pytest.mark.parametrize(("name", "kind"), [("x.tfrecord", "none"), ("x.gz", "gzip")])
def test_records_are_read(folder, name, kind):
    found = list(read_records(f"{folder}/{name}", kind))
    assert found == [Record(0, 0, b""), Record(1, 16, b"shard")]


def test_a_missing_file_is_an_os_error(folder):
    with pytest.raises(FileNotFoundError):
        list(read_records(f"{folder}/none"))


def test_tensorflow_is_not_needed_for_local_records(tmp_path):
    shard = tmp_path / "x.tfrecord"
    write_records(str(shard), [b"x"])
    code = (
        "import sys; from trainer.dataset import counting; "
        "from trainer.reader import broken_records; "
        "from imageshards.tfrecord import read_records; "
        f"list(read_records({str(shard)!r})); "
        "sys.exit(bool({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    )
    root = pathlib.Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
