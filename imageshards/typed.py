"""Decodes and checks JSON files and parsed objects in one step.

A file may come from a stranger, so its reader declares a `msgspec.Struct` with names, types and
bounds. The file may have more keys than the struct.

    >>> class Shard(msgspec.Struct, frozen=True):
    ...     file: str
    ...     num_records: Whole
    >>> decode('{"file": "a.tfrecord", "num_records": 3}', Shard)
    Shard(file='a.tfrecord', num_records=3)
    >>> decode('{"file": "a.tfrecord", "num_records": true}', Shard)
    Traceback (most recent call last):
    ValueError: num_records: expected `int`, got `bool`
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from imageshards.bounds import MAX_JSON_BYTES, MAX_JSON_DEPTH

_T = TypeVar("_T")

_LOCK = threading.Lock()
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A count: 0 or more, in the signed 64 bits that other programs can read."""


def decode(data: bytes | str, kind: type[_T]) -> _T:
    """Returns the content of a JSON text as a value of a type.

    Raises:
        ValueError: The text is not JSON or its content is not of the type; the message is a phrase.
    """
    said = data.encode() if isinstance(data, str) else data.removeprefix(codecs.BOM_UTF8)
    return _checked(lambda: _decoder_of(kind).decode(said))


def decode_object(data: bytes) -> dict[str, Any]:
    """Returns a JSON object with any content.

    Raises:
        ValueError: The text is too long, is not a JSON object, or has too many levels.
    """
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_BYTES} bytes")
    found = decode(data, dict[str, Any])
    level: list[Any] = [found]
    for _ in range(MAX_JSON_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for one in inner for each in one if isinstance(each, dict | list)]
    if level:
        raise ValueError("it is nested too deeply")
    return found


def convert(value: Any, kind: type[_T]) -> _T:
    """Returns a parsed object, like a result of `json.loads`, as a value of a type.

    Raises:
        ValueError: The object is not of the type; the message is a phrase.
    """
    _decoder_of(kind)
    return _checked(lambda: msgspec.convert(value, kind))


def _decoder_of(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    # msgspec 0.22 inspects a struct when its decoder is made, and crashes the process if two
    # threads do so at the same time.
    with _LOCK:
        if kind not in _DECODERS:
            _DECODERS[kind] = msgspec.json.Decoder(kind)
        return _DECODERS[kind]


def _checked(make: Callable[[], _T]) -> _T:
    try:
        return make()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.ValidationError as e:
        # msgspec says "Expected `int`, got `bool` - at `$.shards[0]`".
        what, _, place = str(e).partition(" - at ")
        where = place.replace("`", "").replace("$.", "").replace("$", "")
        found = what[:1].lower() + what[1:]
        raise ValueError(f"{where}: {found}" if where else found) from None
