"""Defines the function that TFT traces: from raw columns to the features of a record.

Functions import TensorFlow when they run, so that only the process that traces imports it.

TFT's own mean and variance add floats in the order of their arrival. With another number of workers
the last bit would differ, and so would the bytes of the shards. The analyzers here add exact
integers and round once, at the end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.abc
import math
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import apache_beam as beam
import numpy as np

from beam_pipeline.columns.arrow import REF_COLUMN
from beam_pipeline.columns.export import LABEL_IDS, LABEL_TEXT, LABEL_VOCABULARY, PLACEHOLDER
from beam_pipeline.option_texts import ColumnSpec, invalid
from imageshards.commands.command_line import quiet_stderr, search_here
from imageshards.errors import UserError
from imageshards.manifest import NONE, RECORD_NAMES

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


RESERVED_FEATURES = RECORD_NAMES | {REF_COLUMN}

_RECORD_DTYPES = ("int64", "float32", "string")


def import_tensorflow_transform() -> None:
    """Imports TensorFlow and tensorflow-transform without the lines that they print."""
    if "tensorflow_transform" not in sys.modules:
        from beam_pipeline.columns import tensorflow_settings  # noqa: F401  # in the environment

        with quiet_stderr():
            import tensorflow_transform  # noqa: F401


def raw_feature_spec(columns: Sequence[ColumnSpec]) -> dict[str, Any]:
    """Returns the `tf.io` feature spec of the raw columns, which serving feeds to the graph."""
    import tensorflow as tf

    dtypes = {"int": tf.int64, "float": tf.float32, "string": tf.string}
    return {
        column.name: tf.io.VarLenFeature(dtypes[column.kind])
        if column.shape is None
        else tf.io.FixedLenFeature(column.shape, dtypes[column.kind])
        for column in columns
    }


def write_raw_metadata(_: Any, columns: Sequence[ColumnSpec], transform_dir: str) -> None:
    """Writes the spec of the raw columns to the file of `TFTransformOutput.raw_metadata`."""
    import tensorflow_transform as tft
    from tensorflow_transform.tf_metadata import metadata_io

    metadata = tft.DatasetMetadata.from_feature_spec(raw_feature_spec(columns))
    metadata_io.write_metadata(metadata, os.path.join(transform_dir, "metadata"))


def label_id(text: Any, vocabulary: Any) -> Any:
    """Returns a tensor of class ids, int64, dense or sparse; -1 for an unknown label."""
    import tensorflow_transform as tft

    tft.annotate_asset(LABEL_VOCABULARY, LABEL_VOCABULARY)
    return tft.apply_vocabulary(text, vocabulary)


class TransformModule(importlib.abc.InspectLoader):
    """Module of a user with a `preprocessing_fn`, as in TFX, loaded once per process.

    Workers need no file: this object carries the source of a `.py` file. A dotted module must be
    importable on every worker.
    """

    def __init__(self, name: str):
        self.name = name
        self.source: str | None = None
        if name.endswith(".py") or os.sep in name:
            try:
                with open(name, encoding="utf-8") as file:
                    self.source = file.read()
            except (OSError, UnicodeDecodeError) as e:
                raise self._unusable(f"could not be read ({e})") from e
        self.load()

    def load(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        try:
            module = self._module()
        except (Exception, SystemExit) as e:
            raise self._unusable(f"failed to load ({_cause(e)})") from e
        function = getattr(module, "preprocessing_fn", None)
        if not callable(function):
            raise self._unusable("has no such function")
        return function

    def _unusable(self, problem: str) -> UserError:
        expected = "a Python file or module with a function preprocessing_fn(inputs)"
        return invalid("transform_module", f"{self.name!r}, which {problem}", expected)

    def _module(self) -> types.ModuleType:
        if self.source is None:
            search_here()
            return importlib.import_module(self.name)
        # Dataclasses and pickles look the module up by name, so each content has its own name.
        name = f"transform_module_{hashlib.sha256(self.source.encode()).hexdigest()[:16]}"
        if name in sys.modules:
            return sys.modules[name]
        module = types.ModuleType(name)
        module.__file__ = self.name
        sys.modules[name] = module
        try:
            self.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    # `exec_module` of `InspectLoader` calls these two methods.

    def get_source(self, fullname: str) -> str | None:
        return self.source

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.source or "", self.name)


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """The `preprocessing_fn` of a build, which returns class ids and extra features.

    Outputs of a user's module replace the extra features. The vocabulary is a placeholder of one
    label; `export_labels` writes the classes of the dataset in its place.
    """

    columns: tuple[ColumnSpec, ...]
    label: str
    module: TransformModule | None

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        module = self.module
        if module is None:
            outputs = {
                spec.name: _default_feature(inputs[spec.name], spec) for spec in self.columns
            }
        else:
            function = module.load()
            # TFT refuses the table of the labels in a graph that has a vocabulary of its own.
            labels = self._label_ids(inputs)
            try:
                found: Any = function(dict(inputs))
            except Exception as e:
                did = f"raised {_cause(e)}"
                raise _bad_function(module.name, did, remedy="fix the function") from e
            if not isinstance(found, Mapping):
                did = f"returned a {type(found).__name__}"
                raise _bad_function(module.name, did, "a dict from feature names to tensors")
            outputs = {name: _checked_output(name, t, module.name) for name, t in found.items()}
            return labels | outputs
        return self._label_ids(inputs) | outputs

    def _label_ids(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if self.label == NONE:
            return {}
        return {LABEL_IDS[self.label]: label_id(inputs[LABEL_TEXT], str(PLACEHOLDER))}


def _default_feature(tensor: Any, spec: ColumnSpec) -> Any:
    """Returns the column, scaled to `(x - offset) / divisor` if asked; NaN stays, uncounted."""
    import tensorflow as tf
    import tensorflow_transform as tft

    if spec.scale == "none":
        return tensor
    is_sparse = isinstance(tensor, tf.SparseTensor)
    values = tensor.values if is_sparse else tensor
    if spec.scale == "minmax":
        present = tf.boolean_mask(values, tf.logical_not(tf.math.is_nan(values)))
        low, high = (tf.cast(find(present), tf.float64) for find in (tft.min, tft.max))
        # The minimum of 0.0 and -0.0 depends on their order, and that of no values is infinite.
        offset = tf.where((low == 0) | (low > high), tf.zeros_like(low), low)
        # If all values are equal, or there are none, the divisor is 1 and scaled values are 0.
        divisor = tf.where(high > low, high - low, tf.ones_like(low))
    else:
        (statistics,) = tft.experimental.ptransform_analyzer(
            inputs=[values],
            ptransform=MeanAndDeviation(),
            output_dtypes=[tf.float64],
            output_shapes=[[2]],
        )
        offset, divisor = statistics[0], statistics[1]
    # Float64 arithmetic makes the float32 result the correctly rounded one.
    scaled = tf.cast((tf.cast(values, tf.float64) - offset) / divisor, tf.float32)
    return tensor.with_values(scaled) if is_sparse else scaled


def _checked_output(name: Any, tensor: Any, module: str) -> Any:
    import tensorflow as tf

    def refuse(problem: str, expected: str) -> UserError:
        return _bad_function(module, f"returned {name!r} {problem}", expected)

    if not isinstance(name, str) or not name or name in RESERVED_FEATURES:
        raise refuse("as a feature, a name every record already has", "another name")
    if isinstance(tensor, tf.RaggedTensor):
        tensor = tensor.to_sparse()
    if not isinstance(tensor, tf.Tensor | tf.SparseTensor):
        raise refuse(f"as a {type(tensor).__name__}", "a tensor")
    if tensor.dtype.name not in _RECORD_DTYPES:
        raise refuse(f"of {tensor.dtype.name}", f"one of {', '.join(_RECORD_DTYPES)}")
    shape = tensor.shape
    if isinstance(tensor, tf.SparseTensor):
        if shape.rank != 2:
            raise refuse(f"with shape {shape}", "[batch, any] of a sparse tensor")
    elif not shape.rank or not shape[1:].is_fully_defined():
        raise refuse(f"with shape {shape}", "[batch, ...] with known inner sizes")
    return tensor


def _bad_function(module: str, did: str, expected: str = "", remedy: str = "") -> UserError:
    received = f"{module!r}, whose preprocessing_fn {did}"
    return invalid("transform_module", received, expected, remedy)


def _cause(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
