"""The EXIF orientation of a JPEG, read inside a TensorFlow graph.

So that a served model turns a photo upright by itself, as the builder of its data set did.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

ORIENTATION_TAG = 0x0112

# EXIF orientation 1..8 → (swap the axes, then mirror left-right, then mirror top-bottom):
# what makes the stored pixels upright. CIPA DC-008 (Exif 2.32), tag 0x0112.
_TURNS = (
    (False, False, False),
    (False, True, False),
    (False, True, True),
    (False, False, True),
    (True, False, False),
    (True, True, False),
    (True, True, True),
    (True, False, True),
)

_HEADER = b"Exif\0\0"
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9
_ENTRY_BYTES = 12


def orientation(encoded: Any) -> Any:
    """The EXIF orientation of a JPEG.

    Looks through the segments before the first scan for the first EXIF block (JPEG,
    ITU T.81, annex B), and in it for the tag (TIFF 6.0, section 2). Never fails, whatever
    the file holds.

    Args:
        encoded: The file, string scalar.

    Returns:
        int32 scalar 1..8; 1, as stored, where there is none or it is out of range.
    """
    block = _exif_block(encoded)
    return tf.cond(tf.strings.length(block) >= 8, lambda: _tag(block), lambda: tf.constant(1))


def swaps_axes(number: Any) -> Any:
    """Whether the upright picture's width is the stored height; bool scalar."""
    return number >= 5


def upright(picture: Any, number: Any) -> Any:
    """Turns and mirrors a picture as its orientation says.

    Args:
        picture: [height, width, channels], as stored.
        number: EXIF orientation, int32 scalar 1..8.

    Returns:
        The picture upright; orientations 5 to 8 swap height and width.
    """
    swap, mirror_x, mirror_y = tf.unstack(tf.gather(tf.constant(_TURNS), number - 1))
    picture = tf.cond(swap, lambda: tf.transpose(picture, (1, 0, 2)), lambda: picture)
    picture = tf.cond(mirror_x, lambda: tf.reverse(picture, [1]), lambda: picture)
    return tf.cond(mirror_y, lambda: tf.reverse(picture, [0]), lambda: picture)


def _exif_block(encoded: Any) -> Any:
    """The first EXIF block without its header; empty where there is none."""
    length = tf.strings.length(encoded)

    def more(position: Any, block: Any) -> Any:
        return tf.logical_and(position >= 0, position + 4 <= length)

    def step(position: Any, block: Any) -> Any:
        head = tf.cast(
            tf.io.decode_raw(tf.strings.substr(encoded, position, 4), tf.uint8), tf.int32
        )
        marker, size = head[1], head[2] * 256 + head[3]
        body = tf.strings.substr(encoded, tf.minimum(position + 4, length), tf.maximum(size - 2, 0))
        is_exif = tf.logical_and(
            tf.equal(marker, _APP1), tf.equal(tf.strings.substr(body, 0, 6), _HEADER)
        )
        # 0xFF may be repeated before a marker; some markers stand alone, without a size.
        alone = (marker == 0) | (marker == 1) | ((marker >= 0xD0) & (marker <= 0xD8))
        onward = tf.where(alone, 2, 2 + size)
        onward = tf.where((head[0] != 0xFF) | (marker == 0xFF), 1, onward)
        over = is_exif | (marker == _SCAN) | (marker == _END)
        over &= head[0] == 0xFF
        is_exif &= head[0] == 0xFF
        found = tf.cond(is_exif, lambda: tf.strings.substr(body, 6, size), lambda: block)
        return tf.where(over, -1, position + tf.maximum(onward, 1)), found

    start = tf.constant(2)
    return tf.while_loop(more, step, (start, tf.constant(b"")))[1]


def _tag(block: Any) -> Any:
    """The orientation in a TIFF header and its first directory; `block` has 8 bytes or more."""
    values = tf.cast(tf.io.decode_raw(block, tf.uint8), tf.int64)
    order = tf.strings.substr(block, 0, 2)
    little = tf.equal(order, b"II")
    known = tf.logical_or(little, tf.equal(order, b"MM"))
    total = tf.size(values, tf.int64)

    def number(parts: Any) -> Any:
        """Bytes along the last axis → their value in the file's byte order."""
        size = parts.shape[-1]
        big = tf.constant([256**i for i in reversed(range(size))], tf.int64)
        return tf.reduce_sum(parts * tf.where(little, tf.reverse(big, [0]), big), -1)

    directory = number(tf.ensure_shape(values[4:8], [4]))
    known = tf.logical_and(known, directory + 2 <= total)
    start = tf.where(known, directory, 0)
    count = number(tf.ensure_shape(values[start : start + 2], [2]))
    first = start + 2
    whole = tf.minimum(count, (total - first) // _ENTRY_BYTES)
    entries = tf.reshape(values[first : first + whole * _ENTRY_BYTES], (-1, _ENTRY_BYTES))
    entries = entries[tf.equal(number(entries[:, :2]), ORIENTATION_TAG)][:1]
    kind = number(entries[:, 2:4])
    as_byte, as_short, as_long = (number(entries[:, 8 : 8 + size]) for size in (1, 2, 4))
    value = tf.where(kind == 1, as_byte, tf.where(kind == 4, as_long, as_short))
    sensible = value[(value >= 1) & (value <= 8)]
    # The highest of none is the lowest number there is; of one, it is that one.
    found = tf.maximum(tf.reduce_max(sensible), 1)
    return tf.cast(tf.where(known, found, 1), tf.int32)
