"""JSON files and parsed objects become typed values in one step, or are refused in a phrase.

A file may come from anybody. What reads one declares a `msgspec.Struct`, with names, types and
bounds; keys that the struct does not name are allowed.

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

_T = TypeVar("_T")

_LOCK = threading.Lock()
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of things: 0 or more, and no more than other programs can read."""


def decode(data: bytes | str, kind: type[_T]) -> _T:
    """Returns the value of a type that a JSON text holds.

    Raises:
        ValueError: The text is no JSON, holds what no file can hold, or another type; as a phrase.
    """
    said = data.encode() if isinstance(data, str) else data.removeprefix(codecs.BOM_UTF8)
    return _checked(lambda: _decoder_of(kind).decode(said))


def convert(value: Any, kind: type[_T]) -> _T:
    """Returns a parsed object, such as `json.loads` gives, as a value of a type.

    Raises:
        ValueError: The object is of another type; as a phrase.
    """
    _decoder_of(kind)
    return _checked(lambda: msgspec.convert(value, kind))


def _decoder_of(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    """Returns the decoder of a type, made by one thread at a time.

    msgspec 0.22 looks at a struct when the struct is first decoded, and crashes the process where
    two threads do so at once.
    """
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
        what, _, place = str(e).partition(" - at ")
        where = place.replace("`", "").replace("$.", "").replace("$", "")
        found = what[:1].lower() + what[1:]
        raise ValueError(f"{where}: {found}" if where else found) from None
