"""One shard to write, with all that a worker must know of it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from beam_pipeline.planning.refs import ImageRef, pack_refs, unpack_refs

# A shard is not cut into parts of fewer images.
MIN_PART_SIZE = 64


@dataclasses.dataclass(frozen=True)
class ShardUnit:
    """One shard to write: a unit of work that is done, or not done, as a whole.

    Attributes:
        split: Name of the split.
        index: Index of the shard in the split.
        num_shards: Shards of the split.
        group: Shards of one group are kept even with each other: "" or a class name.
        class_ids: Label → id, for the labels of this shard.
        refs: Its images, in the order of its records.
        first: Place of the first of them in the whole shard.
        part: Suffix of its name when it is only a part of a shard.
    """

    split: str
    index: int
    num_shards: int
    group: str
    class_ids: dict[str, int]
    refs: list[ImageRef]
    first: int = 0
    part: str = ""

    @property
    def name(self) -> str:
        """Unique name of the shard, the stem of its file."""
        return f"{self.split}-{self.index:05d}-of-{self.num_shards:05d}{self.part}"

    def parts(self, wanted: int) -> list[ShardUnit]:
        """Cuts the shard into units of consecutive records whose files, joined, are its file."""
        count = max(1, min(wanted, len(self.refs) // MIN_PART_SIZE))
        if count == 1:
            return [self]
        bounds = [len(self.refs) * i // count for i in range(count + 1)]
        return [
            dataclasses.replace(
                self, refs=self.refs[start:stop], first=start, part=f".part-{i:03d}-of-{count:03d}"
            )
            for i, (start, stop) in enumerate(itertools.pairwise(bounds))
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        # All references cross a shuffle, or wait for a local process, as units.
        ids = (list(self.class_ids), list(self.class_ids.values()))
        place = (self.split, self.index, self.num_shards, self.group)
        return _unpickle, (place, ids, pack_refs(self.refs), self.first, self.part)


def _unpickle(
    place: tuple[str, int, int, str],
    ids: tuple[list[str], list[int]],
    refs: bytes,
    first: int,
    part: str,
) -> ShardUnit:
    return ShardUnit(*place, dict(zip(*ids, strict=True)), unpack_refs(refs), first, part)
