"""Finds pairs of 64-bit hashes that differ in few bits, without comparing all pairs.

If two hashes differ in at most `distance` of their bits, and the bits are cut into `distance + 1`
bands, at least one band is equal (the pigeonhole principle); of `distance + 2` bands two are equal,
and so on. A mask selects the bits of some bands, and only hashes in the same cell (equal under a
mask) are compared. A large cell, for example of pictures with a white upper half, is cut again by
the bits that differ within the cell.
"""

from __future__ import annotations

import itertools

import numpy as np

from imageshards.errors import Arg, UserError

# Nobody looks at more pairs, and a file of their keys would exclude most images.
MAX_PAIRS = 5_000_000
# All hashes of a cell of this size are compared. More hashes differ in at least 11 bits, so that
# each band of the largest distance has a bit.
_MAX_CELL = 2000
# The mean size of a cell: smaller cells need more masks, and each mask sorts all hashes.
_USUAL_CELL = 100


def masks_for(hashes: np.ndarray, distance: int) -> list[int]:
    """Returns masks: any two of the hashes, uint64 [n], that are near are equal under one mask."""
    if len(hashes) <= _MAX_CELL:
        return [0]
    # Bits that are equal in all hashes would make bands that separate nothing.
    differing = int(np.bitwise_or.reduce(hashes ^ hashes[0]))
    bits = [1 << bit for bit in range(64) if differing >> bit & 1]
    # More equal bands select more bits, for smaller cells, but need many more masks.
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
    """Finds all pairs of different hashes that differ in at most `distance` bits.

    Args:
        hashes: uint64 [n], each hash once.
        distance: The most bits in which two hashes may differ, 0 to 10.

    Returns:
        uint64 [m, 2]: each pair once, in order, the lower hash first.

    Raises:
        UserError: There are more than `MAX_PAIRS` pairs.
    """
    found = np.empty((0, 2), np.uint64)
    for mask in masks_for(hashes, distance) if distance else ():
        cells = hashes & np.uint64(mask)
        order = np.argsort(cells)
        ordered = hashes[order]
        # `prepend` differs from the first cell, so each cell, the first included, has a begin.
        begins = np.flatnonzero(np.diff(cells[order], prepend=~cells[order[:1]]))
        sizes = np.diff(begins, append=len(hashes))
        is_large = sizes > _MAX_CELL
        # The number of hashes after each hash in its cell; 0 in large cells, which are cut again.
        behind = np.repeat(begins + sizes, sizes) - np.arange(len(hashes)) - 1
        behind[np.repeat(is_large, sizes)] = 0
        pairs = [found, _compare(ordered, behind, distance)]
        for begin, size in zip(begins[is_large], sizes[is_large], strict=True):
            pairs.append(near_pairs(ordered[begin : begin + size], distance))
        found = np.unique(np.concatenate(pairs), axis=0)
        _check_number(len(found), distance)
    return found


def _compare(hashes: np.ndarray, behind: np.ndarray, distance: int) -> np.ndarray:
    """Returns the near pairs of each hash with the `behind` hashes after it."""
    found, count = [np.empty((0, 2), np.uint64)], 0
    # One round of NumPy compares all hashes with the hash `step` places later.
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
    if pairs > MAX_PAIRS:
        raise UserError(
            argument="distance",
            received=f"{distance}, for which more than {MAX_PAIRS:,} pairs of pictures look alike",
            expected="fewer pairs",
            remedy="give a smaller distance, " + Arg("distance", 0) + " for equal hashes only",
        )


def count_bits(values: np.ndarray) -> np.ndarray:
    """Returns the number of set bits of each uint64."""
    if hasattr(np, "bitwise_count"):  # NumPy 1 lacks this function.
        return np.bitwise_count(values)
    return np.unpackbits(values.view(np.uint8)).reshape(-1, 64).sum(1)
