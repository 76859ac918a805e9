"""Makes a model's inputs besides the picture from raw columns, by a tensorflow-transform graph.

Plain TensorFlow loads the graph, since importing tensorflow_transform would switch this process to
Keras 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from imageshards.errors import UserError
from trainer.dataset.spec import FeatureSpec, ModelInputs, input_name


class Columns(tf.Module):
    """The inputs of a model besides its picture.

    The transform makes some inputs from raw columns. A request gives all further inputs as the
    records hold them.

    Args:
        inputs: The inputs of the model.
        transform: Folder of the tensorflow-transform graph, or None.

    Attributes:
        signature: Name → specification of each tensor in a request. Columns have their own names
            with `_` for `/`, and are dense: a variable length is padded with 0 or "" at the end.
        given: Names of the features that a request gives as the records hold them.

    Raises:
        UserError: The graph cannot be loaded.
    """

    def __init__(self, inputs: ModelInputs, transform: str | None):
        super().__init__()
        if inputs.boxes is not None:
            raise UserError(
                argument="model_path",
                received="a model that takes or finds bounding boxes, which are not served",
                expected="a model of classes, labels or values",
                remedy="load the model with Keras in your own program",
            )
        self.signature: dict[str, tf.TensorSpec] = {}
        self._inputs = inputs
        self._loaded = _load(transform) if transform and inputs.features else None
        self._raw: dict[str, tf.TensorSpec | tf.SparseTensorSpec] = {}
        self._transformed: list[str] = []
        self._needed: set[str] = set()
        if self._loaded is not None:
            function = self._loaded.transform_fn
            self._raw = dict(function.structured_input_signature[0][0])
            self._transformed = [n for n in inputs.features if n in function.structured_outputs]
            self._needed = _needed(function, self._transformed)
        self.given = tuple(name for name in inputs.features if name not in self._transformed)
        for name in sorted(self._needed):
            raw = self._raw[name]
            rest = (None,) if isinstance(raw, tf.SparseTensorSpec) else raw.shape[1:]
            self.signature[input_name(name)] = tf.TensorSpec(
                (None, *rest), raw.dtype, input_name(name)
            )
        for name in self.given:
            spec = inputs.features[name]
            sides = (None,) if spec.shape is None else spec.shape
            self.signature[input_name(name)] = tf.TensorSpec(
                (None, *sides), spec.dtype, input_name(name)
            )

    def __call__(self, columns: Mapping[str, tf.Tensor], batch: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the model's inputs besides `image`: [b, *shape], or padded [b, length].

        Args:
            columns: Tensors by the names in `signature`.
            batch: The number of examples, int32.
        """
        features: dict[str, tf.Tensor | tf.SparseTensor] = {
            name: columns[input_name(name)] for name in self.given
        }
        if self._loaded is not None and self._transformed:
            # The graph takes all columns of the dataset; columns without effect are empty.
            raw = {}
            for name, spec in self._raw.items():
                if name in self._needed:
                    raw[name] = _as_raw(columns[input_name(name)], spec)
                    continue
                is_list = isinstance(spec, tf.SparseTensorSpec)
                shape = tf.stack([batch, *([0] if is_list else spec.shape[1:].as_list())])
                raw[name] = _as_raw(tf.fill(shape, _zero(spec.dtype)), spec)
            made = self._loaded.transform_fn(raw)
            features |= {name: made[name] for name in self._transformed}
        return {
            input_name(name): _as_input(features[name], spec, self._inputs)
            for name, spec in self._inputs.features.items()
        }


def _load(folder: str) -> Any:
    try:
        return tf.saved_model.load(folder)
    except (OSError, ValueError, tf.errors.OpError) as e:
        raise UserError(
            argument="model_path",
            received=f"a model beside a tensorflow-transform graph, {folder}, which cannot be "
            f"loaded ({str(e).splitlines()[0]})",
            remedy="copy the graph again from transform/transform_fn of the dataset",
        ) from e


def _needed(function: tf.types.experimental.ConcreteFunction, outputs: Iterable[str]) -> set[str]:
    """Returns the raw columns that the outputs depend on, by following the graph backwards."""
    specs = function.structured_outputs
    flat = [name for name in sorted(specs) for _ in tf.nest.flatten(specs[name], True)]
    pending = [t.op for name, t in zip(flat, function.outputs, strict=True) if name in outputs]
    seen: set[str] = set()
    while pending:
        operation = pending.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            # Control inputs are left out, because they order side effects and carry no value.
            pending += [tensor.op for tensor in operation.inputs]
    raw = function.structured_input_signature[0][0]
    columns = [name for name in sorted(raw) for _ in tf.nest.flatten(raw[name], True)]
    return {
        name
        for name, placeholder in zip(columns, function.inputs, strict=False)
        if placeholder.op.name in seen
    }


def _as_raw(
    column: tf.Tensor, spec: tf.TensorSpec | tf.SparseTensorSpec
) -> tf.Tensor | tf.SparseTensor:
    """Converts a column for the transform, removing the padding of a variable length."""
    if not isinstance(spec, tf.SparseTensorSpec):
        return column
    return tf.RaggedTensor.from_tensor(column, padding=_zero(spec.dtype)).to_sparse()


def _zero(dtype: tf.DType) -> tf.Tensor:
    return tf.constant("" if dtype == tf.string else 0, dtype)


def _as_input(
    value: tf.Tensor | tf.SparseTensor | tf.RaggedTensor, spec: FeatureSpec, inputs: ModelInputs
) -> tf.Tensor:
    """Converts a feature to a model input, exactly as the trainer's reader batches it."""
    dtype = tf.as_dtype(spec.dtype)
    if spec.shape is not None:
        return tf.ensure_shape(tf.cast(value, dtype), (None, *spec.shape))
    if isinstance(value, tf.SparseTensor):
        value = tf.RaggedTensor.from_sparse(value)
    elif not isinstance(value, tf.RaggedTensor):
        value = tf.RaggedTensor.from_tensor(value, padding=_zero(value.dtype))
    return tf.cast(value, dtype).to_tensor(shape=[None, inputs.sequence_length])
