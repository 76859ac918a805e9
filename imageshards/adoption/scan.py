"""Reads a TFRecord file once: checks its records, and collects features and a row for each."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.example import Dtype, Values, decode_record, dtype_of
from imageshards.index import IndexRows
from imageshards.jpeg import open_picture
from imageshards.manifest import (
    CLASS_FEATURE,
    FILENAME_FEATURE,
    LABEL_FEATURE,
    LABELS_FEATURE,
    SHA256_FEATURE,
    Roles,
)
from imageshards.progress import with_progress
from imageshards.text import counted
from imageshards.tfrecord import frame_record, read_records

_REMOTE_THREADS = 8


@dataclasses.dataclass
class ScannedFile:
    """The findings of a scan over one file.

    Attributes:
        sha256: SHA-256 of the whole file.
        rows: Rows of its index. `name_keys` and `name_classes` or `name_hot_classes` complete them.
            Until then, `key` is the file name in the record or empty, `label` is the id or name in
            the record, and `class_name` this name or the text beside the id. With features of 0s
            and 1s, `label` is a list of ids and `class_name` empty.
        lengths: (feature, dtype, number of values) → records.
        formats: Picture format (`imageshards.jpeg.FORMATS`) → records.
        undecodable: Numbers of records whose picture the trainer cannot decode.
    """

    sha256: str = ""
    rows: IndexRows = dataclasses.field(default_factory=IndexRows)
    lengths: Counter[tuple[str, Dtype | None, int]] = dataclasses.field(default_factory=Counter)
    formats: Counter[str] = dataclasses.field(default_factory=Counter)
    undecodable: list[int] = dataclasses.field(default_factory=list)


def scan_files(paths: Sequence[str], roles: Roles, max_pixels: int) -> dict[str, ScannedFile]:
    """Reads whole files, and the header of each picture.

    Raises:
        RecordError: A record is damaged, or no `tf.train.Example`.
        UserError: A record lacks its picture or labels, or a picture is larger than `max_pixels`.
        OSError: A file cannot be read.
    """
    # Local files are read one after the other, but a slow store serves several at the same time.
    threads = 1 if all(map(storage.is_local, paths)) else _REMOTE_THREADS
    files = storage.map_concurrently(lambda path: _scan(path, roles, max_pixels), paths, threads)
    return dict(zip(paths, with_progress(files, len(paths), "files", "reading"), strict=True))


def _scan(path: str, roles: Roles, max_pixels: int) -> ScannedFile:
    file, digest = ScannedFile(), hashlib.sha256()
    for record in read_records(path):
        # A file with right checksums consists of its frames alone, so they give the file's hash.
        digest.update(frame_record(record.payload))
        features = decode_record(path, record)
        try:
            picture = _single(features, roles.image)
            if not isinstance(picture, bytes):
                raise ValueError(f"{_found(features, roles.image)}; expected one encoded picture")
            row = _row_of(features, roles, picture)
            picture_format, (width, height) = _header_of(picture, max_pixels)
        except ValueError as e:
            found, _, expected = str(e).partition("; expected ")
            raise UserError(
                argument="DIR",
                received=f"TFRecords where record {record.number} of {path} (at byte "
                f"{record.offset_bytes}) has {found}",
                expected=f"{expected} in each record",
                remedy="write the file again without this record, leave the file out by "
                + Arg("split", "NAME=GLOB")
                + ", raise "
                + Arg("max_image_mpx")
                + " for a large picture, or adopt all records without labels by "
                + Arg("label", "none"),
            ) from e
        # The sizes come from the picture, since records may lack them or be wrong.
        row |= {"image/width": [width], "image/height": [height]}
        extra = {name: values for name, values in features.items() if name != roles.image}
        file.rows.add(row, record.next_offset_bytes - record.offset_bytes, None, extra)
        file.formats[picture_format] += 1
        if not picture_format:
            file.undecodable.append(record.number)
        file.lengths.update((name, dtype_of(v), len(v)) for name, v in features.items())
    file.sha256 = digest.hexdigest()
    return file


def _header_of(picture: bytes, max_pixels: int) -> tuple[str, tuple[int, int]]:
    """Returns format, width and height in pixels from the header of a picture.

    If the trainer cannot decode the picture, the format is empty and the size 0. Training reports
    the record again, and may skip it.

    Raises:
        ValueError: The picture has more than `max_pixels` pixels.
    """
    try:
        opened = open_picture(picture)
    except (OSError, ValueError):
        return "", (0, 0)
    if math.prod(opened.size) > max_pixels:
        raise ValueError(f"a picture of {opened.size} pixels; expected up to {max_pixels:,}")
    found = str(opened.format)
    # TensorFlow decodes the palette indices of a BMP as if they were colours.
    has_palette = found == "BMP" and opened.mode in ("1", "P")
    # `trainer.augment.decode.decode_webp` says why these fail.
    is_animated = getattr(opened, "is_animated", False)
    is_opaque_animation = (found, opened.mode) == ("WEBP", "RGB") and is_animated
    return ("", (0, 0)) if has_palette or is_opaque_animation else (found, opened.size)


def _row_of(features: Mapping[str, Values], roles: Roles, picture: bytes) -> dict[str, Values]:
    """Returns the index row of a record, with a build's feature names; raises `ValueError`."""
    row: dict[str, Values] = {
        FILENAME_FEATURE: [_text_in(features, roles.filename).encode()],
        SHA256_FEATURE: [hashlib.sha256(picture).hexdigest().encode()],
    }
    if roles.hot:
        hot: list[bytes | int | float] = []
        for name in roles.hot:
            values = features.get(name, ())
            if not values or not {*values} <= {0, 1}:
                found = _found(features, name)
                raise ValueError(f"{found}; expected 0s and 1s, one for each class,")
            hot += values
        # The ids of the classes whose value is 1 count through all features.
        return row | {LABELS_FEATURE: [number for number, value in enumerate(hot) if value == 1]}
    if not roles.label:
        return row
    label = _single(features, roles.label)
    text = label if isinstance(label, bytes) else _text_in(features, roles.text).encode()
    # The index stores class names as UTF-8.
    if not isinstance(label, int | bytes) or text.decode(errors="replace").encode() != text:
        raise ValueError(f"{_found(features, roles.label)}; expected one class id or name in UTF-8")
    return row | {CLASS_FEATURE: [text], LABEL_FEATURE: features[roles.label]}


def _found(features: Mapping[str, Values], name: str) -> str:
    """Describes the values of a feature, for errors."""
    values = features.get(name, ())
    if not values:
        return f"no feature {name}"
    shown = ", ".join(repr(value)[:40] for value in values[:4]) + ", …" * (len(values) > 4)
    return f"the {counted(len(values), 'value')} {shown} in the feature {name}"


def _single(features: Mapping[str, Values], name: str | None) -> bytes | int | float | None:
    values = features.get(name or "", [])
    return values[0] if len(values) == 1 else None


def _text_in(features: Mapping[str, Values], name: str | None) -> str:
    value = _single(features, name)
    try:
        return value.decode() if isinstance(value, bytes) else ""
    except UnicodeDecodeError:
        return ""
