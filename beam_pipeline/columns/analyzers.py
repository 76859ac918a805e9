"""TFT analyzers whose result does not depend on the order of values or on bundles.

The mean and variance of TFT itself add floats in the order they arrive: with another number of
workers the last bit differs, and with it the bytes of the shards. Here the accumulators are
exact integers, so that merging is associative and commutative, and there is one rounding, at the
end. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np

from beam_pipeline.columns.export import LABEL_VOCABULARY, vocabulary_text
from beam_pipeline.planning.classes import ClassOrder
from imageshards import storage

# np.frexp writes a float32 as m * 2**(e - 24) with a 24-bit integer m and e >= -148
# (denormals included), so every float32 is a multiple of 2**-172.
_UNIT_EXPONENT = 172
_MANTISSA_BITS = 24
# 2**14 squares of 24-bit mantissas stay below 2**63.
_CHUNK = 1 << 14

_Bounds = tuple[float, float]


class ExactSums(NamedTuple):
    """Exact sums of float32 values.

    Attributes:
        num_values: How many there are.
        total: Sum, in units of 2**-172.
        squares: Sum of squares, in units of 2**-344.
    """

    num_values: int = 0
    total: int = 0
    squares: int = 0

    def plus(self, other: ExactSums) -> ExactSums:
        """The sums over the values of both."""
        return ExactSums(
            self.num_values + other.num_values,
            self.total + other.total,
            self.squares + other.squares,
        )

    def mean(self) -> Fraction:
        """Exact mean; 0 if there are no values."""
        return Fraction(self.total, max(self.num_values, 1) << _UNIT_EXPONENT)

    def variance(self) -> Fraction:
        """Exact population variance; 0 if there are no values."""
        count = max(self.num_values, 1)
        return Fraction(count * self.squares - self.total**2, count**2 << (2 * _UNIT_EXPONENT))


def exact_sums(values: np.ndarray) -> ExactSums:
    """Exact sums of a float32 array of any shape, all of whose values are finite."""
    flat = np.asarray(values, np.float32).ravel()
    chunks = (flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK))
    return functools.reduce(ExactSums.plus, map(_exact_sums_of_chunk, chunks), ExactSums())


def _exact_sums_of_chunk(values: np.ndarray) -> ExactSums:
    mantissas, exponents = np.frexp(values)
    integers = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
    total = squares = 0
    for exponent in np.unique(exponents).tolist():
        of_exponent = integers[exponents == exponent]
        shift = exponent - _MANTISSA_BITS + _UNIT_EXPONENT
        total += int(of_exponent.sum()) << shift
        squares += int((of_exponent * of_exponent).sum()) << (2 * shift)
    return ExactSums(values.size, total, squares)


class ZScoreFn(beam.CombineFn):
    """Batches of float32 → float64 `[mean, standard deviation]` of the population.

    Where all values are equal, or there are none, the deviation is 1, so that scaling gives 0.
    """

    def create_accumulator(self) -> ExactSums:
        return ExactSums()

    def add_input(self, accumulator: ExactSums, element: np.ndarray) -> ExactSums:
        return accumulator.plus(exact_sums(element))

    def merge_accumulators(self, accumulators: Iterable[ExactSums]) -> ExactSums:
        return functools.reduce(ExactSums.plus, accumulators, ExactSums())

    def extract_output(self, accumulator: ExactSums) -> np.ndarray:
        deviation = math.sqrt(accumulator.variance())
        return np.array([float(accumulator.mean()), deviation or 1.0], np.float64)


class MinMaxFn(beam.CombineFn):
    """Batches of float32 → float64 `[minimum, maximum - minimum]`.

    Where all values are equal, or there are none, the range is 1, so that scaling gives 0.
    """

    def create_accumulator(self) -> _Bounds:
        return (math.inf, -math.inf)

    def add_input(self, accumulator: _Bounds, element: np.ndarray) -> _Bounds:
        low, high = accumulator
        return (
            min(low, float(element.min(initial=math.inf))),
            max(high, float(element.max(initial=-math.inf))),
        )

    def merge_accumulators(self, accumulators: Iterable[_Bounds]) -> _Bounds:
        lows, highs = zip(*accumulators, strict=True)
        return min(lows), max(highs)

    def extract_output(self, accumulator: _Bounds) -> np.ndarray:
        low, high = accumulator
        if low > high:
            return np.array([0.0, 1.0], np.float64)
        # min(0.0, -0.0) depends on their order; adding 0.0 turns -0.0 into 0.0.
        return np.array([low + 0.0, (high - low) or 1.0], np.float64)


class LabelVocabulary(beam.PTransform):
    """TFT analyzer: tuples of one array of labels (bytes) → path of the vocabulary file."""

    def __init__(self, order: ClassOrder, directory: str):
        super().__init__()
        self._order = order
        self._directory = directory

    def expand(self, tensors: beam.PCollection[tuple[np.ndarray]]) -> beam.PCollection[np.ndarray]:
        return (
            tensors
            | "Labels" >> beam.FlatMap(_decoded_labels)
            | "Union" >> beam.CombineGlobally(beam.combiners.ToSetCombineFn())
            | "WriteVocabulary" >> beam.Map(write_vocabulary, self._order, self._directory)
        )


def _decoded_labels(tensors: tuple[np.ndarray]) -> set[str]:
    return {label.decode() for label in set(tensors[0].tolist())}


def write_vocabulary(labels: set[str], order: ClassOrder, directory: str) -> np.ndarray:
    """Writes one class name per line to `directory/label` and returns its path."""
    path = storage.join(directory, LABEL_VOCABULARY)
    storage.write(path, vocabulary_text(order.names(labels)))
    return np.array(path)


class ScaleStatistics(beam.PTransform):
    """TFT analyzer: tuples of one float32 array → one float64 array `[offset, divisor]`."""

    def __init__(self, combine_fn: Callable[[], beam.CombineFn]):
        super().__init__()
        self._combine_fn = combine_fn

    def expand(self, tensors: beam.PCollection[tuple[Any]]) -> beam.PCollection[np.ndarray]:
        return (
            tensors
            | "Values" >> beam.Map(lambda arrays: arrays[0])
            | "Combine" >> beam.CombineGlobally(self._combine_fn())
        )
