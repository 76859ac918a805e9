"""The EXIF orientation of a JPEG, read inside a TensorFlow graph.

So that a served model turns a photo upright by itself, as the builder of its data set did.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from imageshards.images.decode import ORIENTATION_TAG
from imageshards.images.geometry import TURNS

_HEADER = b"Exif\0\0"
# Cameras write EXIF first; a segment before it has 64 KiB at most. Pictures behind the first one,
# as in an MPO, have EXIF of their own.
_HEAD_BYTES = 1 << 17
_ENTRY_BYTES = 12


def orientation(encoded: Any) -> Any:
    """The EXIF orientation of a JPEG: the tag in its first EXIF block (TIFF 6.0, section 2).

    An int32 scalar 1..8: 1, as stored, where there is none, it is out of range, or the file broken.
    """
    parts = tf.strings.split(tf.strings.substr(encoded, 0, _HEAD_BYTES), _HEADER, maxsplit=1)
    values = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(parts[1:]), tf.uint8), tf.int64)
    little = tf.reduce_all(tf.equal(values[:2], ord("I")))

    def number(parts: Any) -> Any:
        """Bytes along the last axis → their value in the file's byte order; of none, none."""
        big = 256 ** tf.reverse(tf.range(tf.shape(parts, tf.int64)[-1]), [0])
        return tf.reduce_sum(parts * tf.where(little, tf.reverse(big, [0]), big), -1)

    start = number(values[4:8]) + 2
    whole = tf.maximum((tf.size(values, tf.int64) - start) // _ENTRY_BYTES, 0)
    whole = tf.minimum(number(values[start - 2 : start]), whole)
    entries = tf.reshape(values[start : start + whole * _ENTRY_BYTES], (-1, _ENTRY_BYTES))
    entries = entries[tf.equal(number(entries[:, :2]), ORIENTATION_TAG)][:1]
    kind = number(entries[:, 2:4])
    as_byte, as_short, as_long = (number(entries[:, 8 : 8 + size]) for size in (1, 2, 4))
    value = tf.where(kind == 1, as_byte, tf.where(kind == 4, as_long, as_short))
    sensible = value[(value >= 1) & (value <= 8)]
    # The highest of none is the lowest number there is; of one, it is that one.
    return tf.cast(tf.maximum(tf.reduce_max(sensible), 1), tf.int32)


def swaps_axes(number: Any) -> Any:
    """Whether the upright picture's width is the stored height; bool scalar."""
    return number >= 5


def upright(picture: Any, number: Any) -> Any:
    """Turns and mirrors a stored picture [height, width, channels] as its orientation 1..8 says."""
    swap, mirror_x, mirror_y = tf.unstack(tf.gather(list(TURNS.values()), number - 1))
    picture = tf.cond(swap, lambda: tf.transpose(picture, (1, 0, 2)), lambda: picture)
    picture = tf.cond(mirror_x, lambda: tf.reverse(picture, [1]), lambda: picture)
    return tf.cond(mirror_y, lambda: tf.reverse(picture, [0]), lambda: picture)
