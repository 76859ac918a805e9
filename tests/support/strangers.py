"""JSON as a stranger may write it: a real document with any value at any place."""

import copy
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

# Names lead to the file beside the folder that the tests watch.
SENTINEL = "sentinel"
NAMES = [
    f"../{SENTINEL}", f"a/../../{SENTINEL}", f"index/../../{SENTINEL}", "..", ".", "", "a/b",
    "a\\b", "a\0b", "/home/u", "s3://elsewhere/a", "/home/u/.bashrc", ".bashrc", "manifest.json",
    "index", "x", "\ud800", "0" * 64, "none", "shortest",
]  # fmt: skip
NUMBERS = [0, 1, -1, 2, 255, 2.5, 2**31, 2**63, 10**30, math.nan, math.inf, True, False, None]
NESTED: list[Any] = [[], {}, [[]], [1], ["a"], {"a": 1}, {"file": f"../{SENTINEL}"}, [16, 16]]


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A document with one to three values replaced, removed or inserted."""
    whole = {"": copy.deepcopy(document)}
    for _ in range(draw(st.integers(1, 3))):
        # By their keys: else the many classes of many shards would hide what has a name.
        by_key = defaultdict(list)
        for place in _places(whole):
            by_key[place[1]].append(place)
        names = [key for key in by_key if key in ("file", "folder", "name")]
        prefers_names: bool = draw(st.booleans())
        among = names if names and prefers_names else list(by_key)
        holder, key = draw(st.sampled_from(by_key[draw(st.sampled_from(among))]))
        kinds: list[list[Any]] = [NAMES] if among is names else [NAMES, NUMBERS, NESTED]
        value = copy.deepcopy(draw(st.sampled_from([*draw(st.sampled_from(kinds)), holder[key]])))
        match draw(st.sampled_from(["replace", "remove", "insert"])):
            case "remove" if holder is not whole:
                del holder[key]
            case "insert" if isinstance(holder, list):
                holder.insert(key, value)
            case "insert" if holder is not whole:
                holder[draw(st.sampled_from(NAMES))] = value
            case _:
                holder[key] = value
    return whole[""]


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Every (object or array, key) of a document."""
    for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
        yield holder, key
        if isinstance(value, dict | list):
            yield from _places(value)
