"""Applies a model to pictures: prepares and predicts them here, or exports a SavedModel.

Files are prepared as a build prepares photos.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from imageshards.errors import ImageError, UserError
from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from imageshards.storage.concurrency import available_cores, in_thread
from imageshards.tfrecord import RecordError
from trainer.augment.decode import batch_pictures
from trainer.dataset.spec import ModelCard, ModelInputs
from trainer.serving.columns import Columns
from trainer.serving.pictures import Pictures
from trainer.serving.preprocess import record_jpeg

IMAGE_BYTES = "image_bytes"
SIGNATURE = "serving_default"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The prediction for one picture.

    Attributes:
        key: Key of the picture; for a file its path, as given.
        found: Probabilities or values, in the order of the outputs; empty for a broken picture.
        error: Why the picture has no prediction; empty if it has one.
    """

    key: str
    found: Sequence[float] = ()
    error: str = ""


# A picture as a build stores it, with the values of further inputs; or why it cannot be used.
_Read = tuple[bytes, dict[str, np.ndarray]] | str


class Predictor:
    """A predictor of pictures, in batches, with a model from `load_for_serving`.

    `transform` is the folder of the tensorflow-transform graph that makes inputs of the columns of
    files, or None.

    Raises:
        UserError: The model needs inputs that the pictures do not have.
    """

    def __init__(
        self, model: keras.Model, card: ModelCard, pictures: Pictures, transform: str | None = None
    ):
        inputs, self._pictures = pictures.inputs or card.inputs, pictures
        columns = Columns(inputs, None if pictures.inputs else transform)
        self._signature = columns.signature
        if absent := [name for name in self._signature if name not in pictures.column_names]:
            raise UserError(
                argument="model_path",
                received=f"a model that takes {', '.join(absent)} besides the picture, "
                "which the pictures do not have",
                remedy="name a table with these columns by --input, or use imageshards export",
            )
        self._options = ImageOptions.from_manifest(inputs.image.options)
        decode = batch_pictures(inputs.image, inputs.size, inputs.eval_crop)

        def predict(records: tf.Tensor, given: Mapping[str, tf.Tensor]) -> tf.Tensor:
            shown = decode(records, tf.zeros_like(records, tf.int64))
            if inputs.features:
                shown = {"image": shown, **columns(given, tf.shape(records)[0])}
            return answer(model, shown, card)

        # A batch dimension of None makes one trace serve batches of any size.
        signature = [tf.TensorSpec((None,), tf.string), self._signature]
        self._predict = tf.function(predict, signature, autograph=False)

    def predict(self, batch_size: int, start: int = 0) -> Iterator[Prediction]:
        """Yields a prediction for each picture from `start` on, in order, also for broken ones."""
        count = len(self._pictures.keys)
        # Threads suffice, because Pillow releases Python's lock while it works on pixels.
        with ThreadPoolExecutor(available_cores()) as pool:
            # The next batch is read while the model works on the one before.
            ahead: collections.deque[list[Future[_Read]]] = collections.deque()
            try:
                for first in range(start, count, batch_size):
                    numbers = range(first, min(first + batch_size, count))
                    ahead.append([pool.submit(in_thread(self._read), one) for one in numbers])
                    if len(ahead) > 1:
                        yield from self._batch(first - batch_size, ahead.popleft())
                for rest in ahead:
                    yield from self._batch(count - len(rest), rest)
            finally:
                pool.shutdown(cancel_futures=True)

    def _batch(self, first: int, futures: Sequence[Future[_Read]]) -> Iterator[Prediction]:
        read = [future.result() for future in futures]
        # Rows exist only for the pictures that could be read.
        rows = iter(self._rows([one for one in read if not isinstance(one, str)]))
        keys = self._pictures.keys[first : first + len(read)]
        for key, one in zip(keys, read, strict=True):
            found = one if isinstance(one, str) else next(rows)
            if isinstance(found, str):
                yield Prediction(key, error=found)
            elif not np.isfinite(found).all():
                yield Prediction(key, error="the model's answer is not a number")
            else:
                yield Prediction(key, found.tolist())

    def _rows(self, read: Sequence[tuple[bytes, dict[str, np.ndarray]]]) -> list[np.ndarray | str]:
        if not read:
            return []
        given = {
            name: _stacked([columns[name] for _, columns in read], spec)
            for name, spec in self._signature.items()
        }
        try:
            return list(self._predict(tf.constant([one for one, _ in read]), given).numpy())
        except tf.errors.InvalidArgumentError as e:
            # TensorFlow does not name the record of an adopted dataset that it cannot decode.
            if len(read) == 1:
                return [str(e.message).splitlines()[0]]
            return [row for one in read for row in self._rows([one])]

    def _read(self, number: int) -> _Read:
        """Returns the JPEG of a build or of a record, with its values; or why it cannot be used."""
        try:
            encoded = self._pictures.read(number)
            if self._pictures.inputs is None:
                encoded = encode_image(encoded, self._options).data
            columns = self._pictures.columns(number) if self._signature else {}
            values = {name: _value(name, columns[name], s) for name, s in self._signature.items()}
            return encoded, values
        except ImageError as e:
            return e.message
        except (OSError, RecordError, ValueError) as e:
            return getattr(e, "strerror", None) or str(e)


def _value(name: str, cell: Any, spec: tf.TensorSpec) -> np.ndarray:
    """Converts a cell of a table, or the values of a record; raises ValueError for another type."""
    kind, shape = spec.dtype.as_numpy_dtype, spec.shape[1:]
    try:
        if shape.rank and isinstance(cell, str):
            cell = json.loads(cell)
        # A build stores NaN for a number that is missing, and an empty text for a text.
        if not shape.rank and spec.dtype != tf.int64 and cell in (None, ""):
            cell = "" if spec.dtype == tf.string else "nan"
        found = np.array(cell)
        if spec.dtype == tf.string:
            texts = [one if isinstance(one, bytes) else str(one) for one in found.ravel().tolist()]
            found = np.array(texts, object)
        elif found.dtype.kind == "U" or not found.size:  # an empty list has no type
            found = found.astype(kind)
        else:
            found = found.astype(kind, casting="same_kind")
        return found.reshape([-1 if side is None else side for side in shape])
    except (TypeError, ValueError) as e:
        expected = spec.dtype.name + f" {shape.as_list()}" * bool(shape.rank)
        raise ValueError(f"{name} is {cell!r}; expected {expected}") from e


def _stacked(values: Sequence[np.ndarray], spec: tf.TensorSpec) -> tf.Tensor:
    if spec.shape[1:].is_fully_defined():
        return tf.constant(np.stack(values), spec.dtype)
    rows = [value.tolist() for value in values]
    return tf.ragged.constant(rows, spec.dtype, ragged_rank=1).to_tensor()


def write_saved_model(
    model: keras.Model, card: ModelCard, transform: str | None, path: str
) -> list[str]:
    """Writes a SavedModel whose signature takes image files; returns lines that describe it.

    The names of the outputs are saved as the variable `classes`. `transform` is the folder of the
    dataset's tensorflow-transform graph, or None.

    Raises:
        OSError: The folder cannot be written.
    """
    # Saving the model itself would trace each of its layers once more.
    saved = tf.Module()
    saved.weights = [variable.value for variable in model.variables]
    saved.columns = columns = Columns(card.inputs, transform)
    saved.classes = tf.Variable(card.names, trainable=False, name="classes")
    function = _serve(model, card, columns, saved.classes)
    try:
        tf.saved_model.save(saved, path, signatures={SIGNATURE: function})
    except tf.errors.OpError as e:  # A full disk, for example; the graph is traced already.
        reason = e.message.splitlines()[0].rpartition("; ")[2].partition(" [Op:")[0]
        raise OSError(f"{type(e).__name__}: {reason}") from e
    return _described(card, columns, function)


def answer(
    model: keras.Model, inputs: tf.Tensor | Mapping[str, tf.Tensor], card: ModelCard
) -> tf.Tensor:
    """Applies a model to a batch; returns probabilities or values, float32 [b, outputs]."""
    activations = {"class": tf.nn.softmax, "labels": tf.sigmoid, "values": tf.identity}
    return activations[card.target](tf.cast(model(inputs, training=False), tf.float32))


def _serve(
    model: keras.Model, card: ModelCard, columns: Columns, classes: tf.Variable
) -> tf.types.experimental.ConcreteFunction:
    """Returns the concrete function from files and raw columns to the outputs of the signature."""

    def serve(image_bytes: tf.Tensor, **given: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = _read_files(image_bytes, card.inputs)
        if card.inputs.features:
            inputs = {"image": inputs, **columns(given, tf.shape(image_bytes)[0])}
        found = answer(model, inputs, card)
        if card.target == "values":
            return {"values": found}
        if card.target == "labels":
            # TensorFlow Serving wants the first dimension of each output to be the batch.
            return {"classes": tf.broadcast_to(classes, tf.shape(found)), "probabilities": found}
        best = tf.argmax(found, -1)
        return {
            "class": tf.gather(classes, best),
            "class_id": best,
            "probability": tf.reduce_max(found, -1),
            "probabilities": found,
        }

    files = tf.TensorSpec((None,), tf.string, IMAGE_BYTES)
    return tf.function(serve, autograph=False).get_concrete_function(files, **columns.signature)


def _read_files(files: tf.Tensor, inputs: ModelInputs) -> tf.Tensor:
    """Converts files to pictures, uint8 [b, *size, channels].

    Files that cannot be decoded fail the batch, with an error that names their indices.
    """
    pictures = batch_pictures(inputs.image, inputs.size, inputs.eval_crop)
    options = ImageOptions.from_manifest(inputs.image.options)

    def read(index: tf.Tensor, file: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return index, pictures(record_jpeg(file, options)[None], tf.zeros((1,), tf.int64))[0]

    shape = (*inputs.size, inputs.image.channels)
    # TensorFlow's decoders do not name the broken element of a batch. So each file becomes an
    # element of a dataset that skips errors, and the missing indices are the broken files. The
    # additional last element keeps the dataset from being empty.
    end = (tf.constant(-1, tf.int64), tf.zeros(shape, tf.uint8))
    whole = (
        tf.data.Dataset.from_tensor_slices(files)
        .enumerate()
        .map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .ignore_errors()
        .concatenate(tf.data.Dataset.from_tensors(end))
    )
    count = tf.size(files, tf.int64)
    indices, read_pictures = whole.batch(count + 1).get_single_element()
    broken, _ = tf.raw_ops.ListDiff(x=tf.range(count), y=indices)
    message = f"{IMAGE_BYTES} received files that are not whole pictures, at the indices"
    checked = tf.debugging.Assert(tf.equal(tf.size(broken), 0), [message, broken], summarize=64)
    with tf.control_dependencies([checked]):
        return tf.ensure_shape(tf.identity(read_pictures[:-1]), (None, *shape))


def _described(
    card: ModelCard, columns: Columns, function: tf.types.experimental.ConcreteFunction
) -> list[str]:
    positional, named = function.structured_input_signature
    taken = {spec.name: spec for spec in (*positional, *named.values())}
    outputs = sorted(function.structured_outputs.items())
    lines = []
    for name, spec in sorted(taken.items()):
        sides = ["batch", *("any" if side is None else str(side) for side in spec.shape[1:])]
        lines.append(f"input    {name}: {spec.dtype.name} [{', '.join(sides)}]")
    lines += [f"output   {name}: {spec.dtype.name}" for name, spec in outputs]
    noun = "classes" if card.target == "class" else card.target
    lines.append(f"{noun:<8} {len(card.names)}, in the variable classes")
    if columns.given:
        lines.append(
            f"note: no transform makes {', '.join(columns.given)}; give the values "
            "that the records have"
        )
    return lines
