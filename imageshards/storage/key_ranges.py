"""Where to cut the names of a long folder of a store, so that parts of it are listed side by side.

A store gives a thousand names per request, in order, and each request has to know where the one
before ended: a hundred million names in one folder are hours. But it may be asked to begin
anywhere. So the tree of what follows in names (`0`, `1`, … behind `img_`) is looked at level
by level, by requests for single names, until it has enough branches.

Nothing depends on where the cuts are but the time it takes: whatever they are, each name is in
exactly one range.
"""

from __future__ import annotations

import bisect
import functools
import os
from collections.abc import Callable

from imageshards.storage.concurrency import map_concurrently

# Behind every name that begins with what is before it: the last letter there may be.
_LAST = "\U0010fffd"
# With fewer names than that many pages a folder is listed as a whole.
FEW_PAGES = 100
# Branches that are looked for behind one beginning, and how deep.
_MAX_BRANCHES = 100
_MAX_LEVELS = 24

# (prefix, name) → the first name with the prefix that is behind the other, if there is one.
First = Callable[[str, str], str | None]


def cut_points(prefix: str, page: list[str], first: First, wanted: int) -> list[str]:
    """Names between which a folder is listed in ranges; none if that is not worth it.

    Asks for 10 to 100 names for each range that is wanted, one by one.

    Args:
        prefix: What all its names begin with.
        page: Its first names, in order: as many as a request gives.
        first: Asks the store.
        wanted: How many ranges there should be, more or less.

    Returns:
        Names, or beginnings of such, in order: at least half as many as wanted, if names are
        many enough, and at most four times as many.
    """
    level = [_common(prefix, page, first)]
    for _ in range(_MAX_LEVELS):
        branches = map_concurrently(functools.partial(_branches, first), level)
        below = [branch for found in branches for branch in found]
        if below == level or _are_few(page, below):
            return []
        level = below
        if len(level) > 1 and 2 * len(level) >= wanted:
            break
    return level[1 :: -(-len(level) // (4 * wanted))]


def _are_few(page: list[str], branches: list[str]) -> bool:
    """Whether all names are few pages, as far as the first page tells.

    It holds some of the branches whole. Those with a name or two say nothing of the others.
    """
    if len(branches) >= _MAX_BRANCHES and page[-1] >= branches[-1]:
        return True  # nearly every name begins with another letter
    ends = [bisect.bisect_left(page, branch + _LAST) for branch in branches]
    begins = [bisect.bisect_left(page, branch) for branch in branches]
    whole = sum(
        begin + len(page) // 100 < end < len(page) for begin, end in zip(begins, ends, strict=True)
    )
    return whole > 2 and whole * FEW_PAGES >= len(branches)


def _common(prefix: str, page: list[str], first: First) -> str:
    """The longest beginning that all names have."""
    common = os.path.commonprefix([page[0], page[-1]])
    while len(common) > len(prefix):
        other = first(prefix, common + _LAST)
        if other is None or other.startswith(common):  # the latter: with letters behind _LAST
            return common
        common = os.path.commonprefix([common, other])
    return prefix


def _branches(first: First, beginning: str) -> list[str]:
    """Beginnings of names with one letter more; the same one if it is a name's end.

    Of very many the last one holds the rest.
    """
    found: list[str] = []
    name = first(beginning, beginning)
    while name is not None and len(found) < _MAX_BRANCHES:
        branch = name[: len(beginning) + 1]
        if branch in found[-1:]:
            break
        found.append(branch)
        name = first(beginning, branch + _LAST)
    return found or [beginning]
