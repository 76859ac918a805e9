"""JSON that is of a type, and what is refused with the place of the fault."""

import json
import math

import msgspec
import pytest

from imageshards.typed import Whole, convert, decode


class Reject(msgspec.Struct, frozen=True):
    key: str


class Shard(msgspec.Struct, frozen=True):
    count: Whole
    mean: float = 0.0
    classes: dict[str, Whole] = {}
    rejects: list[Reject] = []


@pytest.mark.parametrize("said", ['{"count": 3, "newer": [1]}', b'\xef\xbb\xbf{"count": 3}'])
def test_keys_of_newer_versions_and_the_mark_of_an_encoding_are_allowed(said):
    assert decode(said, Shard) == Shard(3) == convert({"count": 3, "newer": 1}, Shard)


@pytest.mark.parametrize(
    ("value", "phrase"),
    [
        ({"count": True}, "count: expected `int`, got `bool`"),
        ({"count": 2**63}, "count: expected `int` <= 9223372036854775807"),
        ({}, "object missing required field `count`"),
        ({"count": 1, "classes": {"a": "b"}}, "classes[...]: expected `int`, got `str`"),
        ({"count": 1, "rejects": [{"key": 1}]}, "rejects[0].key: expected `str`, got `int`"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(value, phrase):
    for read in (lambda: decode(json.dumps(value), Shard), lambda: convert(value, Shard)):
        with pytest.raises(ValueError) as refused:
            read()
        assert str(refused.value) == phrase


@pytest.mark.parametrize(
    "said",
    [
        "", '{"count": 1}x', b'{"count": 1, "mean": "\xff"}', '{"count": ' + "9" * 5000 + "}",
        '{"count": 1, "mean": 1e999}', '{"count": 1, "mean": ' + str(math.nan) + "}",
        '{"count": 1, "mean": Infinity}', '{"count": 1, "other": NaN}',
        r'{"count": 1, "classes": {"\ud800": 1}}', r'{"count": 1, "rejects": [{"key": "\udc00x"}]}',
        '{"count": 1, "rejects": [{"key": "\ud800"}]}', '{"count": 1, "other": ' + "[" * 10**6,
    ],
    ids=range(12),
)  # fmt: skip
def test_what_no_file_can_hold_is_refused_without_a_traceback(said):
    with pytest.raises(ValueError) as refused:
        decode(said, Shard)
    assert "\n" not in str(refused.value)
