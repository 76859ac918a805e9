"""A shuffle on disk that counts: what a runner would move, hold and group."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from apache_beam.coders import Coder

from beam_pipeline.planning.batching import RefBatchCoder
from beam_pipeline.planning.refs import RefBatch

_HEAD = struct.Struct("<II")
# A partition is read at once.
_PARTITION_BYTES = 64_000_000


@dataclasses.dataclass
class Traffic:
    """What went through a shuffle or a materialised collection.

    Attributes:
        elements: How many.
        size_bytes: Of keys and values, encoded.
        largest_refs, largest_bytes: Of the largest grouped value; of an element if not grouped.
        keys: Distinct keys.
    """

    elements: int = 0
    size_bytes: int = 0
    largest_refs: int = 0
    largest_bytes: int = 0
    keys: int = 0


class DiskShuffle:
    """(key, RefBatch) pairs in files, grouped when they are read.

    Args:
        folder: Where the files are made.
        key_coder: As the pipeline encodes keys.
        expected_bytes: About how much will be written.
    """

    def __init__(self, folder: pathlib.Path, key_coder: Coder, expected_bytes: float):
        folder.mkdir(parents=True)
        count = max(1, round(expected_bytes / _PARTITION_BYTES))
        self._paths = [folder / f"{i:04d}" for i in range(count)]
        self._files = [path.open("wb") for path in self._paths]
        self._key_coder = key_coder
        self._coder = RefBatchCoder()
        self._of_key: collections.Counter[bytes] = collections.Counter()
        self._refs_of_key: collections.Counter[bytes] = collections.Counter()
        self._traffic = Traffic()

    def put(self, key: Any, batch: RefBatch) -> None:
        """Sends one element."""
        name, value = self._key_coder.encode(key), self._coder.encode(batch)
        file = self._files[zlib.crc32(name) % len(self._files)]
        file.write(_HEAD.pack(len(name), len(value)))
        file.write(name)
        file.write(value)
        self._traffic.elements += 1
        self._traffic.size_bytes += len(name) + len(value)
        self._of_key[name] += len(value)
        self._refs_of_key[name] += len(batch)

    def groups(self) -> Iterator[tuple[Any, list[RefBatch]]]:
        """All pairs, key by key; the files are removed behind."""
        for file in self._files:
            file.close()
        for path in self._paths:
            found: dict[bytes, list[bytes]] = collections.defaultdict(list)
            for name, value in _pairs(path.read_bytes()):
                found[name].append(value)
            path.unlink()
            for name in sorted(found):
                batches = [self._coder.decode(value) for value in found.pop(name)]
                yield self._key_coder.decode(name), batches

    @property
    def traffic(self) -> Traffic:
        """What was sent."""
        return dataclasses.replace(
            self._traffic,
            largest_refs=max(self._refs_of_key.values(), default=0),
            largest_bytes=max(self._of_key.values(), default=0),
            keys=len(self._of_key),
        )


def _pairs(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 0
    while place < len(data):
        key_bytes, value_bytes = _HEAD.unpack_from(data, place)
        middle = place + _HEAD.size + key_bytes
        yield data[place + _HEAD.size : middle], data[middle : middle + value_bytes]
        place = middle + value_bytes


class DiskList:
    """A collection that several steps read, in one file.

    Args:
        path: The file.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._file = path.open("wb")
        self._coder = RefBatchCoder()
        self.traffic = Traffic()

    def put(self, batch: RefBatch) -> None:
        """Adds an element."""
        value = self._coder.encode(batch)
        self._file.write(_HEAD.pack(0, len(value)))
        self._file.write(value)
        traffic = self.traffic
        traffic.elements += 1
        traffic.size_bytes += len(value)
        traffic.largest_refs = max(traffic.largest_refs, len(batch))
        traffic.largest_bytes = max(traffic.largest_bytes, len(value))

    def batches(self) -> Iterator[RefBatch]:
        """All elements, in order."""
        self._file.close()
        with self._path.open("rb") as file:
            while head := file.read(_HEAD.size):
                yield self._coder.decode(file.read(_HEAD.unpack(head)[1]))

    def remove(self) -> None:
        """Removes the file."""
        self._path.unlink()
