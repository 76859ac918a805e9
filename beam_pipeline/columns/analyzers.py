"""Analyses columns for tensorflow-transform (TFT): the order of classes, and exact statistics.

TFT's own mean and variance add floats in the order of their arrival. With another number of workers
the last bit would differ, and so would the bytes of the shards. The analyzers here add exact
integers and round once, at the end. This module does not import TensorFlow.
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

# Number of values, their sum in units of 2**-149, and the sum of their squares in units of 2**-298.
Sums = tuple[int, int, int]


class ZScoreFn(beam.CombineFn):
    """Batches of float32 → float64 `[mean, standard deviation]` of the population.

    NaN is a missing value and is not counted; infinities are not allowed. If all values are equal,
    or there are none, the deviation is 1, so that scaled values are 0.
    """

    def create_accumulator(self) -> Sums:
        return (0, 0, 0)

    def add_input(self, accumulator: Sums, element: np.ndarray) -> Sums:
        # A float64 stores every multiple of 2**-149 exactly, and a Python int every sum of them.
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
    """TFT analyzer: tuples of one float32 array → one float64 array, as `ZScoreFn` returns it."""

    def expand(self, tensors: beam.PCollection[tuple[np.ndarray]]) -> beam.PCollection[np.ndarray]:
        return (
            tensors
            | "Values" >> beam.Map(lambda arrays: arrays[0])  # float32 array of a batch
            | "Combine" >> beam.CombineGlobally(ZScoreFn())  # [mean, deviation]
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
            | "Union" >> beam.CombineGlobally(beam.combiners.ToSetCombineFn())  # one set of str
            | "WriteVocabulary" >> beam.Map(write, self._order, self._directory)  # path
        )


def write_vocabulary(labels: set[str], order: ClassOrder, directory: str) -> np.ndarray:
    """Writes a file with one class name per line to `directory`; returns the path."""
    path = storage.join(directory, LABEL_VOCABULARY)
    storage.write(path, vocabulary_text(order.names(labels)))
    return np.array(path)
