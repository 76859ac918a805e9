"""TFRecord files without TensorFlow: what is written is read, every damage is placed."""

import gzip
import pathlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.external_sets import flip_byte
from trainer.dataset import remote, tfrecord
from trainer.dataset.tfrecord import BrokenFrame, Frame

# tf.io.TFRecordWriter of TensorFlow 2.21, which wrote b"" and b"shard".
GOLDEN = bytes.fromhex("000000000000000029039807d8ea82a20500000000000000eab2043e7368617264d21d1056")
PAYLOADS = [b"first", b"", b"the third one", b"4"]


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "x.tfrecord"
    tfrecord.write(str(path), PAYLOADS)
    return path


def scan_all(path, compression="none"):
    return list(tfrecord.scan_all(str(path), compression))


def test_what_tensorflow_wrote_is_read(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(GOLDEN)
    assert list(tfrecord.scan(str(path))) == [Frame(0, 0, b""), Frame(1, 16, b"shard")]
    assert tfrecord.framed(b"") + tfrecord.framed(b"shard") == GOLDEN


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_tensorflow_reads_what_is_written(tmp_path, compression):
    import tensorflow as tf

    path = tmp_path / "x"
    size = tfrecord.write(str(path), PAYLOADS, compression)
    assert size == path.stat().st_size
    kind = "GZIP" if compression == "gzip" else ""
    assert list(tf.data.TFRecordDataset(str(path), kind).as_numpy_iterator()) == PAYLOADS
    assert [f.payload for f in tfrecord.scan(str(path), compression)] == PAYLOADS


@given(st.lists(st.binary(max_size=50), max_size=6), st.sampled_from(["none", "gzip"]))
def test_any_payloads_come_back_with_their_places(tmp_path_factory, payloads, compression):
    path = str(tmp_path_factory.mktemp("w") / "x")
    tfrecord.write(path, payloads, compression)
    found = list(tfrecord.scan(path, compression))
    assert [f.payload for f in found] == payloads
    assert [f.number for f in found] == list(range(len(payloads)))
    starts = [sum(len(p) + 16 for p in payloads[:i]) for i in range(len(payloads))]
    assert [f.offset_bytes for f in found] == starts


@given(st.integers(0, 2**32))
def test_no_flipped_byte_goes_unseen(tmp_path_factory, place):
    path = tmp_path_factory.mktemp("f") / "x"
    tfrecord.write(str(path), PAYLOADS)
    flip_byte(path, place % path.stat().st_size)
    found = scan_all(path)
    assert any(isinstance(f, BrokenFrame) for f in found)
    whole = [f for f in found if isinstance(f, Frame)]
    assert all(f.payload == PAYLOADS[f.number] for f in whole)


def test_after_a_wrong_payload_reading_goes_on(shard):
    flip_byte(shard, 12)
    first, *others = scan_all(shard)
    assert (first.number, first.offset_bytes, first.next_offset_bytes) == (0, 0, 21)
    assert first.reason == "the payload's checksum is wrong"
    assert [f.payload for f in others] == PAYLOADS[1:]
    with pytest.raises(BrokenFrame, match="record 0 at byte 0: the payload's checksum"):
        list(tfrecord.scan(str(shard)))


def test_after_a_wrong_length_nothing_is_known(shard):
    flip_byte(shard, 21)
    _, broken = scan_all(shard)
    assert (broken.number, broken.offset_bytes, broken.next_offset_bytes) == (1, 21, None)


@pytest.mark.parametrize(
    ("kept_bytes", "number", "offset", "reason"),
    [(38, 2, 37, "inside the header"), (50, 2, 37, "inside the record"), (20, 0, 0, "inside the")],
)
def test_a_truncated_file_is_placed(shard, kept_bytes, number, offset, reason):
    shard.write_bytes(shard.read_bytes()[:kept_bytes])
    broken = scan_all(shard)[-1]
    assert (broken.number, broken.offset_bytes, broken.next_offset_bytes) == (number, offset, None)
    assert reason in broken.reason


def test_a_truncated_gzip_file_is_placed(tmp_path):
    path = tmp_path / "x.gz"
    tfrecord.write(str(path), [bytes(range(256)) * 4] * 3, "gzip")
    path.write_bytes(path.read_bytes()[:-12])
    assert isinstance(scan_all(path, "gzip")[-1], BrokenFrame)


def test_equal_records_make_equal_gzip_files(tmp_path):
    tfrecord.write(str(tmp_path / "a"), PAYLOADS, "gzip")
    tfrecord.write(str(tmp_path / "b"), PAYLOADS, "gzip")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    # Where gzip keeps the time of writing (RFC 1952, MTIME).
    assert (tmp_path / "a").read_bytes()[4:8] == bytes(4)


def test_an_interrupted_write_leaves_the_old_file_and_no_other(shard):
    def interrupted():
        yield b"new"
        raise KeyboardInterrupt

    before = shard.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        tfrecord.write(str(shard), interrupted())
    assert shard.read_bytes() == before
    assert list(shard.parent.iterdir()) == [shard]


@pytest.mark.parametrize(
    ("head", "compression"),
    [
        (GOLDEN[:12], "none"),
        (b"", "none"),
        (gzip.compress(GOLDEN, mtime=0)[:12], "gzip"),
        # A length whose first bytes are gzip's magic number.
        (tfrecord.framed(bytes(0x8B1F))[:12], "none"),
        (b"not a TFRecord", None),
        (b"short", None),
    ],
)
def test_the_compression_is_told_by_the_first_bytes(head, compression):
    assert tfrecord.compression_of(head) == compression


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(tfrecord.scan(str(tmp_path / "none")))


class TestRemote:
    """`ram://` is a filesystem that only TensorFlow knows."""

    @pytest.fixture(scope="class")
    def folder(self):
        import tensorflow as tf

        # Written once: this filesystem appends to what is there.
        tf.io.gfile.makedirs("ram://tfrecord/sub")
        for name, data in (("x.tfrecord", GOLDEN), ("x.gz", gzip.compress(GOLDEN))):
            with tf.io.gfile.GFile(f"ram://tfrecord/{name}", "wb") as f:
                f.write(data)
        return "ram://tfrecord"

    @pytest.mark.parametrize(("name", "kind"), [("x.tfrecord", "none"), ("x.gz", "gzip")])
    def test_files_are_read(self, folder, name, kind):
        found = list(tfrecord.scan(f"{folder}/{name}", kind))
        assert found == [Frame(0, 0, b""), Frame(1, 16, b"shard")]

    def test_folders_are_listed(self, folder):
        assert remote.is_folder(folder)
        assert remote.list_folder(folder) == (["sub"], ["x.gz", "x.tfrecord"])
        assert remote.matches(f"{folder}/*.tfrecord") == [f"{folder}/x.tfrecord"]
        assert remote.stat(f"{folder}/x.tfrecord").num_bytes == len(GOLDEN)

    def test_a_missing_file_is_an_os_error(self, folder):
        with pytest.raises(FileNotFoundError):
            remote.stat(f"{folder}/none")
        with pytest.raises(FileNotFoundError):
            list(tfrecord.scan(f"{folder}/none"))


def test_tensorflow_is_not_needed(shard):
    import subprocess

    code = (
        "import sys; from trainer.dataset import tfrecord, external, counting; "
        "from trainer.reader import broken_records; "
        f"list(tfrecord.scan({str(shard)!r})); "
        "sys.exit(bool({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    )
    root = pathlib.Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
