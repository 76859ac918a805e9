"""Pairs of 64-bit hashes that differ in few bits, without comparing all with all.

Cut the 64 bits into `distance + 1` bands: of two hashes that differ in at most `distance` bits, at
least one band is equal (the pigeonhole principle). With `distance + 2` bands two are, and so on. So
only hashes that are equal in the bits of some mask are compared. Where many hashes are (the upper
half of many pictures is white), they are cut again by the bits that are left.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator

import numpy as np

from imageshards.errors import UserError

ALL_BITS = tuple(range(64))

# So many comparisons take as long as sorting and moving one hash.
_COST_OF_ENTRY = 100
# With more pairs than this nobody looks at them, and a keys file would leave out most images.
MAX_PAIRS = 5_000_000
# Hashes that are equal in a mask; more of them are cut again.
_MAX_CELL = 2000

_PAIR = np.dtype([("low", "<u8"), ("high", "<u8")])


def masks_for(count: int, distance: int, bits: tuple[int, ...] = ALL_BITS) -> list[int]:
    """Masks such that any two hashes at most `distance` apart are equal in one of them.

    Those that take the least work for `count` hashes; `[0]` where comparing all with all is less.

    Args:
        count: How many hashes there are.
        distance: Bits in which two may differ.
        bits: Those in which they differ at all.
    """
    best, masks = count * count / 2.0, [0]
    for equal in range(1, 5):
        num_bands = distance + equal
        tables = math.comb(num_bands, equal)
        width = equal * len(bits) / num_bands
        work = tables * count * (_COST_OF_ENTRY + count / 2 ** (width + 1))
        if num_bands <= len(bits) and work < best:
            edges = [i * len(bits) // num_bands for i in range(num_bands + 1)]
            bands = [
                functools.reduce(operator.or_, (1 << bit for bit in bits[low:high]))
                for low, high in itertools.pairwise(edges)
            ]
            best, masks = work, [sum(chosen) for chosen in itertools.combinations(bands, equal)]
    return masks


def near_pairs(hashes: np.ndarray, distance: int, bits: tuple[int, ...] = ALL_BITS) -> np.ndarray:
    """All pairs of hashes that differ in at most `distance` bits.

    Args:
        hashes: uint64 [n], each once.
        distance: Most bits that differ.
        bits: Those in which they differ at all.

    Returns:
        [m] with the fields `low` and `high`, uint64, in order and each pair once.
    """
    found = np.empty(0, _PAIR)
    if not distance:
        return found
    for mask in masks_for(len(hashes), distance, bits):
        found = np.unique(np.concatenate([found, _pairs_equal_in(mask, hashes, distance, bits)]))
        _check_number(len(found), distance)
    return found


def _pairs_equal_in(
    mask: int, hashes: np.ndarray, distance: int, bits: tuple[int, ...] = ALL_BITS
) -> np.ndarray:
    """The pairs that are equal in the bits of `mask` as well; see `near_pairs`."""
    cells = hashes & np.uint64(mask)
    order = np.argsort(cells)
    hashes, cells = hashes[order], cells[order]
    begins = np.flatnonzero(np.concatenate([[True], cells[1:] != cells[:-1]])[: len(cells)])
    sizes = np.diff(begins, append=len(cells))
    large = sizes > (_MAX_CELL if mask else len(hashes))
    found = [
        _compare_in_cells(hashes, np.repeat(np.where(large, 1, sizes), sizes), cells, distance)
    ]
    left = tuple(bit for bit in bits if not mask >> bit & 1)
    for begin, size in zip(begins[large], sizes[large], strict=True):
        found.append(near_pairs(hashes[begin : begin + size], distance, left))
        _check_number(sum(map(len, found)), distance)
    return np.concatenate(found)


def _compare_in_cells(
    hashes: np.ndarray, sizes: np.ndarray, cells: np.ndarray, distance: int
) -> np.ndarray:
    """Compares each hash with all behind it in its cell, those of all cells together.

    Args:
        hashes, sizes, cells: [n], in the order of the cells: each hash, how many hashes its cell
            has (1 where they are not to be compared), and its cell.
        distance: Most bits that differ.
    """
    # The cells that still have hashes at some distance behind each other are at the end.
    order = np.argsort(sizes, kind="stable")
    hashes, sizes, cells = hashes[order], sizes[order], cells[order]
    found = [np.empty(0, _PAIR)]
    for step in range(1, int(sizes[-1]) if len(sizes) else 0):
        begin = int(np.searchsorted(sizes, step, side="right"))
        one, other = hashes[begin:-step], hashes[begin + step :]
        near = np.flatnonzero(count_bits(one ^ other) <= distance)
        near = near[cells[begin + near] == cells[begin + step + near]]
        pairs = np.empty(len(near), _PAIR)
        pairs["low"] = np.minimum(one[near], other[near])
        pairs["high"] = np.maximum(one[near], other[near])
        found.append(pairs)
        _check_number(sum(map(len, found)), distance)
    return np.concatenate(found)


def _check_number(pairs: int, distance: int) -> None:
    """Refuses more pairs than anybody looks at."""
    if pairs > MAX_PAIRS:
        raise UserError(
            f"--distance received {distance}, at which more than {MAX_PAIRS:,} pairs of different "
            "hashes are near: most of the pictures look alike; expected fewer pairs: give a "
            "smaller one, --distance 0 for equal hashes only."
        )


def count_bits(values: np.ndarray) -> np.ndarray:
    """How many bits of each uint64 are set."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.bitwise_count(values)
    return np.unpackbits(values.view(np.uint8)).reshape(-1, 64).sum(1)
