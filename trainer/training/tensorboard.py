"""TensorBoard's event files, for those who have the extra `tensorboard` installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from imageshards.errors import UserError

# A panel of more pictures is slow to load, and nobody looks at them.
MAX_IMAGES = 16


def check() -> None:
    """Proves that event files can be written.

    Raises:
        UserError: TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "--tensorboard needs the package tensorboard, which is not installed; expected it "
            "to be: pip install 'imageshards[tensorboard]', or leave the flag out "
            "(metrics.jsonl is written always)."
        )


class Writer:
    """Writes one event file, which TensorBoard follows while it grows.

    A run that goes on writes a further file into the same folder; TensorBoard shows both as
    one run.

    Args:
        folder: Local; made where it is missing.
    """

    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        self._writer = tf.summary.create_file_writer(folder)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Adds numbers of one step, by name."""
        import tensorflow as tf

        with self._writer.as_default():
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)
        self._writer.flush()

    def images(self, step: int, name: str, pictures: Any) -> None:
        """Adds a panel of the first `MAX_IMAGES` pictures, uint8 [n, height, width, channels]."""
        import tensorflow as tf

        with self._writer.as_default():
            tf.summary.image(name, pictures, step=step, max_outputs=MAX_IMAGES)
        self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()
