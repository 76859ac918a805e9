"""Reads records of finished datasets by ranges of their shards, and copies them with new labels.

A planned shard takes records from everywhere in its inputs, in the order of a hash. This module
reads them in windows, and within a window reads neighbours in a shard by one request.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence

from beam_pipeline.images.read import read_error, read_images
from beam_pipeline.options import UrlOptions
from beam_pipeline.planning.refs import ImageRef, Label, names_of
from imageshards import storage, tfrecord
from imageshards.errors import ImageError
from imageshards.example import Values, decode_example, encode_example
from imageshards.manifest import (
    CLASS_FEATURE,
    FILENAME_FEATURE,
    LABEL_FEATURE,
    LABELS_FEATURE,
    NONE,
    ONE,
    record_features,
)
from imageshards.storage import map_concurrently
from imageshards.tfrecord import FRAME_BYTES

# Reject reason of a record whose bytes are damaged; unlike a read error, it is permanent.
DAMAGED = "damaged_record"

_WINDOW_BYTES = 16 << 20
_WINDOW_RECORDS = 1024
# Up to this many unwanted bytes between two records are read, as another request would cost more.
_MAX_GAP_BYTES = 64 << 10

_OF_LABELS = {LABEL_FEATURE, LABELS_FEATURE, CLASS_FEATURE}

_Read = Generator[tuple[ImageRef, bytes | ImageError], None, None]


def read_files_and_records(refs: Sequence[ImageRef], max_bytes: int, urls: UrlOptions) -> _Read:
    """Yields every reference, in order, with the bytes of its file or record, or with an error."""
    files = read_images([ref for ref in refs if not ref.is_record], max_bytes, urls)
    records = read_records([ref for ref in refs if ref.is_record])
    for ref in refs:
        yield next(records if ref.is_record else files)


def read_records(refs: Sequence[ImageRef]) -> _Read:
    """Yields references to records, in order, each with the record's payload or an error."""
    windows, ahead = itertools.tee(_windows(refs))
    # A window is read while the caller writes the window before.
    for window, found in zip(windows, map_concurrently(_read_window, ahead, 2), strict=True):
        yield from zip(window, found, strict=True)


def _windows(refs: Sequence[ImageRef]) -> Iterator[list[ImageRef]]:
    window: list[ImageRef] = []
    size_bytes = 0
    for ref in refs:
        if size_bytes >= _WINDOW_BYTES or len(window) >= _WINDOW_RECORDS:
            yield window
            window, size_bytes = [], 0
        window.append(ref)
        size_bytes += max(0, ref.size_bytes)
    if window:
        yield window


def _read_window(refs: Sequence[ImageRef]) -> list[bytes | ImageError]:
    # Neighbours in a shard share a request.
    ranges: list[list[ImageRef]] = []
    for ref in sorted(refs, key=lambda r: (r.uri, r.offset_bytes)):
        last = ranges[-1][-1] if ranges else ref
        is_same = (last.uri, last.version) == (ref.uri, ref.version)
        if ranges and is_same and ref.offset_bytes - _end_of(last) <= _MAX_GAP_BYTES:
            ranges[-1].append(ref)
        else:
            ranges.append([ref])
    are_local = all(storage.is_local(neighbours[0].uri) for neighbours in ranges)
    # Threads pay off only where each request waits for an answer.
    read = map(_read_range, ranges) if are_local else map_concurrently(_read_range, ranges)
    found = {place: payload for payloads in read for place, payload in payloads.items()}
    return [found[ref.uri, ref.offset_bytes] for ref in refs]


def _end_of(ref: ImageRef) -> int:
    return ref.offset_bytes + ref.size_bytes + FRAME_BYTES


def _read_range(refs: list[ImageRef]) -> dict[tuple[str, int], bytes | ImageError]:
    path, first = refs[0].uri, refs[0].offset_bytes
    try:
        data = storage.read_range(path, first, _end_of(refs[-1]), refs[0].version)
    except OSError as e:
        return {(path, ref.offset_bytes): read_error(e) for ref in refs}
    payloads: dict[tuple[str, int], bytes | ImageError] = {}
    for ref in refs:
        framed = data[ref.offset_bytes - first : _end_of(ref) - first]
        record = next(tfrecord.scan_records(io.BytesIO(framed), path), None)
        if isinstance(record, tfrecord.Record):
            payloads[path, ref.offset_bytes] = record.payload
        else:
            reason = record.reason if record else "the shard ends before it"
            payloads[path, ref.offset_bytes] = ImageError(DAMAGED, reason)
    return payloads


def copy_record(
    ref: ImageRef, payload: bytes, class_ids: Mapping[str, int]
) -> tuple[bytes, dict[str, Values]]:
    """Returns a record with its new label, and its features; the picture is unchanged."""
    labels = label_features(ref.label, class_ids)
    try:
        found = decode_example(payload)
    except ValueError as e:
        raise ImageError(DAMAGED, str(e)) from e
    # The dataset may have been replaced since it was listed.
    if found.get(FILENAME_FEATURE) != [ref.key.encode()]:
        raise ImageError(DAMAGED, f"another record is where {ref.key!r} was listed")
    needed = record_features(ONE if isinstance(ref.label, str) else NONE)
    lacking = [name for name in needed if not found.get(name)]
    if lacking:
        raise ImageError(DAMAGED, f"the record has no {lacking[0]}")
    # With the same labels the record stays the same, byte for byte.
    if {name: found[name] for name in _OF_LABELS & found.keys()} == labels:
        return payload, found
    features = {name: values for name, values in found.items() if name not in _OF_LABELS} | labels
    return encode_example(features), features


def label_features(label: Label, class_ids: Mapping[str, int]) -> dict[str, Values]:
    """Returns the features for one label, for several labels in the order of ids, or for none."""
    ids = sorted({class_ids[name]: name for name in names_of(label)}.items())
    names = [name.encode() for _, name in ids]
    if label is None:
        return {}
    feature = LABEL_FEATURE if isinstance(label, str) else LABELS_FEATURE
    return {feature: [number for number, _ in ids], CLASS_FEATURE: names}
