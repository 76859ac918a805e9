"""Applies a model to image files: prepares and predicts them here, or exports a SavedModel.

Files are prepared as a build prepares photos.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import keras
import tensorflow as tf

from imageshards import storage
from imageshards.errors import ImageError, UserError
from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from imageshards.storage.concurrency import available_cores
from trainer.augment.decode import batch_pictures
from trainer.dataset.spec import ModelCard, ModelInputs
from trainer.serving.columns import Columns
from trainer.serving.preprocess import record_jpeg

IMAGE_BYTES = "image_bytes"
SIGNATURE = "serving_default"
LABELS_FILE = "labels.txt"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The prediction for one file.

    Attributes:
        file: Path of the file, as given.
        found: Probabilities or values, in the order of the outputs; empty for a broken file.
        error: Why the file could not be read; empty if it could.
    """

    file: str
    found: Sequence[float] = ()
    error: str = ""


class Predictor:
    """A predictor of files, in batches, with a model from `load_for_serving`.

    Raises:
        UserError: The model needs more than pictures.
    """

    def __init__(self, model: keras.Model, card: ModelCard):
        inputs = card.inputs
        columns = Columns(inputs, None)
        if columns.signature:
            raise UserError(
                argument="model_path",
                received=f"a model that takes {', '.join(columns.signature)} besides the picture, "
                "which files do not have",
                remedy="use imageshards export, whose signature takes the other inputs",
            )
        self._options = ImageOptions.from_manifest(inputs.image.options)
        pictures = batch_pictures(inputs.image, inputs.size, inputs.eval_crop)

        def predict(records: tf.Tensor) -> tf.Tensor:
            images = pictures(records, tf.zeros_like(records, tf.int64))
            if not columns.reads_picture:
                return answer(model, images, card)
            return answer(model, {"image": images, **columns({}, records)}, card)

        # A batch dimension of None makes one trace serve batches of any size.
        self._predict = tf.function(predict, [tf.TensorSpec((None,), tf.string)], autograph=False)

    def predict(self, files: Sequence[str], batch_size: int) -> Iterator[Prediction]:
        """Yields a prediction for each local or remote file, in order, also for broken files."""
        # Threads suffice, because Pillow releases Python's lock while it works on pixels.
        with concurrent.futures.ThreadPoolExecutor(available_cores()) as pool:
            for start in range(0, len(files), batch_size):
                batch = files[start : start + batch_size]
                read = list(pool.map(self._record, batch))
                records = [record for record in read if isinstance(record, bytes)]
                # Rows exist only for the files that could be read.
                rows = iter(self._predict(tf.constant(records)).numpy() if records else ())
                for file, found in zip(batch, read, strict=True):
                    if isinstance(found, str):
                        yield Prediction(file, error=found)
                    else:
                        yield Prediction(file, next(rows).tolist())

    def _record(self, file: str) -> bytes | str:
        """Returns the JPEG that a build would write, or why the file cannot be used."""
        try:
            return encode_image(storage.read(file), self._options).data
        except OSError as e:
            return e.strerror or str(e)
        except ImageError as e:
            return e.message


def write_saved_model(
    model: keras.Model, card: ModelCard, transform: str | None, path: str
) -> list[str]:
    """Writes a SavedModel whose signature takes image files; returns lines that describe it.

    The names of the outputs are saved as the variable `classes`, and as an asset, one per line.
    `transform` is the folder of the dataset's tensorflow-transform graph, or None.

    Raises:
        OSError: The folder cannot be written.
    """
    # Saving the model itself would trace each of its layers once more.
    saved = tf.Module()
    saved.weights = [variable.value for variable in model.variables]
    saved.columns = columns = Columns(card.inputs, transform)
    saved.classes = tf.Variable(card.names, trainable=False, name="classes")
    function = _serve(model, card, columns, saved.classes)
    with tempfile.TemporaryDirectory() as folder:
        labels = os.path.join(folder, LABELS_FILE)
        with open(labels, "w", encoding="utf-8") as f:
            f.writelines(f"{name}\n" for name in card.names)
        saved.labels = tf.saved_model.Asset(labels)
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
        records, inputs = _read_files(image_bytes, card.inputs)
        if columns.signature or columns.reads_picture:
            inputs = {"image": inputs, **columns(given, records)}
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


def _read_files(files: tf.Tensor, inputs: ModelInputs) -> tuple[tf.Tensor, tf.Tensor]:
    """Converts files to records, string [b], and pictures, uint8 [b, *size, channels].

    Files that cannot be decoded fail the batch, with an error that names their indices.
    """
    pictures = batch_pictures(inputs.image, inputs.size, inputs.eval_crop)
    options = ImageOptions.from_manifest(inputs.image.options)

    def read(index: tf.Tensor, file: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        record = record_jpeg(file, options)
        return index, record, pictures(record[None], tf.zeros((1,), tf.int64))[0]

    shape = (*inputs.size, inputs.image.channels)
    # TensorFlow's decoders do not name the broken element of a batch. So each file becomes an
    # element of a dataset that skips errors, and the missing indices are the broken files. The
    # additional last element keeps the dataset from being empty.
    end = (tf.constant(-1, tf.int64), tf.constant(b""), tf.zeros(shape, tf.uint8))
    whole = (
        tf.data.Dataset.from_tensor_slices(files)
        .enumerate()
        .map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .ignore_errors()
        .concatenate(tf.data.Dataset.from_tensors(end))
    )
    count = tf.size(files, tf.int64)
    indices, records, read_pictures = whole.batch(count + 1).get_single_element()
    broken, _ = tf.raw_ops.ListDiff(x=tf.range(count), y=indices)
    message = f"{IMAGE_BYTES} received files that are not whole pictures, at the indices"
    checked = tf.debugging.Assert(tf.equal(tf.size(broken), 0), [message, broken], summarize=64)
    with tf.control_dependencies([checked]):
        return tf.identity(records[:-1]), tf.ensure_shape(read_pictures[:-1], (None, *shape))


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
    lines.append(f"{noun:<8} {len(card.names)}, also in assets/{LABELS_FILE}")
    if columns.given:
        lines.append(
            f"note: no transform makes {', '.join(columns.given)}; give the values "
            "that the records have"
        )
    return lines
