"""Lists the records of finished datasets as references, from the index of each shard."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from beam_pipeline.images.member import RECORD
from beam_pipeline.inputs.layout import wrong_input
from beam_pipeline.options import CopiedInput
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import NONE, ONE, SEVERAL, Shard, load_manifest
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES

_INDEX_COLUMNS = ("key", "offset", "num_bytes", "source_bytes", "class_name")


def shards_to_list(source: CopiedInput) -> Iterator[tuple[str, str | None, Shard]]:
    """Yields (path, split that its records keep, entry of the manifest) of each shard of a dataset.

    Raises `UserError` if the dataset is missing, or was replaced after the build began.
    """
    manifest = load_manifest(source.input, "input")
    if source.fingerprint and manifest.fingerprint != source.fingerprint:
        problem = "which was replaced while this build read it"
        raise wrong_input(source.input, problem, remedy="run the same command again")
    for split, entry in manifest.shards():
        path = storage.join(source.input, entry.file)
        yield path, split if source.keeps_splits else None, entry


def list_records(
    path: str, split: str | None, entry: Shard, labels: tuple[str, str] = (ONE, ONE)
) -> Iterator[ImageRef]:
    """Yields references to the records of a shard, in their order, from the index.

    Args:
        path: The shard.
        split: The split that its records keep; None if splits are drawn again.
        entry: The entry of the shard in the manifest.
        labels: How many labels the records have, and how many they are going to have.

    Raises:
        UserError: The index is missing, or the index or the shard does not match the manifest.
    """
    has, wanted = labels
    schema = index_schema({}, has)
    names = _INDEX_COLUMNS[:-1] if wanted == NONE else _INDEX_COLUMNS
    schema = pa.schema([schema.field(name) for name in names])
    table = read_shard_index(storage.parent_of(path), entry, schema, "input")
    found = [table[name].to_pylist() for name in names]
    if wanted == NONE:
        found.append([None] * len(table))
    elif wanted == SEVERAL:
        found[-1] = [(name,) if has == ONE else tuple(name) for name in found[-1]]
    # In place of a time: a resumed build must not mix two versions of a shard.
    version = int(entry.sha256[:15], 16)
    for key, offset, num_bytes, source_bytes, label in zip(*found, strict=True):
        size_bytes = num_bytes - HEADER_BYTES - FOOTER_BYTES
        yield ImageRef(
            key, path, label, split, None, size_bytes, version, None, offset,
            source_bytes=source_bytes, form=RECORD,
        )  # fmt: skip
