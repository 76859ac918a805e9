import json
import math
import subprocess
import sys

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
def test_unknown_keys_and_a_byte_order_mark_are_allowed(said):
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
def test_impossible_json_is_refused_with_a_value_error(said):
    with pytest.raises(ValueError) as refused:
        decode(said, Shard)
    assert "\n" not in str(refused.value)


_AT_ONCE = """
import sys, threading
import msgspec
from imageshards.typed import decode

class Leaf(msgspec.Struct): a: "int"; b: "dict[str, list[int]]" = {}
class Inner(msgspec.Struct): leaves: "list[Leaf]" = []; x: "Leaf | None" = None
class Outer(msgspec.Struct): inner: "list[Inner]"; more: "dict[str, Inner]" = {}

def first() -> None:
    barrier.wait()
    decode('{"inner":[{"leaves":[{"a":1,"b":{"x":[1]}}]}],"more":{"y":{"x":{"a":2}}}}', Outer)

sys.setswitchinterval(1e-7)
barrier = threading.Barrier(16)
threads = [threading.Thread(target=first) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.process
def test_concurrent_first_decodes_of_a_type_do_not_crash():
    """msgspec by itself crashed four of five such processes."""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", _AT_ONCE], check=True)
