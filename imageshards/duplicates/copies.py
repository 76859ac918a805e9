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

    Of each record 10 bytes are held.

    Args:
        directory: The data set.
        manifest: Its manifest.
    """
    import numpy as np
    import pyarrow as pa

    shards = list(shards_of(manifest))
    if not has_index(manifest) or not shards:
        return None
    wanted = pa.schema([index_schema(manifest["features"]).field("source_sha256")])
    try:
        tables = map_concurrently(lambda one: read_shard_index(directory, one[1], wanted), shards)
        hashes = list(map(hashes_of_originals, tables))
    except (OSError, UserError):
        return None  # verify says what is wrong
    number_of = {split: number for number, split in enumerate(manifest["splits"])}
    numbers = np.array([number_of[split] for split, _ in shards], np.int16)
    found, of_split = np.concatenate(hashes), np.repeat(numbers, [len(h) for h in hashes])
    order = np.lexsort((of_split, found))
    found, of_split = found[order], of_split[order]
    equal = found[1:] == found[:-1]
    between = found[1:][equal & (of_split[1:] != of_split[:-1])]
    return Copies(int(equal.sum()), len(np.unique(between)))


def hashes_of_originals(table: pa.Table) -> np.ndarray:
    """64 bits of the SHA-256 of each record's original, uint64."""
    import numpy as np

    digits = "".join(table["source_sha256"].to_pylist())
    return np.frombuffer(bytes.fromhex(digits), ">u8")[::4].astype(np.uint64)
