"""Finds the duplicates of a dataset: several processes hash its pictures, this process compares.

Memory holds 16 bytes per record: a hash of its original file and a hash of its picture.

The hash of a picture is the difference hash ("dHash") of Neal Krawetz, "Kind of Like That", 2013
(https://www.hackerfactor.com/blog/index.php?/archives/529-Kind-of-Like-That.html): the picture is
reduced to 9x8 grey pixels, and each of 64 bits says whether a pixel is darker than its right
neighbour. A resized or recompressed picture differs in 0 to 6 bits, a different scene in about 32.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from PIL import Image

from imageshards import storage
from imageshards.deduplication.near import near_pairs
from imageshards.deduplication.twins import COLUMNS, Twin, choose_twins
from imageshards.errors import Arg, UserError
from imageshards.example import decode_example
from imageshards.index import index_schema, read_shard_index
from imageshards.jpeg import DECODE_ERRORS, can_draft, eight_bits, open_picture
from imageshards.manifest import ONE, Manifest, Shard, shard_path
from imageshards.progress import with_progress
from imageshards.tfrecord import RecordError, scan_file

_SIZE_PX = (9, 8)
# Samples of eight by eight points per pixel. Averaging all 256x256 pixels takes five times as long
# and finds the same copies: for 200 photos that were halved, compressed at quality 30 or cropped by
# 2 %, the mean distances are 1.0, 0.8 and 3.6 bits with samples, 0.6, 0.5 and 4.3 with all pixels.
_SAMPLED_PX = (72, 64)
# The first eight of the nine pixels of each row have a right neighbour.
_LEFT_PIXELS = [9 * row + column for row in range(8) for column in range(8)]


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
    image = manifest.roles.image or ""
    shards = [entry for _, entry in manifest.shards()]
    label = manifest.label
    of_originals = list(_hashes_of_originals(directory, manifest))
    hash_shard = functools.partial(_hash_shard, directory, image)
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
            table = _rows(directory, shard, COLUMNS, label).filter(pa.array(wanted))
            # A picture that could not be decoded has the hash 0, which the mask turns into null.
            column = pa.array(hashes[wanted], mask=~known[wanted])
            tables.append(table.append_column("dhash", column))
    twins = choose_twins(pa.concat_tables(tables), pairs) if tables else []
    return twins, sum(int((~known).sum()) for _, known in of_pictures)


def count_copies(directory: str, manifest: Manifest) -> tuple[int, int]:
    """Counts equal originals by the index.

    Returns:
        The number of images that equal an earlier image byte for byte, and the number of originals
        in more than one split.
    """
    of_splits, num_records = defaultdict(list), 0
    shards = zip(manifest.shards(), _hashes_of_originals(directory, manifest), strict=True)
    for (split, _), hashes in shards:
        of_splits[split].append(hashes)
        num_records += len(hashes)
    each_once = [np.unique(np.concatenate(hashes)) for hashes in of_splits.values()]
    between, different = _repeated(each_once)
    return num_records - len(different), len(between)


def _hashes_of_originals(directory: str, manifest: Manifest) -> Iterator[np.ndarray]:
    """Yields for each shard the first 64 bits of the SHA-256 of each original, uint64."""
    entries = [entry for _, entry in manifest.shards()]
    columns = ["source_sha256"]
    for table in storage.map_concurrently(lambda e: _rows(directory, e, columns), entries):
        # A SHA-256 has four words of 64 bits; the first is enough to tell originals apart.
        digits = "".join(table["source_sha256"].to_pylist())
        yield np.frombuffer(bytes.fromhex(digits), ">u8")[::4].astype(np.uint64)


def _rows(directory: str, entry: Shard, columns: list[str], label: str = ONE) -> pa.Table:
    schema = index_schema({}, label)
    wanted = pa.schema([schema.field(name) for name in columns if name in schema.names])
    return read_shard_index(directory, entry, wanted, "DIR").combine_chunks()


def _hash_shard(directory: str, image: str, entry: Shard) -> tuple[np.ndarray, np.ndarray]:
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
            remedy="copy it again, or build the dataset again with " + Arg("overwrite", True),
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
    small = sampled.resize(_SIZE_PX, Image.Resampling.BILINEAR)
    pixels = small.tobytes()
    bits = ["1" if pixels[left] < pixels[left + 1] else "0" for left in _LEFT_PIXELS]
    return int("".join(bits), 2)


def hash_of_jpeg(encoded: object) -> int | None:
    """Returns the difference hash of a record's picture; None if it cannot be decoded."""
    if not isinstance(encoded, bytes):
        return None
    try:
        with open_picture(encoded) as picture:
            if can_draft(encoded):
                picture.draft("RGB", _SAMPLED_PX)
            return difference_hash(eight_bits(picture).convert("RGB"))
    except DECODE_ERRORS:
        return None
