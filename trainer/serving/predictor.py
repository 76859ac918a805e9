"""Image files → classes, by the same graph as in a served model."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps

from imageshards import storage
from imageshards.errors import UserError
from trainer.augment.decode import batch_pictures
from trainer.dataset.spec import ModelCard
from trainer.serving.columns import Columns
from trainer.serving.preprocess import record_jpeg
from trainer.serving.servable import probabilities

# How the lines begin that TensorFlow adds to the reason of an error.
_WHERE = ("Graph execution error", "Detected at", "File ", "[[", "(")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted classes of one file.

    Attributes:
        file: Its path, as given.
        top: (class, class id, probability), most probable first; empty for a broken file.
        error: Why it could not be read; empty where it could.
    """

    file: str
    top: Sequence[tuple[str, int, float]] = ()
    error: str = ""


class Predictor:
    """Predicts files in batches; a broken file does not affect the others.

    Args:
        model: The `keras.Model`, logits out.
        card: How it was trained.

    Raises:
        UserError: The model needs more than pictures.
    """

    def __init__(self, model: Any, card: ModelCard):
        self._classes = card.classes
        self._columns = Columns(card.inputs, None)
        if self._columns.signature:
            raise UserError(
                f"--model_path received a model that takes {', '.join(self._columns.signature)} "
                "besides the picture, which files do not have; use imageshards export "
                "--format saved_model, whose signature takes them."
            )
        pictures = batch_pictures(card.inputs.image, card.inputs.size, card.inputs.eval_crop)
        options = card.inputs.image.options
        # Without options a file is read as a record is: it has to be a JPEG.
        self._max_pixels = int(options.get("max_pixels", 0))

        def read(file: Any) -> tuple[Any, Any]:
            record = record_jpeg(file, options)
            return pictures(record[None], tf.zeros((1,), tf.int64))[0], record

        def predict(images: Any, records: Any) -> Any:
            inputs = images
            if self._columns.reads_picture:
                inputs = {"image": images, **self._columns({}, records)}
            return probabilities(model, inputs)

        shape = (None, *card.inputs.size, card.inputs.image.channels)
        self._read = tf.function(read, [tf.TensorSpec((), tf.string)], autograph=False)
        self._predict = tf.function(
            predict,
            [tf.TensorSpec(shape, tf.uint8), tf.TensorSpec((None,), tf.string)],
            autograph=False,
        )

    def predict(self, files: Sequence[str], batch_size: int, count: int) -> Iterator[Prediction]:
        """Predicts `files`, in their order.

        Args:
            files: Paths, local or remote.
            batch_size: Files in memory at a time.
            count: Classes per file.
        """
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in range(0, len(files), batch_size):
                batch = files[start : start + batch_size]
                read = list(pool.map(self._load, batch))
                rows = iter(self._probabilities([x for x in read if not isinstance(x, str)]))
                for file, found in zip(batch, read, strict=True):
                    if isinstance(found, str):
                        yield Prediction(file, error=found)
                    else:
                        yield Prediction(file, top(next(rows), self._classes, count))

    def _load(self, file: str) -> tuple[Any, Any] | str:
        """The picture and its record, or why the file cannot be read."""
        try:
            data = storage.read(file)
        except OSError as e:
            return e.strerror or str(e)
        if not data:
            return "the file is empty"
        try:
            return self._read(tf.constant(data))
        except tf.errors.OpError as e:
            png = _as_png(data, self._max_pixels)
            return _reason(e) if png is None else self._read(tf.constant(png))

    def _probabilities(self, read: Sequence[tuple[Any, Any]]) -> Any:
        if not read:
            return np.zeros((0, len(self._classes)), np.float32)
        images, records = zip(*read, strict=True)
        return self._predict(tf.stack(images), tf.stack(records)).numpy()


def _as_png(data: bytes, max_pixels: int) -> bytes | None:
    """A picture that only Pillow decodes, such as a TIFF, upright; None where it does not, either.

    As the builder decodes it, which uses Pillow for all.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > max_pixels:
                return None
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I;16"):  # as in the builder: the whole range is kept
                upright = upright.convert("I").point(lambda v: v * (1 / 257) + 0.5).convert("L")
            alpha = upright.has_transparency_data
            written = io.BytesIO()
            if upright.mode not in ("I", "F"):  # which have no agreed range
                upright.convert("RGBA" if alpha else "RGB").save(written, "PNG", compress_level=1)
            return written.getvalue() or None
    except Exception:  # noqa: BLE001  # of a damaged file Pillow raises anything
        return None


def top(
    shares: Sequence[float], classes: Sequence[str], count: int
) -> list[tuple[str, int, float]]:
    """The `count` most probable classes of one picture: (name, id, probability), best first."""
    order = sorted(range(len(classes)), key=lambda i: (-shares[i], i))[:count]
    return [(classes[i], i, float(shares[i])) for i in order]


def _reason(error: tf.errors.OpError) -> str:
    """TensorFlow's message without where in the graph it came from, in one line."""
    lines = (line.strip() for line in error.message.splitlines())
    reasons = [line for line in lines if line and not line.startswith(_WHERE)]
    return re.sub(r"\{\{.*?\}\} *| *\[Op:.*", "", reasons[0])[:200] if reasons else "not decodable"
