"""Draws the random parameters of the augmentation as a pure function of (seed, position).

A position is a record's index in the endless training stream. Batches, replicas and restarts do not
affect positions, and therefore change no picture. The numbers come from a counter-based hash of
whole uint32 tensors, which gives the same bits on every device; TensorFlow's generators would need
one call per picture.

Only + - * / and square roots turn bits into parameters, because their results are rounded correctly
everywhere. Sines and exponentials are not: vectorised loops treat the remainder of a batch
differently, so the last bit of a value would depend on its index in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.strengths import NONE, Augment

Params = Mapping[str, tf.Tensor]

# Multipliers and shifts of a 32-bit mixing function of small bias, "lowbias32":
# https://nullprogram.com/blog/2018/07/31/
_MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
_SHIFTS = (16, 15, 16)
# The odd number nearest to 2**32 / golden ratio, whose multiples spread evenly over 32 bits.
_STRIDE = 0x9E3779B9
_MASK = 0xFFFFFFFF

# The names of the numbers for each picture and each pair. The index of a name selects its number,
# so new names go to the end.
_OF_PICTURE = (
    "crop_area crop_aspect crop_y crop_x flip half_tangent brightness contrast saturation "
    "noise_std erase erase_area erase_aspect erase_y erase_x noise_key"
).split()
_OF_PAIR = ("mix", "mix_share", "mix_y", "mix_x")
_PICTURE_PURPOSE, _PAIR_PURPOSE, USER_PURPOSE = 1, 2, 3

NO_MIX, MIXUP, CUTMIX = 0.0, 1.0, 2.0


# Number of equal steps of probability between the quantiles of a table.
_STEPS = 4096
_GRID = 2**16


def draw_params(augment: Augment, seed: int, position: tf.Tensor) -> Params:
    """Returns the parameters of each picture by name, each [batch], from int64 [batch] positions.

    `trainer.augment.geometry` computes what depends on the size of a picture, from:

    - `crop_area`: float32, share of the largest allowed crop; `crop_aspect`, `crop_y`, `crop_x`:
      float32 in [0, 1), the place within the allowed range.

    The other parameters exist only if their strength is above 0:

    - `flip`: bool; `half_tangent` (of half the angle of rotation): float32;
    - `brightness`, `contrast`, `saturation`: float32 factors;
    - `noise_std` (grey levels): float32; `noise_key`: uint32;
    - `erase`: bool; `erase_area` (share), `erase_aspect` (height / width), `erase_y`, `erase_x` (in
      [0, 1)): float32.
    """
    numbers = random_bits(seed, position, len(_OF_PICTURE), _PICTURE_PURPOSE)
    # Slices, as TensorFlow cannot unstack uint32 on a GPU.
    bits = {name: numbers[:, i] for i, name in enumerate(_OF_PICTURE)}
    unit = {name: unit_floats(column) for name, column in bits.items()}
    found = {name: unit[name] for name in ("crop_aspect", "crop_y", "crop_x")}
    if augment.crop == NONE.crop:
        found |= dict.fromkeys(("crop_y", "crop_x"), tf.ones_like(unit["crop_y"]) / 2)
    found["crop_area"] = _between(unit["crop_area"], *augment.crop)
    if augment.flip:
        found["flip"] = unit["flip"] < augment.flip
    if augment.rotate:
        # A uniform tangent is nearly a uniform angle; at 90 degrees the largest angles are twice as
        # likely as the smallest.
        steepest = math.tan(math.radians(augment.rotate) / 2)
        found["half_tangent"] = _between(unit["half_tangent"], -steepest, steepest)
    for name in ("brightness", "contrast", "saturation"):
        if most := getattr(augment, name):
            found[name] = _between(unit[name], 1 - most, 1 + most)
    if augment.noise:
        found |= {"noise_std": unit["noise_std"] * augment.noise, "noise_key": bits["noise_key"]}
    return {**found, **(_erase_params(augment, unit) if augment.erase else {})}


def draw_pairs(augment: Augment, seed: int, position: tf.Tensor, distance: int) -> Params:
    """Returns how each picture is mixed, by name, each float32 [batch].

    The pictures at positions o and o + `distance` of each block of 2 `distance` positions are a
    pair, and have the same parameters: `mix`, which is `NO_MIX`, `MIXUP` or `CUTMIX`; `mix_share`,
    the share of the picture itself; `mix_y`, `mix_x` in [0, 1), the place of CutMix's rectangle.
    """
    pair = position // (2 * distance) * distance + position % distance
    numbers = unit_floats(random_bits(seed, pair, len(_OF_PAIR), _PAIR_PURPOSE))
    unit = dict(zip(_OF_PAIR, tf.unstack(numbers, axis=1), strict=True))
    part = augment.mix / 2 if augment.mixup and augment.cutmix else augment.mix
    is_mixup = unit["mix"] < (part if augment.mixup else 0.0)
    is_mixed = unit["mix"] < augment.mix
    shares = [beta(unit["mix_share"], alpha) for alpha in (augment.mixup, augment.cutmix) if alpha]
    return {
        **unit,
        "mix": tf.where(is_mixup, MIXUP, tf.where(is_mixed, CUTMIX, NO_MIX)),
        "mix_share": tf.where(is_mixup, shares[0], shares[-1]),
    }


def random_bits(seed: int, number: tf.Tensor, count: int, purpose: int = 0) -> tf.Tensor:
    """Returns `count` hashes of every number, int64 [batch], at least 0, as uint32 [batch, count].

    The hashes of a number are independent of its batch. Each `purpose` has its own hashes.
    """
    first = mix_bits(mix_bits(_uint32(seed)) + _uint32(purpose * _STRIDE))
    second = mix_bits(first + _uint32((seed >> 32) + _STRIDE))
    low = tf.cast(tf.bitwise.bitwise_and(number, tf.constant(_MASK, tf.int64)), tf.uint32)
    high = tf.cast(tf.bitwise.right_shift(number, tf.constant(32, tf.int64)), tf.uint32)
    # `low` is mapped one-to-one, so two numbers with the same upper 32 bits never share a hash.
    state = mix_bits(tf.bitwise.bitwise_xor(low, first))
    state = mix_bits(state + high * _uint32(_STRIDE) + second)
    counters = tf.constant([(i + 1) * _STRIDE & _MASK for i in range(count)], tf.uint32)
    return mix_bits(state[:, tf.newaxis] + counters)


def mix_bits(state: tf.Tensor) -> tf.Tensor:
    """Maps each uint32 to another uint32, one-to-one; each bit depends on all bits of the input."""
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, None), strict=True):
        shifted = tf.bitwise.right_shift(state, tf.constant(shift, tf.uint32))
        state = tf.bitwise.bitwise_xor(state, shifted)
        if multiplier is not None:
            state = state * _uint32(multiplier)
    return state


def unit_floats(bits: tf.Tensor) -> tf.Tensor:
    """Maps uint32 to float32 in [0, 1), multiples of 2**-24, exactly and the same everywhere."""
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) * 2.0**-24


def beta(unit: tf.Tensor, alpha: float) -> tf.Tensor:
    """Maps uniform float32 in [0, 1) to numbers from Beta(`alpha`, `alpha`), between quantiles."""
    quantiles = tf.constant(beta_quantiles(alpha), tf.float32)
    place = unit * _STEPS
    step = tf.floor(place)
    index = tf.cast(step, tf.int64)
    below, above = tf.gather(quantiles, index), tf.gather(quantiles, index + 1)
    return below + (place - step) * (above - below)


def beta_quantiles(alpha: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns the quantiles of Beta(`alpha`, `alpha`) at multiples of 1 / 4096, both ends too."""
    # The distribution is symmetric, so half of it is integrated, over u = x**power: where the
    # density is infinite at x = 0, it is finite in u.
    power = min(alpha, 1.0)
    u = np.linspace(0.0, 0.5**power, _GRID + 1)
    x = u ** (1 / power)
    density = x ** (alpha - power) * (1 - x) ** (alpha - 1)
    area = np.cumsum(np.concatenate([[0.0], density[1:] + density[:-1]]))
    half = np.interp(np.arange(_STEPS // 2 + 1) / _STEPS, area / (2 * area[-1]), u) ** (1 / power)
    # Powers may differ in the last bit from machine to machine; rounded numbers do not.
    half = np.round(half * 2**20) / 2**20
    return np.concatenate([half, 1 - half[-2::-1]])


def _erase_params(augment: Augment, unit: Params) -> Params:
    # The lower half of [0, 1) gives flat rectangles, the upper half tall rectangles.
    tall = unit["erase_aspect"] * 2 - 1
    aspect = 1 - tf.abs(tall) * (1 - augment.erase_ratio)
    return {
        "erase": unit["erase"] < augment.erase,
        "erase_area": _between(unit["erase_area"], *augment.erase_area),
        "erase_aspect": tf.where(tall < 0, aspect, 1 / aspect),
        "erase_y": unit["erase_y"],
        "erase_x": unit["erase_x"],
    }


def _between(unit: tf.Tensor, least: float, greatest: float) -> tf.Tensor:
    return least + unit * (greatest - least)


def _uint32(value: int) -> tf.Tensor:
    return tf.constant(value & _MASK, tf.uint32)
