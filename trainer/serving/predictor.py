"""Predicts image files with a model, after preparing them as a build prepares photos."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from imageshards import storage
from imageshards.errors import ImageError, UserError
from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from imageshards.storage.concurrency import available_cores
from trainer.augment.decode import batch_pictures
from trainer.dataset.spec import ModelCard
from trainer.serving.columns import Columns
from trainer.serving.servable import answer


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
