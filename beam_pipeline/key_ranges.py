"""Where to cut the names of a long folder of a store, so that parts of it are listed side by side.

A store gives a thousand names per request, in order, and each request has to know where the one
before ended: a hundred million names in one folder are hours. But it may be asked to begin
anywhere. So the tree of what follows in names (`0`, `1`, … behind `img_`) is looked at level
by level, by requests for single names, until it has enough branches.

Nothing depends on where the cuts are but the time it takes: whatever they are, each name is in
exactly one range.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from beam_pipeline.ahead import map_ahead

# Behind every name that begins with what is before it.
_LAST = "\U0010ffff"
# With fewer names than that many pages a folder is listed as a whole.
FEW_PAGES = 100
_MAX_LEVELS = 24

# (prefix, name) → the first name with the prefix that is behind the other, if there is one.
First = Callable[[str, str], str | None]


def cut_points(prefix: str, page: list[str], first: First, wanted: int) -> list[str]:
    """Names between which a folder is listed in ranges; none if that is not worth it.

    Args:
        prefix: What all its names begin with.
        page: Its first names, in order: as many as a request gives.
        first: Asks the store.
        wanted: How many ranges there should be, at least, if names are many enough.

    Returns:
        Names, or beginnings of such, in order.
    """
    level = [_common(prefix, page, first)]
    for _ in range(_MAX_LEVELS):
        branches = map_ahead(functools.partial(_branches, first), level)
        below = [branch for found in branches for branch in found]
        seen = sum(branch + _LAST <= page[-1] for branch in below)
        # One or two may be the ends of names, with nothing behind them.
        if (seen > 2 and seen * FEW_PAGES >= len(below)) or below == level:
            return []
        level = below
        if len(level) >= wanted:
            break
    return level[1:]


def _common(prefix: str, page: list[str], first: First) -> str:
    """The longest beginning that all names have."""
    common = os.path.commonprefix([page[0], page[-1]])
    while len(common) > len(prefix):
        other = first(prefix, common + _LAST)
        if other is None:
            return common
        common = os.path.commonprefix([common, other])
    return prefix


def _branches(first: First, beginning: str) -> list[str]:
    """A beginning of names with one letter more each; itself if it is a name's end."""
    found: list[str] = []
    name = first(beginning, beginning)
    while name is not None and (branch := name[: len(beginning) + 1]) not in found[-1:]:
        found.append(branch)
        name = first(beginning, branch + _LAST)
    return found or [beginning]
