"""TFT analyzers of which TFT's own would not do: the order of classes, and exact statistics.

The mean and variance of TFT itself add floats in the order they arrive: with another number of
workers the last bit differs, and with it the bytes of the shards. Here the accumulators are exact
integers, and there is one rounding, at the end. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import apache_beam as beam
import numpy as np

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.columns.export import LABEL_VOCABULARY, vocabulary_text
from beam_pipeline.planning.classes import ClassOrder
from imageshards import storage

# Every float32, denormals included, is a multiple of 2**-149.
_UNIT_EXPONENT = 149

# How many values there are, their sum in units of 2**-149, and that of their squares, in 2**-298.
Sums = tuple[int, int, int]


class ZScoreFn(beam.CombineFn):
    """Batches of float32 → float64 `[mean, standard deviation]` of the population.

    NaN is a missing value and counts nowhere; infinities are not allowed. Where all values are
    equal, or there are none, the deviation is 1, so that scaling gives 0.
    """

    def create_accumulator(self) -> Sums:
        return (0, 0, 0)

    def add_input(self, accumulator: Sums, element: np.ndarray) -> Sums:
        # A float64 holds every such multiple, and an int of Python's every sum of them.
        present = element[~np.isnan(element)]
        scaled = present.astype(np.float64) * 2.0**_UNIT_EXPONENT
        units = [int(value) for value in scaled.tolist()]
        added = (len(units), sum(units), sum(unit * unit for unit in units))
        return self.merge_accumulators([accumulator, added])

    def merge_accumulators(self, accumulators: Iterable[Sums]) -> Sums:
        counts, totals, squares = zip(*accumulators, strict=True)
        return sum(counts), sum(totals), sum(squares)

    def extract_output(self, accumulator: Sums) -> np.ndarray:
        num_values, total, squares = accumulator
        count = max(num_values, 1)
        mean = Fraction(total, count << _UNIT_EXPONENT)
        variance = Fraction(count * squares - total**2, count**2 << (2 * _UNIT_EXPONENT))
        return np.array([float(mean), math.sqrt(variance) or 1.0], np.float64)


class MeanAndDeviation(beam.PTransform):
    """TFT analyzer: tuples of one float32 array → one float64 array, that of `ZScoreFn`."""

    def expand(self, tensors: beam.PCollection[tuple[np.ndarray]]) -> beam.PCollection[np.ndarray]:
        return (
            tensors
            | "Values" >> beam.Map(lambda arrays: arrays[0])
            | "Combine" >> beam.CombineGlobally(ZScoreFn())
        )


class LabelVocabulary(beam.PTransform):
    """TFT analyzer: tuples of one array of labels (bytes) → path of the vocabulary file."""

    def __init__(self, order: ClassOrder, directory: str):
        super().__init__()
        self._order = order
        self._directory = directory

    def expand(self, tensors: beam.PCollection[tuple[np.ndarray]]) -> beam.PCollection[np.ndarray]:
        write = StoreConfig.of_pipeline(tensors).step(write_vocabulary)
        return (
            tensors
            | "Labels" >> beam.FlatMap(lambda arrays: map(bytes.decode, set(arrays[0].tolist())))
            | "Union" >> beam.CombineGlobally(beam.combiners.ToSetCombineFn())
            | "WriteVocabulary" >> beam.Map(write, self._order, self._directory)
        )


def write_vocabulary(labels: set[str], order: ClassOrder, directory: str) -> np.ndarray:
    """Writes one class name per line to `directory/label` and returns its path."""
    path = storage.join(directory, LABEL_VOCABULARY)
    storage.write(path, vocabulary_text(order.names(labels)))
    return np.array(path)
