import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.errors import UserError
from imageshards.example import Values, decode_example, dtype_of, encode_example

FLOATS = st.floats(width=32, allow_nan=False)
INTS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.lists(st.binary(max_size=20), max_size=4),
    st.lists(INTS, max_size=4),
    st.lists(FLOATS, max_size=4),
)
FEATURES = st.dictionaries(st.text(max_size=10), VALUES, max_size=6)


@given(FEATURES)
def test_examples_round_trip_and_bytes_do_not_depend_on_feature_order(features):
    data = encode_example(features)
    assert decode_example(data) == features
    assert encode_example(dict(reversed(features.items()))) == data
    some = {name: values for name, values in features.items() if "a" in name}
    assert decode_example(data, {*some, "absent"}) == some
    kinds = {bytes: "string", int: "int64", float: "float32"}
    for values in features.values():
        assert dtype_of(values) == (kinds[type(values[0])] if values else None)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (b"\xff\0", [b"\xff\0"]),
        pytest.param([memoryview(b"ab")], [b"ab"], id="memoryview"),
        (("é", b"b"), ["é".encode(), b"b"]),
        (True, [1]),
        ([np.float32(1.5), np.int64(2)], [1.5, 2.0]),
        (np.array([[1, 2], [3, 4]], np.uint8), [1, 2, 3, 4]),
        (np.array([]), []),
    ],
    ids=repr,
)
def test_a_single_value_is_a_list_of_one_and_arrays_are_lists(given, values):
    assert decode_example(encode_example({"x": given})) == {"x": values}


@pytest.mark.parametrize("given", [None, [[1]], {"a": 1}, [1, b"a"], [2**63], {1}, [1j]])
def test_values_of_a_wrong_type_are_refused(given):
    with pytest.raises(UserError, match="features received 'x' with the values .*; expected one"):
        encode_example({"x": given})
    with pytest.raises(ValueError, match=r"it is no tf\.train\.Example"):
        decode_example(b"\xff")


@pytest.mark.process
def test_tensorflow_reads_and_writes_the_same_bytes():
    Example = pytest.importorskip("tensorflow.core.example.example_pb2").Example
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
