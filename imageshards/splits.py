"""Finds the split that the names in a path say, by one rule for files of every kind."""

from __future__ import annotations

import re
from collections.abc import Iterable

from imageshards.manifest import SPLIT_NAMES

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def split_of(path: str) -> str | None:
    """Returns the split that a path below an input says; None without one.

    A word of the file's own name comes first, then a folder with the name of a split, then a word
    in the name of a folder.

    >>> [split_of(path) for path in ("test/val-1.tfrec", "train/part1/a.tfrec", "seg_Test/a")]
    ['val', 'train', 'test']

    Raises:
        ValueError: The names that decide say two splits.
    """
    *folders, name = path.split("/")
    named = [folder for folder in folders if folder.lower() in SPLIT_NAMES]
    return _split_in([name]) or _split_in(named) or _split_in(folders)


def _split_in(names: Iterable[str]) -> str | None:
    words = (word.lower() for name in names for word in _WORD.findall(name))
    found = [*dict.fromkeys(word for word in words if word in SPLIT_NAMES)]
    if len(found) > 1:
        raise ValueError(f"says {found[0]} and {found[1]}")
    return found[0] if found else None
