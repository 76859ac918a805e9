"""How many originals a data set holds more than once, counted from its index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from imageshards.errors import UserError
from imageshards.index import has_index, index_schema, read_shard_index
from imageshards.manifest import shards_of
from imageshards.storage import map_concurrently

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

# Records whose hashes are held at once, 10 bytes each; with more the index is read in passes.
MAX_HELD = 20_000_000


class Copies(NamedTuple):
    """Records whose originals are equal, byte for byte.

    Attributes:
        copies: Images that are a copy of another one: all but one of each original.
        between_splits: Originals that stand in more than one split.
    """

    copies: int
    between_splits: int


def count_copies(directory: str, manifest: Mapping[str, Any]) -> Copies | None:
    """Counts equal originals; None where there is no index that could be read.

    Args:
        directory: The data set.
        manifest: Its manifest.
    """
    import numpy as np

    if not has_index(manifest):
        return None
    number_of = {split: number for number, split in enumerate(manifest["splits"])}
    shards = list(shards_of(manifest))
    passes = -(-sum(shard["num_records"] for _, shard in shards) // MAX_HELD)
    copies = between = 0
    for part in range(passes):
        try:
            read = map_concurrently(lambda shard: _hashes(directory, manifest, shard[1]), shards)
            hashes = [each[each % np.uint64(passes) == part] for each in read]
        except (OSError, UserError):
            return None  # verify says what is wrong
        numbers = np.array([number_of[split] for split, _ in shards], np.int16)
        found, of_split = np.concatenate(hashes), np.repeat(numbers, [len(h) for h in hashes])
        order = np.lexsort((of_split, found))
        found, of_split = found[order], of_split[order]
        equal = found[1:] == found[:-1]
        copies += int(equal.sum())
        between += len(np.unique(found[1:][equal & (of_split[1:] != of_split[:-1])]))
    return Copies(copies, between)


def _hashes(directory: str, manifest: Mapping[str, Any], shard: Mapping[str, Any]) -> np.ndarray:
    import pyarrow as pa

    wanted = pa.schema([index_schema(manifest["features"]).field("source_sha256")])
    return hashes_of_originals(read_shard_index(directory, shard, wanted))


def hashes_of_originals(table: pa.Table) -> np.ndarray:
    """64 bits of the SHA-256 of each record's original, uint64."""
    import numpy as np

    digits = "".join(table["source_sha256"].to_pylist())
    return np.frombuffer(bytes.fromhex(digits), ">u8")[::4].astype(np.uint64)
