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

import dataclasses
import math
from collections.abc import Mapping

import tensorflow as tf

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
OF_PAIR = ("mix", "mix_share", "mix_y", "mix_x")
_PICTURE_PURPOSE, _PAIR_PURPOSE, USER_PURPOSE = 1, 2, 3

NO_MIX, MIXUP, CUTMIX = 0.0, 1.0, 2.0


@dataclasses.dataclass(frozen=True)
class Strengths:
    """The strength of each change at a level of augmentation.

    Attributes:
        crop_area: Least and greatest area of the crop, as a share of the largest crop with an
            allowed aspect.
        crop_aspect: Least and greatest aspect of the crop (width / height), as a multiple of the
            aspect of the resized picture.
        flip: Probability of a horizontal flip.
        rotation_rad: Greatest angle of the rotation, in both directions.
        brightness, contrast, saturation: Factors are between 1 - this value and 1 + this value.
        noise_std: Greatest standard deviation of the noise, in grey levels of 0..255.
        erase: Probability that a rectangle is erased.
        erase_area: Least and greatest area of the rectangle, as a share of the picture.
        erase_aspect: Least height / width of the rectangle; the greatest is the inverse.
        mixup, cutmix: Probabilities of mixing a pair by MixUp or CutMix; their sum is at most 1.
    """

    crop_area: tuple[float, float]
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    rotation_rad: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    noise_std: float = 0.0
    erase: float = 0.0
    erase_area: tuple[float, float] = (0.02, 1 / 3)
    erase_aspect: float = 0.3
    mixup: float = 0.0
    cutmix: float = 0.0


LIGHT = Strengths(crop_area=(0.5, 1.0))
STRONG = Strengths(
    crop_area=(0.08, 1.0),
    rotation_rad=math.radians(15),
    brightness=0.3,
    contrast=0.3,
    saturation=0.3,
    noise_std=10.0,
    erase=0.25,
    mixup=0.25,
    cutmix=0.25,
)
# `none` has no entry, because it draws no parameters.
LEVELS = {"light": LIGHT, "strong": STRONG}


def draw_params(level: str, seed: int, position: tf.Tensor) -> Params:
    """Returns the parameters of each picture by name, each [batch], from int64 [batch] positions.

    `trainer.augment.geometry` computes what depends on the size of a picture, from:

    - `crop_area`: float32, share of the largest allowed crop; `crop_aspect`, `crop_y`, `crop_x`:
      float32 in [0, 1), the place within the allowed range; `flip`: bool.

    `strong` adds:

    - `half_tangent` (of half the angle of rotation), `brightness`, `contrast`, `saturation`
      (factors), `noise_std` (grey levels), `erase_area` (share), `erase_aspect` (height / width),
      `erase_y`, `erase_x` (in [0, 1)): float32; `erase`: bool; `noise_key`: uint32;
    - for the pair (2k, 2k + 1) of the picture, with the same values for both pictures: `mix`:
      float32, `NO_MIX`, `MIXUP` or `CUTMIX`; `mix_share`: float32, the share of the picture itself;
      `mix_y`, `mix_x`: float32 in [0, 1), the place of CutMix's rectangle.
    """
    strengths = LEVELS[level]
    numbers = random_bits(seed, position, len(_OF_PICTURE), _PICTURE_PURPOSE)
    bits = dict(zip(_OF_PICTURE, tf.unstack(numbers, axis=1), strict=True))
    unit = {name: unit_floats(column) for name, column in bits.items()}
    crop = {name: unit[name] for name in ("crop_aspect", "crop_y", "crop_x")} | {
        "crop_area": _between(unit["crop_area"], *strengths.crop_area),
        "flip": unit["flip"] < strengths.flip,
    }
    if strengths is LIGHT:
        return crop
    pair = tf.bitwise.right_shift(position, tf.constant(1, position.dtype))
    numbers = unit_floats(random_bits(seed, pair, len(OF_PAIR), _PAIR_PURPOSE))
    of_pair = dict(zip(OF_PAIR, tf.unstack(numbers, axis=1), strict=True))
    pixels = _pixel_params(strengths, unit) | {"noise_key": bits["noise_key"]}
    return pixels | crop | _pair_params(strengths, of_pair)


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


def _pixel_params(strengths: Strengths, unit: Params) -> dict[str, tf.Tensor]:
    factors = {name: getattr(strengths, name) for name in ("brightness", "contrast", "saturation")}
    # The lower half of [0, 1) gives flat rectangles, the upper half tall rectangles.
    tall = unit["erase_aspect"] * 2 - 1
    aspect = 1 - tf.abs(tall) * (1 - strengths.erase_aspect)
    # A uniform tangent is nearly a uniform angle, because the angles are small.
    steepest = math.tan(strengths.rotation_rad / 2)
    return {
        **unit,
        "half_tangent": _between(unit["half_tangent"], -steepest, steepest),
        **{name: _between(unit[name], 1 - most, 1 + most) for name, most in factors.items()},
        "noise_std": unit["noise_std"] * strengths.noise_std,
        "erase": unit["erase"] < strengths.erase,
        "erase_area": _between(unit["erase_area"], *strengths.erase_area),
        "erase_aspect": tf.where(tall < 0, aspect, 1 / aspect),
    }


def _pair_params(strengths: Strengths, unit: Params) -> dict[str, tf.Tensor]:
    is_mixup = unit["mix"] < strengths.mixup
    is_mixed = unit["mix"] < strengths.mixup + strengths.cutmix
    # CutMix draws its share from Beta(1, 1), which is uniform. MixUp draws nearly from Beta(1/2,
    # 1/2): the polynomial is within 0.01 of the inverse distribution function sin²(πu/2).
    share = unit["mix_share"]
    mixup_share = share * share * (3 - 2 * share)
    return {
        **unit,
        "mix": tf.where(is_mixup, MIXUP, tf.where(is_mixed, CUTMIX, NO_MIX)),
        "mix_share": tf.where(is_mixup, mixup_share, share),
    }


def _between(unit: tf.Tensor, least: float, greatest: float) -> tf.Tensor:
    return least + unit * (greatest - least)


def _uint32(value: int) -> tf.Tensor:
    return tf.constant(value & _MASK, tf.uint32)
