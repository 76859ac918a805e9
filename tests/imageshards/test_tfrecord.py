import io
import pickle
import struct
from unittest import mock

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

import imageshards as ims
from imageshards.bounds import MAX_RECORD_BYTES
from imageshards.tfrecord import Record, is_header, scan_records, write_records
from tests.support.dataset_factory import framed

# tf.io.TFRecordWriter of TensorFlow 2.21, which wrote b"" and b"shard".
GOLDEN = bytes.fromhex("000000000000000029039807d8ea82a20500000000000000eab2043e7368617264d21d1056")
PAYLOADS = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


def scan(data):
    return list(scan_records(io.BytesIO(data), "x.tfrecord", len(data)))


def masked_crc(data):
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def only_error(data):
    """The one problem of some bytes, which also ends `read_records`' reading."""
    errors = [r for r in scan(data) if isinstance(r, ims.RecordError)]
    return errors[0] if len(errors) == 1 else pytest.fail(f"{errors}")


def test_records_written_by_tensorflow_are_read():
    assert scan(GOLDEN) == [Record(0, 0, b""), Record(1, 16, b"shard")]
    assert framed([b"", b"shard"]) == GOLDEN
    assert is_header(GOLDEN[:12])
    assert not any(map(is_header, (GOLDEN[:11], b"", b"\x1f\x8b" + GOLDEN[2:12])))


@given(PAYLOADS, st.data())
def test_any_flipped_bit_is_reported_for_its_record(payloads, data):
    whole = bytearray(framed(payloads))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= 1 << data.draw(st.integers(0, 7))
    error = only_error(bytes(whole))
    starts = [r.offset_bytes for r in scan(framed(payloads))]
    assert error.number == sum(start <= position for start in starts) - 1
    assert error.offset_bytes == starts[error.number]


@given(PAYLOADS, st.data())
def test_any_truncation_inside_a_record_is_reported(payloads, data):
    whole = framed(payloads)
    cut = data.draw(st.integers(0, len(whole) - 1))
    found = scan(whole[:cut])
    complete = [r for r in scan(whole) if r.offset_bytes + 16 + len(r.payload) <= cut]
    assert found[: len(complete)] == complete
    between = cut == sum(16 + len(r.payload) for r in complete)
    assert len(found) == len(complete) + (not between)
    if not between:
        assert isinstance(found[-1], ims.RecordError) and "file ends inside" in found[-1].reason
        assert found[-1].number == len(complete)


def test_records_after_a_wrong_payload_are_still_read():
    data = bytearray(framed([b"first", b"second", b"third"]))
    data[21 + 12] ^= 1  # an s becomes an r
    first, second, third = scan(bytes(data))
    assert (first.payload, third) == (b"first", Record(2, 43, b"third"))
    assert (first.next_offset_bytes, second.next_offset_bytes) == (21, 43)
    assert second.payload == b"recond"
    assert second.reason == "the payload's checksum is wrong"
    data[21] ^= 0xFF  # of a wrong length nobody knows what follows
    first, broken = scan(bytes(data))
    assert (broken.number, broken.offset_bytes, broken.next_offset_bytes) == (1, 21, None)
    assert "nothing behind it can be read" in broken.reason


def test_read_records_raises_the_first_damage_with_its_place(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(GOLDEN[:-1])
    records = ims.read_records(str(path))
    assert next(records).payload == b""
    with pytest.raises(ims.RecordError) as caught:
        next(records)
    expected = f"{path}, record 1 at byte 16: the file ends inside the record (8 of 9 bytes)."
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value))) == expected


@pytest.mark.parametrize("size", [None, 112], ids=["unknown", "known"])
def test_a_wrong_length_does_not_allocate_more_than_the_file_holds(size):
    raw = struct.pack("<Q", MAX_RECORD_BYTES)
    stream = mock.Mock(wraps=io.BytesIO(raw + masked_crc(raw) + b"x" * 100))
    (found,) = scan_records(stream, "x", size)
    assert isinstance(found, ims.RecordError) and "ends inside the record (100 of" in found.reason
    most = max(call.args[0] for call in stream.read.mock_calls)
    assert most <= (64 << 20 if size is None else 12)
    raw = struct.pack("<Q", MAX_RECORD_BYTES + 1)
    assert "absurd" in only_error(raw + masked_crc(raw) + b"x").reason


def test_short_reads_of_a_stream_are_continued():
    class Dripping(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 3))

    assert list(scan_records(Dripping(GOLDEN), "x")) == scan(GOLDEN)


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_written_records_round_trip_with_their_offsets(tmp_path_factory, payloads):
    path = str(tmp_path_factory.mktemp("w") / "x")
    write_records(path, payloads)
    starts = [sum(len(p) + 16 for p in payloads[:i]) for i in range(len(payloads))]
    expected = list(zip(range(len(payloads)), starts, payloads, strict=True))
    assert list(ims.read_records(path)) == expected
