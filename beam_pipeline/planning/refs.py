"""References to images: what is listed, split, planned and shuffled, alone or as a shard;
hashes of their keys.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from beam_pipeline.images.member import PICTURE, RECORD, WHOLE_FILE
from imageshards.manifest import FeatureSpec

# In place of the time of change of a file that was not there.
MISSING = -1

# What a hash is for: which split is drawn, the rank within a class, the order of the records in a
# shard, whether a key is unique. The values are part of every dataset that was built: another
# one moves every image.
SPLIT, RANK, ORDER, UNIQUE = b"split", b"deal", b"place", b"unique"


# What an image is labelled as: the name of its class, the names of several, or None.
Label = str | tuple[str, ...] | None


def names_of(label: Label | list[str]) -> tuple[str, ...]:
    """The names of the classes in a label."""
    return (label,) if isinstance(label, str) else tuple(label or ())


class ImageRef(NamedTuple):
    """One listed image, before any of its pixels was read: a file, or a range of bytes of one.

        ImageRef("cat/1.jpg", "photos/cat/1.jpg", "cat")

    Attributes:
        key: Stable name: the path below the input root, or the table's id.
        uri: Where the bytes are, on any filesystem Beam knows: the image's file, its archive, its
            Parquet file or its shard.
        label: Class name as listed; the names of several, or None where images have none.
        split: Split given by the input, later the assigned one.
        group: Images of one group share a split; None stands for the key.
        size_bytes: Size when listed, of a record that of its payload, in a zip the compressed
            size; -1 if unknown.
        mtime_ns: Modification time when listed; 0 if unknown, `MISSING` if the file was not
            there. Neither enters a record: they
            tell finished work from stale work when a job is resumed. Of a record it is the
            beginning of its shard's SHA-256, which says that better.
        columns: Extra columns: raw values as listed, later features of the record.
        offset_bytes: Where the bytes start in their file, a record's framing and the local header
            of a zip's member included; `WHOLE_FILE` for a file of its own.
        source: Number of the input that it is of.
        source_bytes: Of a record, where an index says it: size of the original file.
        form: `PICTURE`, `ZIP_MEMBER` or `RECORD`.
        spooled: File with the bytes, where `uri` cannot be read by ranges; "" for `uri` itself.
        in_pixels: Whether the sides of the boxes in `columns` are in pixels, not 0 to 1.
    """

    key: str
    uri: str
    label: Label
    split: str | None = None
    group: str | None = None
    size_bytes: int = -1
    mtime_ns: int = 0
    columns: Mapping[str, Any] | None = None
    offset_bytes: int = WHOLE_FILE
    source: int = 0
    source_bytes: int | None = None
    form: str = PICTURE
    spooled: str = ""
    in_pixels: bool = False

    @property
    def is_record(self) -> bool:
        """Whether it is a record of a dataset, not a picture."""
        return self.form == RECORD

    @property
    def path(self) -> str:
        """The file from which the bytes are read."""
        return self.spooled or self.uri

    @property
    def place(self) -> str:
        """Where a person finds the image: its file, or its name and the file that holds it."""
        return self.uri if self.offset_bytes == WHOLE_FILE else f"{self.key} of {self.uri}"


class RefBatch:
    """Some references that travel as one element: a runner's cost is per element.

        RefBatch([ImageRef("cat/1.jpg", "photos/cat/1.jpg", "cat")])

    Attributes:
        refs: The references, in no order that means anything.
    """

    __slots__ = ("refs",)

    def __init__(self, refs: list[ImageRef]):
        self.refs = refs

    def __len__(self) -> int:
        return len(self.refs)

    def __repr__(self) -> str:
        return f"RefBatch({len(self.refs)} refs)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_batch, (pack_refs(self.refs),)


def _unpickle_batch(packed: bytes) -> RefBatch:
    return RefBatch(unpack_refs(packed))


@dataclasses.dataclass(frozen=True)
class ShardUnit:
    """One shard to write: a unit of work that is done, or not done, as a whole.

    Attributes:
        split: Name of the split.
        index: Index of the shard in the split.
        num_shards: Shards of the split.
        class_ids: Label → number in the records, for the labels of this shard.
        refs: Its images, in the order of its records.
        features: The extra features of its records, as the manifest declares them, by which its
            index is made; None for none.
    """

    split: str
    index: int
    num_shards: int
    class_ids: dict[str, int]
    refs: list[ImageRef]
    features: dict[str, FeatureSpec] | None = None

    @property
    def name(self) -> str:
        """Unique name of the shard, the stem of its file."""
        return f"{self.split}-{self.index:05d}-of-{self.num_shards:05d}"

    def __reduce__(self) -> tuple[Any, ...]:
        # All references cross a shuffle, or wait for a local process, as units.
        ids = (list(self.class_ids), list(self.class_ids.values()))
        shard = (self.split, self.index, self.num_shards)
        return _unpickle_unit, (shard, ids, pack_refs(self.refs), self.features)


def _unpickle_unit(
    shard: tuple[str, int, int], ids: tuple[list[str], list[int]], refs: bytes, features: Any
) -> ShardUnit:
    return ShardUnit(*shard, dict(zip(*ids, strict=True)), unpack_refs(refs), features)


# As `ImageRef._make`, without its check, in a third of the time.
_as_ref = functools.partial(tuple.__new__, ImageRef)


def pack_refs(refs: Sequence[ImageRef]) -> bytes:
    """References as bytes, column by column and compressed.

    Names repeat, and a URI mostly is a folder and the key: a quarter of the bytes of a pickled list
    in 1 µs a reference. References cross several shuffles, and wait in the pool of processes.
    """
    columns = tuple(zip(*refs, strict=True))
    return zlib.compress(pickle.dumps(columns, protocol=5), level=1) if refs else b""


def unpack_refs(packed: bytes) -> list[ImageRef]:
    """What `pack_refs` packed."""
    if not packed:
        return []
    return list(map(_as_ref, zip(*pickle.loads(zlib.decompress(packed)), strict=True)))


class KeyHasher:
    """Salted, stable 128-bit hashes of keys (BLAKE2b, RFC 7693).

    Each purpose has hashes of its own: which split an image is in, which rank it has in its class
    and where its record stands in the shard must tell nothing of each other.
    """

    def __init__(self, salt: str, purpose: bytes = RANK):
        key = hashlib.blake2b(salt.encode(), digest_size=32).digest()
        self._empty = hashlib.blake2b(digest_size=16, key=key, person=purpose)

    def __call__(self, text: str) -> bytes:
        state = self._empty.copy()
        state.update(text.encode("utf-8", "surrogatepass"))
        return state.digest()
