"""One pass over a TFRecord file: its checksums, labels, features, and a row for every record."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imageshards import storage
from imageshards.example import Values, decode_record, dtype_of
from imageshards.index import IndexRows
from imageshards.jpeg import open_picture
from imageshards.manifest import CLASS_FEATURE, FILENAME_FEATURE, LABEL_FEATURE, SHA256_FEATURE
from imageshards.progress import with_progress
from imageshards.tfrecord import RecordError, frame_record, read_records

_REMOTE_THREADS = 8


class Roles(NamedTuple):
    """Which feature is the picture, the class, the source file's name, the class's name."""

    image: str
    label: str
    filename: str | None
    text: str | None


@dataclasses.dataclass
class ScannedFile:
    """What one file holds.

    Attributes:
        sha256: Of the whole file.
        rows: Of its index. Until `name_classes` has been there, `label` is the id or the name that
            a record has, and `class_name` that name, or the text beside the id.
        lengths: (feature, dtype, number of values) → records that have it so.
    """

    sha256: str = ""
    rows: IndexRows = dataclasses.field(default_factory=IndexRows)
    lengths: Counter[tuple[str, str, int]] = dataclasses.field(default_factory=Counter)


def scan_files(paths: Sequence[str], roles: Roles) -> dict[str, ScannedFile]:
    """Reads whole files.

    Raises:
        RecordError: A record is damaged, or has not one picture and one label.
        OSError: A file cannot be read.
    """
    # A disk is read by one thread; a store answers slowly, so several files are read at once.
    threads = 1 if all(map(storage.is_local, paths)) else _REMOTE_THREADS
    files = storage.map_concurrently(lambda path: _scan(path, roles), paths, threads)
    return dict(zip(paths, with_progress(files, len(paths), "files", "reading"), strict=True))


def _scan(path: str, roles: Roles) -> ScannedFile:
    file, digest = ScannedFile(), hashlib.sha256()
    for record in read_records(path):
        features = decode_record(path, record)
        # A file whose checksums are right is its frames, and nothing else.
        digest.update(frame_record(record.payload))
        try:
            row = _row_of(features, roles, f"{storage.name_of(path)}#{record.number}")
            file.rows.add({**features, **row}, record.next_offset_bytes - record.offset_bytes, None)
        except ValueError as e:
            raise RecordError(path, record.number, record.offset_bytes, str(e)) from e
        file.lengths.update((name, dtype_of(v), len(v)) for name, v in features.items())
    file.sha256 = digest.hexdigest()
    return file


def _row_of(features: Mapping[str, Values], roles: Roles, default_key: str) -> dict[str, Values]:
    """What the index says of somebody else's record, under the names that a build gives it.

    Raises:
        ValueError: It has not one picture and one label.
    """
    picture, label = _single(features, roles.image), _single(features, roles.label)
    if not isinstance(picture, bytes):
        raise ValueError(f"it has no feature {roles.image} with one picture")
    if not isinstance(label, int | bytes):
        raise ValueError(f"it has no feature {roles.label} with one value")
    try:
        width, height = open_picture(picture).size  # as its header says
    except (OSError, SyntaxError, ValueError):
        width, height = 0, 0  # training tells more of it
    key = _text_in(features, roles.filename) or default_key
    text = label if isinstance(label, bytes) else _text_in(features, roles.text).encode()
    return {
        FILENAME_FEATURE: [key.encode()],
        CLASS_FEATURE: [text],
        LABEL_FEATURE: features[roles.label],
        SHA256_FEATURE: [hashlib.sha256(picture).hexdigest().encode()],
        "image/width": [width],
        "image/height": [height],
    }


def _single(features: Mapping[str, Values], name: str | None) -> bytes | int | float | None:
    values = features.get(name or "", [])
    return values[0] if len(values) == 1 else None


def _text_in(features: Mapping[str, Values], name: str | None) -> str:
    value = _single(features, name)
    try:
        return value.decode() if isinstance(value, bytes) else ""
    except UnicodeDecodeError:
        return ""
