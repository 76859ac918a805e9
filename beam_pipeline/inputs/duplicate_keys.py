"""Finds keys that occur more than once, by shuffling 8 bytes per image.

Only hashes of keys are shuffled. A second pass finds the keys and images of equal hashes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam import pvalue

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.planning.refs import UNIQUE, KeyHasher, RefBatch
from imageshards.errors import Arg, Text, UserError

# Workers compare so many parts of the hashes in parallel; of 100 million images one part is 50 MB.
NUM_BUCKETS = 16
# Equal hashes of a bucket that are looked up. A single duplicate is enough to refuse a build.
MAX_SUSPECTS = 4


def hash_keys(batch: RefBatch) -> np.ndarray:
    """Returns the 64-bit hashes of the keys of a batch."""
    hasher = KeyHasher("", UNIQUE)
    return np.frombuffer(b"".join(hasher(ref.key)[:8] for ref in batch.refs), "<i8")


def bucketed_hashes(batch: RefBatch) -> Iterator[tuple[int, bytes]]:
    """Yields (bucket, hashes as bytes), with at most two hashes of each key."""
    hashes, counts = np.unique(hash_keys(batch), return_counts=True)
    # Two are enough to show that a key occurs more than once.
    hashes = np.repeat(hashes, np.minimum(counts, 2))
    for bucket in range(NUM_BUCKETS):
        if (cut := hashes[hashes % NUM_BUCKETS == bucket]).size:
            yield bucket, cut.tobytes()


def equal_hashes(found: Iterable[bytes]) -> list[int]:
    """Returns the smallest hashes that occur more than once in some packed arrays."""
    hashes = np.sort(np.frombuffer(b"".join(found), "<i8"))
    equal = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    return [int(each) for each in equal[:MAX_SUSPECTS]]


def images_with_hashes(batch: RefBatch, suspects: list[int]) -> Iterator[tuple[str, list[str]]]:
    """Yields (key, [place]) of the images whose key has a suspect hash."""
    if not suspects:
        return
    wanted = np.isin(hash_keys(batch), np.array(suspects, "<i8"))
    yield from ((ref.key, [ref.place]) for ref in itertools.compress(batch.refs, wanted))


def first_two(found: Iterable[list[str]]) -> list[str]:
    """Returns the two smallest of some URIs."""
    # A wrong --key_column may give all images one key, so the combiner keeps only two of them.
    return sorted(uri for uris in found for uri in uris)[:2]


def refuse(key: str, uris: list[str]) -> None:
    """Raises `UserError` with both images of a key that occurs twice."""
    remedy: Text
    unique_column = "name a unique column by " + Arg("key_column")
    if uris[0] == uris[1]:
        received = f"two rows with the key {key!r} for the image {uris[0]!r}"
        expected = "one row for each image"
        remedy = "put its boxes or labels into one row, as lists, or, for a record for each row, "
        remedy += unique_column
    else:
        received = f"the key {key!r} twice, for {uris[0]!r} and {uris[1]!r}"
        expected = "unique keys"
        remedy = unique_column + " or remove one row; if two inputs have a key, first copy one of "
        remedy += "them without it (imageshards build --input ONE --exclude KEYS --output ANOTHER)"
    raise UserError(argument="input", received=received, expected=expected, remedy=remedy)


class RefuseDuplicateKeys(beam.PTransform):
    """Transform from `RefBatch`es to nothing, which completes when no key occurs twice.

        checked = listed.batches | RefuseDuplicateKeys()
        files | CommitShards(spec, planned.plan, skipped, after=(checked,))

    Raises:
        UserError: While running: a key occurs twice. The message names both images.
    """

    def expand(self, batches: beam.PCollection[RefBatch]) -> beam.PCollection:
        suspects = (
            batches
            | "HashKeys" >> beam.FlatMap(bucketed_hashes).with_output_types(tuple[int, bytes])
            | "GroupHashes" >> beam.GroupByKey()
            | "EqualHashes" >> beam.FlatMapTuple(lambda _, found: equal_hashes(found))
        )  # a hash that two keys share; usually the collection is empty
        stores = StoreConfig.of_pipeline(batches)  # says whether an error names flags
        return (
            batches
            | "NameSuspects"
            >> beam.FlatMap(images_with_hashes, pvalue.AsList(suspects)).with_output_types(
                tuple[str, list[str]]
            )
            | "FirstTwo" >> beam.CombinePerKey(first_two)
            # A key with one image has the same hash as a different key.
            | "MoreThanOne" >> beam.Filter(lambda found: len(found[1]) > 1)
            | "Refuse" >> beam.MapTuple(stores.step(refuse))
        )
