"""Gives the records of a split by number to other loaders, without TensorFlow and Beam."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np

from imageshards import storage, tfrecord
from imageshards.example import Values, decode_record
from imageshards.jpeg import DECODE_ERRORS, eight_bits, open_picture
from imageshards.text import counted
from trainer.dataset.pieces import record_sizes
from trainer.dataset.spec import IMAGE_INPUT, DatasetSpec, Split, find_feature

_DTYPES: dict[str, Any] = {"int64": np.int64, "float32": np.float32, "string": np.object_}


class RecordSource:
    """A sequence of records that `Data.source` returns.

    PyTorch calls this a map-style dataset, and grain a `RandomAccessDataSource`. Each record is one
    read of a byte range from its shard, and its checksums are checked. No file stays open between
    two reads, so many threads may use a source, and it can be forked, pickled and sent to other
    processes. A source needs 8 bytes of memory for each record.
    """

    def __init__(
        self,
        dataset: DatasetSpec,
        split: Split,
        features: Sequence[str] | None = None,
        decode: bool = False,
    ) -> None:
        names = tuple(dataset.features) if features is None else features
        self._features = {name: find_feature(name, dataset.features, "features") for name in names}
        self._decoded = dataset.image_feature if decode else None
        self._mode = "RGB" if dataset.image.channels == 3 else "L"
        self._paths = split.paths
        sizes = record_sizes(dataset, split)
        # Number of the first record of each shard, and the end of each record in its shard.
        self._firsts = np.cumsum([0, *map(len, sizes)])
        self._ends = np.concatenate([np.zeros(0, np.int64), *map(np.cumsum, sizes)])
        # grain stores the `repr` in its checkpoints, and compares it when it resumes.
        self._repr = f"<imageshards {dataset.data!r} {split.name}: {counted(len(self), 'record')}"
        self._repr += f", {dataset.fingerprint[:16]}>"

    def __repr__(self) -> str:
        return self._repr

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._record, range(len(self)))

    @overload
    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Reads a record by its number, or several records by a slice, as a list does.

            source[17], source[-1], source[2:5], source[::-1]

        Args:
            index: The number of a record, below 0 from the end; or a slice. The records of a slice
                are all read, from a store in threads.

        Returns:
            The features of the record by name, see `Data.source`; a list of these for a slice.

        Raises:
            IndexError: There is no record of this number.
            TypeError: The index is neither a whole number nor a slice.
            RecordError: The record is damaged, or differs from the features in the manifest.
            OSError: The shard cannot be read.
        """
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        # True would be read as record 1; a mask of booleans is no index here.
        if isinstance(index, bool):
            raise TypeError(f"index received {index}; expected a whole number or a slice")
        number, count = operator.index(index), len(self)
        if not -count <= number < count:
            raise IndexError(f"index received {number}; expected {-count} to {count - 1}")
        return self._record(number % count)

    def stored(self, number: int) -> tuple[str, tfrecord.Record]:
        """Reads a record by its number, from 0; returns the path of its shard, and its bytes.

        Raises:
            RecordError: The record is damaged.
            OSError: The shard cannot be read.
        """
        shard = int(np.searchsorted(self._firsts, number, "right")) - 1
        first, path = int(self._firsts[shard]), self._paths[shard]
        begin = int(self._ends[number - 1]) if number > first else 0
        return path, tfrecord.read_record(path, number - first, begin, int(self._ends[number]))

    def _record(self, number: int) -> dict[str, Any]:
        path, record = self.stored(number)
        found = decode_record(path, record, self._features)
        try:
            return dict(self._value(name, found.get(name, ())) for name in self._features)
        except DECODE_ERRORS as e:
            raise tfrecord.RecordError(path, record.number, record.offset_bytes, str(e)) from e

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Reads several records, as PyTorch asks for a batch; from a store in threads."""
        # Threads hide the delay of a store's answers; a disk has hardly any.
        if all(map(storage.is_local, self._paths)):
            return [self[index] for index in indices]
        return list(storage.map_concurrently(lambda index: self[index], indices))

    def _value(self, name: str, values: Values) -> tuple[str, Any]:
        """Returns the name and value of a feature; raises ValueError or OSError for damage."""
        if name == self._decoded:
            (encoded,) = values
            with open_picture(encoded) as image:  # type: ignore[arg-type]
                pixels = np.array(eight_bits(image).convert(self._mode))
            return IMAGE_INPUT, np.atleast_3d(pixels)
        spec = self._features[name]
        if spec.shape is not None and len(values) != np.prod(spec.shape, dtype=int):
            raise ValueError(f"{name} has {counted(len(values), 'value')}, not {list(spec.shape)}")
        # `spec.shape` is () for a single value and None for a variable length.
        array = np.array(values, _DTYPES[spec.dtype])
        return name, array[0] if spec.shape == () else array.reshape(spec.shape or -1)
