"""Finds keys that occur more than once; shuffles 8 bytes an image.

Only hashes of keys are shuffled. Where two are equal, a second pass over the references finds the
keys and images.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam import pvalue

from beam_pipeline.planning.refs import UNIQUE, KeyHasher, RefBatch
from imageshards.errors import Arg, UserError

# Parts of all hashes that are compared side by side: of 100 million images one is 50 MB.
NUM_BUCKETS = 16
# So many equal hashes of a bucket are looked up before a build is refused: one is enough for that.
MAX_SUSPECTS = 4


def hash_keys(batch: RefBatch) -> np.ndarray:
    """64-bit hashes of the keys of a batch."""
    hasher = KeyHasher("", UNIQUE)
    return np.frombuffer(b"".join(hasher(ref.key)[:8] for ref in batch.refs), "<i8")


def bucketed_hashes(batch: RefBatch) -> Iterator[tuple[int, bytes]]:
    """(bucket, hashes as bytes); of a key that is there more often two, which tell enough."""
    hashes, counts = np.unique(hash_keys(batch), return_counts=True)
    hashes = np.repeat(hashes, np.minimum(counts, 2))
    for bucket in range(NUM_BUCKETS):
        if (cut := hashes[hashes % NUM_BUCKETS == bucket]).size:
            yield bucket, cut.tobytes()


def equal_hashes(found: Iterable[bytes]) -> list[int]:
    """The smallest hashes that occur more than once in some packed arrays."""
    hashes = np.sort(np.frombuffer(b"".join(found), "<i8"))
    equal = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    return [int(each) for each in equal[:MAX_SUSPECTS]]


def images_with_hashes(batch: RefBatch, suspects: list[int]) -> Iterator[tuple[str, list[str]]]:
    """(key, [where it is from]) of the images whose key has one of some hashes."""
    if not suspects:
        return
    wanted = np.isin(hash_keys(batch), np.array(suspects, "<i8"))
    yield from ((ref.key, [ref.place]) for ref in itertools.compress(batch.refs, wanted))


def first_two(found: Iterable[list[str]]) -> list[str]:
    """The two smallest of some URIs: a wrong --key_column may give all images one key."""
    return sorted(uri for uris in found for uri in uris)[:2]


def refuse(key: str, uris: list[str]) -> None:
    """Raises `UserError` with both images of a key that occurs twice."""
    if uris[0] == uris[1]:
        raise UserError(
            argument="input",
            received=f"two rows with the key {key!r} for the image {uris[0]!r}",
            expected="one row for each image",
            remedy="put its boxes or labels into one row, as lists, or, where a record for each "
            "row is wanted, name a unique column by " + Arg("key_column"),
        )
    raise UserError(
        argument="input",
        received=f"the key {key!r} twice, for {uris[0]!r} and {uris[1]!r}",
        expected="unique keys",
        remedy="name a unique column by "
        + Arg("key_column")
        + " or remove one row; where two inputs have a key, copy one of them without it first "
        "(imageshards build --input ONE --exclude KEYS --output ANOTHER)",
    )


class RefuseDuplicateKeys(beam.PTransform):
    """RefBatches → nothing, when it is known that no key occurs twice.

        checked = listed.batches | RefuseDuplicateKeys()
        files | CommitShards(spec, planned.plan, skipped, after=(checked,))

    Raises:
        UserError: While running: a key occurs twice; names both images.
    """

    def expand(self, batches: beam.PCollection[RefBatch]) -> beam.PCollection:
        suspects = (
            batches
            | "HashKeys" >> beam.FlatMap(bucketed_hashes).with_output_types(tuple[int, bytes])
            | "GroupHashes" >> beam.GroupByKey()
            | "EqualHashes" >> beam.FlatMapTuple(lambda _, found: equal_hashes(found))
        )  # hash, mostly none
        return (
            batches
            | "NameSuspects"
            >> beam.FlatMap(images_with_hashes, pvalue.AsList(suspects)).with_output_types(
                tuple[str, list[str]]
            )
            | "FirstTwo" >> beam.CombinePerKey(first_two)
            # One image: another key has the same hash.
            | "MoreThanOne" >> beam.Filter(lambda found: len(found[1]) > 1)
            | "Refuse" >> beam.MapTuple(refuse)
        )
