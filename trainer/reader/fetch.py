"""Taking a batch, where TensorFlow's own words may be unreadable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def next_batch(iterator: Iterator[Any]) -> Any:
    """The next batch, or None at the end.

    Raises:
        tf.errors.OpError: A record cannot be read or understood. TensorFlow quotes a broken
            record in its message, which Python cannot decode; that is the same error.
    """
    try:
        return next(iterator, None)
    except UnicodeDecodeError as e:
        raise tf.errors.InvalidArgumentError(None, None, "Could not parse example input") from e
