"""`tf.train.Example` bytes without TensorFlow are those of TensorFlow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.example import Values, decode_example, encode_example

FLOATS = st.floats(width=32, allow_nan=False)
INTS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.lists(st.binary(max_size=20), max_size=4),
    st.lists(INTS, max_size=4),
    st.lists(FLOATS, max_size=4),
)
FEATURES = st.dictionaries(st.text(max_size=10), VALUES, max_size=6)


@given(FEATURES)
def test_what_is_encoded_is_decoded(features):
    assert decode_example(encode_example(features)) == features


@given(FEATURES)
def test_the_order_of_features_changes_no_byte(features):
    reverse = dict(reversed(features.items()))
    assert encode_example(reverse) == encode_example(features)


def test_tensorflow_reads_and_writes_the_same_bytes():
    feature_pb2 = pytest.importorskip("tensorflow.core.example.feature_pb2")
    from tensorflow.core.example.example_pb2 import Example

    features: dict[str, Values] = {
        "image/encoded": [b"\xff\xd8\x00"],
        "image/height": [256, -1, 2**63 - 1],
        "weights": [0.1, float("inf"), -0.0],
        "no values": [],
        "é": ["é".encode()],
    }
    kinds = {bytes: "bytes_list", int: "int64_list", float: "float_list"}
    expected = Example()
    for name, values in features.items():
        entry = expected.features.feature[name]
        if values:
            getattr(entry, kinds[type(values[0])]).value.extend(values)
    assert encode_example(features) == expected.SerializeToString(deterministic=True)
    assert Example.FromString(encode_example(features)) == expected
    assert isinstance(expected.features.feature["é"], feature_pb2.Feature)


def test_floats_are_float32():
    ((value,),) = decode_example(encode_example({"x": [0.1]})).values()
    assert value == pytest.approx(0.1, rel=1e-7)
    assert value != 0.1


@pytest.mark.parametrize("values", [["text"], [1, 2.5], [b"a", 1], [2**63]])
def test_values_of_no_kind_or_of_two_are_refused(values):
    with pytest.raises((TypeError, ValueError)):
        encode_example({"x": values})
