"""One shard to write, with all that a worker must know of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from beam_pipeline.planning.refs import ImageRef, pack_refs, unpack_refs


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
    """

    split: str
    index: int
    num_shards: int
    group: str
    class_ids: dict[str, int]
    refs: list[ImageRef]

    @property
    def name(self) -> str:
        """Unique name of the shard, the stem of its file."""
        return f"{self.split}-{self.index:05d}-of-{self.num_shards:05d}"

    def __reduce__(self) -> tuple[Any, ...]:
        # All references cross a shuffle, or wait for a local process, as units.
        ids = (list(self.class_ids), list(self.class_ids.values()))
        shard = (self.split, self.index, self.num_shards, self.group)
        return _unpickle, (shard, ids, pack_refs(self.refs))


def _unpickle(
    shard: tuple[str, int, int, str], ids: tuple[list[str], list[int]], refs: bytes
) -> ShardUnit:
    return ShardUnit(*shard, dict(zip(*ids, strict=True)), unpack_refs(refs))
