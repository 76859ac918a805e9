"""Pairs of 64-bit hashes that differ in few bits, without comparing all with all.

Cut the bits into `distance + 1` bands: of two hashes that differ in at most `distance` bits, at
least one band is equal (the pigeonhole principle). With `distance + 2` bands two are, and so on. So
only hashes that are equal in the bits of some mask are compared. Where many are (the upper half of
many pictures is white), these are cut again by the bits in which they differ.
"""

from __future__ import annotations

import itertools

import numpy as np

from imageshards.errors import Arg, UserError

# With more pairs than this nobody looks at them, and a keys file would leave out most images.
MAX_PAIRS = 5_000_000
# So many hashes are compared each with each. More of them differ in at least 11 bits, which is a
# bit for each band of the largest distance.
_MAX_CELL = 2000
# Hashes that are equal in a mask, on average: fewer take more masks, and sorting is not free.
_USUAL_CELL = 100


def masks_for(hashes: np.ndarray, distance: int) -> list[int]:
    """Masks such that any two of some hashes, uint64 [n], that are at most `distance` bits apart
    are equal in one of them.
    """
    if len(hashes) <= _MAX_CELL:
        return [0]
    differing = int(np.bitwise_or.reduce(hashes ^ hashes[0]))
    bits = [1 << bit for bit in range(64) if differing >> bit & 1]
    equal = 1
    while (
        len(hashes) > _USUAL_CELL * 2 ** (equal * len(bits) // (distance + equal))
        and distance + equal < len(bits)
        and equal < 4
    ):
        equal += 1
    num_bands = distance + equal
    edges = [i * len(bits) // num_bands for i in range(num_bands + 1)]
    bands = [sum(bits[low:high]) for low, high in itertools.pairwise(edges)]
    return [sum(chosen) for chosen in itertools.combinations(bands, equal)]


def near_pairs(hashes: np.ndarray, distance: int) -> np.ndarray:
    """All pairs of hashes, uint64 [n], that differ in at most `distance` (0 to 10) bits.

    Each hash is there once; so is each pair, in order, the lower hash first: uint64 [m, 2].

    Raises:
        UserError: There are more pairs than anybody looks at.
    """
    found = np.empty((0, 2), np.uint64)
    for mask in masks_for(hashes, distance) if distance else ():
        cells = hashes & np.uint64(mask)
        order = np.argsort(cells)
        ordered = hashes[order]
        begins = np.flatnonzero(np.diff(cells[order], prepend=~cells[order[:1]]))
        sizes = np.diff(begins, append=len(hashes))
        is_large = sizes > _MAX_CELL
        # How many hashes stand behind each in its cell and are compared with it here.
        behind = np.repeat(begins + sizes, sizes) - np.arange(len(hashes)) - 1
        behind[np.repeat(is_large, sizes)] = 0
        pairs = [found, _compare(ordered, behind, distance)]
        for begin, size in zip(begins[is_large], sizes[is_large], strict=True):
            pairs.append(near_pairs(ordered[begin : begin + size], distance))
        found = np.unique(np.concatenate(pairs), axis=0)
        _check_number(len(found), distance)
    return found


def _compare(hashes: np.ndarray, behind: np.ndarray, distance: int) -> np.ndarray:
    """The near ones of all pairs of a hash with one of the `behind` hashes after it."""
    found, count = [np.empty((0, 2), np.uint64)], 0
    at, step = np.arange(len(hashes)), 1
    while len(at := at[behind[at] >= step]):
        one, other = hashes[at], hashes[at + step]
        near = count_bits(one ^ other) <= distance
        found.append(np.sort(np.stack([one[near], other[near]], axis=1)))
        count += len(found[-1])
        _check_number(count, distance)
        step += 1
    return np.concatenate(found)


def _check_number(pairs: int, distance: int) -> None:
    """Refuses more pairs than anybody looks at."""
    if pairs > MAX_PAIRS:
        raise UserError(
            argument="distance",
            received=f"{distance}, at which more than {MAX_PAIRS:,} pairs of different hashes are "
            "near, as most of the pictures look alike",
            expected="fewer pairs",
            remedy="give a smaller one, " + Arg("distance", 0) + " for equal hashes only",
        )


def count_bits(values: np.ndarray) -> np.ndarray:
    """How many bits of each uint64 are set."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.bitwise_count(values)
    return np.unpackbits(values.view(np.uint8)).reshape(-1, 64).sum(1)
