"""Finds the duplicates of a dataset: several processes hash its pictures, this process compares.

Memory holds 16 bytes per record: a hash of its original file and a hash of its picture.

The hash of a picture is the difference hash ("dHash") of Neal Krawetz, "Kind of Like That", 2013
(https://www.hackerfactor.com/blog/index.php?/archives/529-Kind-of-Like-That.html): the picture is
reduced to 9x8 grey pixels, and each of 64 bits says whether a pixel is darker than its right
neighbour. A resized or recompressed picture differs in 0 to 6 bits, a different scene in about 32.

`near_pairs` finds pairs of hashes that differ in few bits, without comparing all pairs. If two
hashes differ in at most `distance` of their bits, and the bits are cut into `distance + 1` bands,
at least one band is equal (the pigeonhole principle). So only hashes in the same cell, with an
equal band, are compared. A large cell, for example of pictures with a white upper half, is cut
again by the bits that differ within the cell.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.example import decode_example
from imageshards.index import index_schema, read_shard_index
from imageshards.jpeg import decoded
from imageshards.manifest import TRAIN_NAMES, VALIDATION_NAMES, Manifest, Shard
from imageshards.manifest.file import shard_path
from imageshards.progress import with_progress
from imageshards.tfrecord import RecordError, scan_file

# The columns of the index that this module needs.
COLUMNS = [
    "key", "split", "class_name", "shard", "record", "offset", "num_bytes",
    "source_sha256", "source_bytes",
]  # fmt: skip
# Nobody looks at more pairs, and a file of their keys would exclude most images.
MAX_PAIRS = 5_000_000
# All hashes of a cell of this size are compared. More hashes differ in at least 11 bits, so that
# each band of the largest distance has a bit.
_MAX_CELL = 2000
_SIZE_PX = (9, 8)
# Samples of eight by eight points per pixel. Averaging all 256x256 pixels takes five times as long
# and finds the same copies: for 200 photos that were halved, compressed at quality 30 or cropped by
# 2 %, the mean distances are 1.0, 0.8 and 3.6 bits with samples, 0.6, 0.5 and 4.3 with all pixels.
_SAMPLED_PX = (72, 64)


def find_twins(
    directory: str, manifest: Manifest, distance: int, workers: int | None = None
) -> tuple[list[Twin], int]:
    """Returns the twins of a dataset, worst first, and how many pictures could not be hashed.

    Args:
        directory, manifest: The dataset, local or in a store.
        distance: The most bits in which the hashes of near duplicates differ.
        workers: The number of processes that decode; None for one per core.

    Raises:
        UserError: The index or a shard cannot be read, or nearly all pictures look alike.
    """
    shards = [entry for _, entry in manifest.shards()]
    of_originals = list(_hashes_of_originals(directory, manifest))
    hash_shard = functools.partial(
        _hash_shard, directory, manifest.roles.image, manifest.make_again
    )
    hashed = storage.map_in_processes(hash_shard, shards, workers)
    of_pictures = list(with_progress(hashed, len(shards), "shards", "hashing pictures"))
    originals, _ = _repeated(of_originals)
    repeated, different = _repeated([hashes[known] for hashes, known in of_pictures])
    pairs = near_pairs(different, distance)
    pictures = np.concatenate([repeated, pairs.ravel()])
    # The rows of the index are large, so only shards with a twin are read, one at a time.
    tables = []
    for shard, files, (hashes, known) in zip(shards, of_originals, of_pictures, strict=True):
        wanted = np.isin(files, originals) | (np.isin(hashes, pictures) & known)
        if wanted.any():
            table = _rows(directory, manifest, shard, COLUMNS).filter(pa.array(wanted))
            # A picture that could not be decoded has the hash 0, which the mask turns into null.
            column = pa.array(hashes[wanted], mask=~known[wanted])
            tables.append(table.append_column("dhash", column))
    twins = choose_twins(pa.concat_tables(tables), pairs) if tables else []
    return twins, sum(int((~known).sum()) for _, known in of_pictures)


class Twin(NamedTuple):
    """An image that should go, and an image that stays and shows the same.

    Attributes:
        kept, other: The rows of the index, by column, of the image that stays and the image that
            goes. Several class names are one text.
        exact: Whether the original files are equal byte for byte.
        distance: The number of bits in which the hashes of the pictures differ.
    """

    kept: dict[str, Any]
    other: dict[str, Any]
    exact: bool
    distance: int

    @property
    def splits(self) -> tuple[str, str]:
        """The splits of the image that stays and of the image that goes."""
        return self.kept["split"], self.other["split"]

    @property
    def same_class(self) -> bool:
        """Whether both images have the same labels; if not, one image has a wrong label."""
        return bool(self.kept["class_name"] == self.other["class_name"])

    @property
    def badness(self) -> tuple[Any, ...]:
        """The sort key of the page: leaks into training first, then the nearest twins."""
        between = self.splits[0] != self.splits[1]
        leak = between and any(split in TRAIN_NAMES for split in self.splits)
        nearness = self.distance, not self.exact
        return not leak, not between, *nearness, self.same_class, self.other["key"]


def choose_twins(table: pa.Table, pairs: np.ndarray) -> list[Twin]:
    """Returns the images that should go, worst first, so that no two images that stay are twins.

    Each image that goes gets a twin that stays: a twin of another split, or else the nearest twin.

    Args:
        table: The rows of all records that may have a twin: `COLUMNS`, as far as the index has
            them, and `dhash`, the hash of the picture, null if unknown.
        pairs: uint64 [n, 2], pairs of different hashes that are near.
    """
    near = defaultdict(list)
    for low, high in pairs.tolist():
        near[low].append(high)
        near[high].append(low)
    # At most one row of each hash and of each original stays, since equal ones are twins.
    kept_of_hash: dict[int, dict[str, Any]] = {}
    kept_of_original: dict[str, dict[str, Any]] = {}
    twins = []

    def preference(twin: Twin) -> tuple[Any, ...]:
        return twin.splits[0] == twin.splits[1], twin.distance, not twin.exact, twin.kept["key"]

    # The images that are most worth keeping come first; an image without a kept twin is kept.
    for row in sorted(table.to_pylist(), key=_rank):
        names = row.get("class_name", "")
        row["class_name"] = names if isinstance(names, str) else ", ".join(names)
        dhash, original = row["dhash"], row["source_sha256"]
        kept = [kept_of_hash[h] for h in (dhash, *near.get(dhash, ())) if h in kept_of_hash]
        kept += [kept_of_original[original]] if original in kept_of_original else []
        if kept:
            found = []
            for other in kept:
                known = dhash is not None and other["dhash"] is not None
                distance = (other["dhash"] ^ dhash).bit_count() if known else 0
                found.append(Twin(other, row, other["source_sha256"] == original, distance))
            twins.append(min(found, key=preference))
            continue
        kept_of_original[original] = row
        if dhash is not None:
            kept_of_hash[dhash] = row
    return sorted(twins, key=lambda twin: twin.badness)


def _rank(row: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the sort key by which the image that is most worth keeping comes first."""
    # Models are compared on test and validation images, so training images go. Then the larger
    # original stays.
    orders = [(("test",), 0), (VALIDATION_NAMES, 1), (TRAIN_NAMES, 3)]
    order = next((place for names, place in orders if row["split"] in names), 2)
    return order, row["split"], -(row["source_bytes"] or 0), row["key"]


def count_copies(directory: str, manifest: Manifest) -> tuple[int, int]:
    """Counts equal originals by the index.

    Returns:
        The number of images that equal an earlier image byte for byte, and the number of originals
        in more than one split.
    """
    of_splits = defaultdict(list)
    shards = zip(manifest.shards(), _hashes_of_originals(directory, manifest), strict=True)
    for (split, _), hashes in shards:
        of_splits[split].append(hashes)
    each_once = [np.unique(np.concatenate(hashes)) for hashes in of_splits.values()]
    between, different = _repeated(each_once)
    return manifest.num_records - len(different), len(between)


def _hashes_of_originals(directory: str, manifest: Manifest) -> Iterator[np.ndarray]:
    """Yields for each shard the first 64 bits of the SHA-256 of each original, uint64."""
    for table in storage.map_concurrently(
        lambda each: _rows(directory, manifest, each[1], ["source_sha256"]), manifest.shards()
    ):
        # A SHA-256 has four words of 64 bits; the first is enough to tell originals apart.
        digits = "".join(table["source_sha256"].to_pylist())
        yield np.frombuffer(bytes.fromhex(digits), ">u8")[::4].astype(np.uint64)


def _rows(directory: str, manifest: Manifest, entry: Shard, columns: list[str]) -> pa.Table:
    wanted = index_schema({}, manifest.label, columns)
    table = read_shard_index(directory, entry, wanted, "DIR", manifest.make_again)
    return table.combine_chunks()


def _hash_shard(
    directory: str, image: str, make_again: str, entry: Shard
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the difference hashes of a shard's pictures, uint64, and which hashes are known."""
    count = entry.num_records
    hashes, known = np.zeros(count, np.uint64), np.zeros(count, bool)
    try:
        path = shard_path(directory, entry.name)
        for record in itertools.islice(scan_file(path, entry.num_bytes), count):
            if isinstance(record, RecordError):
                continue
            try:
                features = decode_example(record.payload, {image})
                found = hash_of_jpeg(features[image][0])
            except (KeyError, IndexError, ValueError):
                continue  # The caller counts unknown hashes; `imageshards verify` reports damage.
            if found is not None:
                hashes[record.number], known[record.number] = found, True
    except OSError as e:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, whose {entry.file} cannot be read ({e.strerror or e})",
            expected="the file as it was built",
            remedy=f"copy it again, or {make_again}",
        ) from e
    return hashes, known


def _repeated(hashes: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hashes that occur more than once, and each different hash once."""
    every = np.concatenate([np.empty(0, np.uint64), *hashes])
    different, counts = np.unique(every, return_counts=True)
    return different[counts > 1], different


def difference_hash(picture: Image.Image) -> int:
    """Returns the difference hash of an upright picture, `RGB` or `L`, in about 40 us.

    The highest bit is the pixel at the top left, and the bits go row by row. The distance of two
    hashes is `(a ^ b).bit_count()`.
    """
    sampled = picture.resize(_SAMPLED_PX, Image.Resampling.NEAREST).convert("L")
    small = np.asarray(sampled.resize(_SIZE_PX, Image.Resampling.BILINEAR))
    return int.from_bytes(np.packbits(small[:, :-1] < small[:, 1:]).tobytes())


def hash_of_jpeg(encoded: object) -> int | None:
    """Returns the difference hash of a record's picture; None if it cannot be decoded."""
    picture = decoded(encoded, _SAMPLED_PX)
    return None if picture is None else difference_hash(picture)


def _bands_of(hashes: np.ndarray, distance: int) -> list[int]:
    """Returns masks: any two of the hashes, uint64 [n], that are near are equal under one mask."""
    if len(hashes) <= _MAX_CELL:
        return [0]
    # Bits that are equal in all hashes would make bands that separate nothing.
    differing = int(np.bitwise_or.reduce(hashes ^ hashes[0]))
    bits = [1 << bit for bit in range(64) if differing >> bit & 1]
    edges = [i * len(bits) // (distance + 1) for i in range(distance + 2)]
    return [sum(bits[low:high]) for low, high in itertools.pairwise(edges)]


def near_pairs(hashes: np.ndarray, distance: int) -> np.ndarray:
    """Finds all pairs of different hashes that differ in at most `distance` bits.

    Args:
        hashes: uint64 [n], each hash once.
        distance: The most bits in which two hashes may differ, 0 to 10.

    Returns:
        uint64 [m, 2]: each pair once, in order, the lower hash first.

    Raises:
        UserError: There are more than `MAX_PAIRS` pairs.
    """
    found = np.empty((0, 2), np.uint64)
    for mask in _bands_of(hashes, distance) if distance else ():
        cells = hashes & np.uint64(mask)
        order = np.argsort(cells)
        ordered = hashes[order]
        # `prepend` differs from the first cell, so each cell, the first included, has a begin.
        begins = np.flatnonzero(np.diff(cells[order], prepend=~cells[order[:1]]))
        sizes = np.diff(begins, append=len(hashes))
        is_large = sizes > _MAX_CELL
        # The number of hashes after each hash in its cell; 0 in large cells, which are cut again.
        behind = np.repeat(begins + sizes, sizes) - np.arange(len(hashes)) - 1
        behind[np.repeat(is_large, sizes)] = 0
        pairs = [found, _compare(ordered, behind, distance)]
        for begin, size in zip(begins[is_large], sizes[is_large], strict=True):
            pairs.append(near_pairs(ordered[begin : begin + size], distance))
        found = np.unique(np.concatenate(pairs), axis=0)
        _check_number(len(found), distance)
    return found


def _compare(hashes: np.ndarray, behind: np.ndarray, distance: int) -> np.ndarray:
    """Returns the near pairs of each hash with the `behind` hashes after it."""
    found, count = [np.empty((0, 2), np.uint64)], 0
    # One round of NumPy compares all hashes with the hash `step` places later.
    at, step = np.arange(len(hashes)), 1
    while len(at := at[behind[at] >= step]):
        one, other = hashes[at], hashes[at + step]
        near = count_bits(one ^ other) <= distance
        found.append(np.sort(np.stack([one[near], other[near]], axis=1)))
        count += len(found[-1])
        _check_number(count, distance)
        step += 1
    return np.concatenate(found)


def _check_number(pairs: int, distance: int) -> None:
    if pairs > MAX_PAIRS:
        raise UserError(
            argument="distance",
            received=f"{distance}, for which more than {MAX_PAIRS:,} pairs of pictures look alike",
            expected="fewer pairs",
            remedy="give a smaller distance, " + Arg("distance", 0) + " for equal hashes only",
        )


def count_bits(values: np.ndarray) -> np.ndarray:
    """Returns the number of set bits of each uint64."""
    if hasattr(np, "bitwise_count"):  # NumPy 1 lacks this function.
        return np.bitwise_count(values)
    return np.unpackbits(values.view(np.uint8)).reshape(-1, 64).sum(1)
