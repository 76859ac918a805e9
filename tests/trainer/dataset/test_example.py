"""`tf.train.Example` without TensorFlow says what TensorFlow says."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.external_sets import example
from trainer.dataset.example import Values, read_example

INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)
VALUES = st.one_of(
    st.lists(INTS, min_size=1, max_size=5),
    st.lists(FLOATS, min_size=1, max_size=5),
    st.lists(st.binary(max_size=300), min_size=1, max_size=3),
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_what_tensorflow_wrote_is_read(features):
    found = read_example(example(features))
    assert {name: values.values for name, values in found.items()} == features
    dtypes = {int: "int64", float: "float32", bytes: "string"}
    assert all(v.dtype == dtypes[type(v.values[0])] for v in found.values())


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    import tensorflow as tf

    try:
        found = read_example(data)
    except ValueError:
        return
    try:
        message = tf.train.Example.FromString(data)
    except DecodeError:
        return
    assert set(found) == set(message.features.feature)


def test_only_what_is_wanted_is_read():
    payload = example({"a": 1, "b": [2.5, 3.5]})
    assert read_example(payload, {"b"}) == {"b": Values("float32", [2.5, 3.5])}


def test_numbers_that_are_not_packed_are_read():
    int64_list = bytes([0x08, 5, 0x08, 6])
    float_list = bytes([0x0D, 0, 0, 0x80, 0x3F])
    entries = b""
    for name, field, values in ((b"i", 3, int64_list), (b"f", 2, float_list)):
        feature = bytes([field << 3 | 2, len(values)]) + values
        entry = bytes([0x0A, 1]) + name + bytes([0x12, len(feature)]) + feature
        entries += bytes([0x0A, len(entry)]) + entry
    assert read_example(bytes([0x0A, len(entries)]) + entries) == {
        "i": Values("int64", [5, 6]),
        "f": Values("float32", [1.0]),
    }


@pytest.mark.parametrize(
    "damaged", [b"\x0a", b"\x0a\x05abc", b"\x0b", b"\x00", b"\xff" * 12, b"no example"]
)
def test_what_is_no_example_is_refused(damaged):
    with pytest.raises(ValueError):
        read_example(damaged)


def test_a_cut_example_is_refused():
    payload = example({"label": 3, "image": b"x" * 50})
    for end in range(1, len(payload)):
        with pytest.raises(ValueError):
            read_example(payload[:end])
