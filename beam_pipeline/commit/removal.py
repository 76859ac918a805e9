"""Records are taken out of a finished data set: only the shards that change are written again.

New shards wait in the staging folder until all are written, with the manifest that will name
them. Then the old manifest goes, the shards take their places, and the new manifest comes last;
whatever is killed in between, the same command goes on from there.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.commit import staging as staging_folder
from beam_pipeline.commit.data_set import companion_files
from beam_pipeline.commit.finalize import move_staged, plan_moves
from beam_pipeline.commit.staging import JOB_NAME
from beam_pipeline.commit.tfds import TFDS_NAMES
from beam_pipeline.inputs.layout import read_json
from beam_pipeline.inputs.records import list_records
from beam_pipeline.shards.result import count_classes
from beam_pipeline.shards.writer import output_error
from imageshards import storage, tfrecord
from imageshards.errors import UserError
from imageshards.example import decode_example
from imageshards.index import (
    IndexRows,
    has_index,
    index_schema,
    index_table,
    read_shard_index,
    rows_of,
    write_index,
)
from imageshards.manifest import (
    CLASS_FEATURE,
    DALI_SUFFIX,
    LOCK_NAME,
    MANIFEST_NAME,
    REMOVAL_NAME,
    REPORT_NAME,
    STAGING_NAME,
    load_manifest,
    shards_of,
    without_index,
    write_manifest,
)
from imageshards.progress import note_activity
from imageshards.storage import AtomicFile, map_concurrently, output_lock
from imageshards.text import counted

# In the staging folder: the new shards.
_NEW_NAME = "removal"


@dataclasses.dataclass(frozen=True)
class Removed:
    """What a removal came to.

    Attributes:
        records: Records that were removed.
        shards, of_shards: Shards that were written again, and all there are.
        moved: Records that went to another shard, to keep shards even.
        lost_idx: Whether `.idx` files were removed with their shards.
    """

    records: int
    shards: int
    of_shards: int
    moved: int
    lost_idx: bool


@dataclasses.dataclass
class _Shard:
    """A shard, and what becomes of it: records of the old one and of others, by number."""

    split: str
    entry: dict[str, Any]
    gone: set[int]
    keep: list[int] = dataclasses.field(default_factory=list)
    take: list[tuple[_Shard, int]] = dataclasses.field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether it is written again."""
        return bool(self.take) or len(self.keep) < self.entry["num_records"]


def remove_records(directory: str, keys: Sequence[str], given: str) -> Removed:
    """Removes the records with some keys from a data set, and resumes a removal that was killed.

    The shards of a split stay even: where their counts would differ by more than one, records
    move from the end of fuller ones to emptier ones.

    Args:
        directory: The data set, here or in a store.
        keys: Of the records, each once.
        given: What named them, for messages.

    Raises:
        UserError: There is no data set, a key is not in it, too little would be left, a shard is
            damaged, a job writes there, or it cannot be written.
    """
    staging = storage.join(directory, STAGING_NAME)
    digest = _digest(keys)
    if not storage.exists(storage.join(staging, REMOVAL_NAME)):
        load_manifest(directory, "DIR")  # before a folder is made
    with output_lock(storage.join(staging, LOCK_NAME)) as lock:
        lock.renew()
        try:
            if pending := _pending(directory, staging):
                done = _commit(directory, staging, pending)
                if pending["keys"] == digest:
                    return done
                # Told now: the keys of this one may yet be refused.
                print(
                    f"finished an earlier removal of other keys that was stopped in {directory}: "
                    f"{counted(done.records, 'record')} removed",
                    file=sys.stderr,
                )
            else:
                return _commit(directory, staging, _prepare(directory, staging, keys, given))
        except OSError as e:
            raise output_error(directory, e) from e
    own = remove_records(directory, keys, given)
    return dataclasses.replace(own, lost_idx=own.lost_idx or done.lost_idx)


def _digest(keys: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(keys).encode()).hexdigest()


def _pending(directory: str, staging: str) -> dict[str, Any]:
    """A removal whose new shards are all written, unless the data set was replaced since."""
    pending = read_json(storage.join(staging, REMOVAL_NAME))
    there = read_json(storage.join(directory, MANIFEST_NAME)).get("fingerprint")
    if not pending or there in (None, pending["before"], pending["manifest"]["fingerprint"]):
        return pending
    return {}


# Writing the new shards.


def _prepare(directory: str, staging: str, keys: Sequence[str], given: str) -> dict[str, Any]:
    """Writes new shards into the staging folder; returns what `_commit` needs, also from there."""
    if storage.exists(storage.join(staging, JOB_NAME)):
        raise UserError(
            f"DIR received {directory!r}, where a build has not ended; run its command again to "
            f"finish it, or delete {staging} to forget it."
        )
    try:
        pending = _write_changed(directory, storage.join(staging, _NEW_NAME), keys, given)
    except UserError:
        staging_folder.remove(staging)
        raise
    storage.write(storage.join(staging, REMOVAL_NAME), json.dumps(pending))
    return pending


def _write_changed(directory: str, new: str, keys: Sequence[str], given: str) -> dict[str, Any]:
    before = load_manifest(directory, "DIR")
    shards = _shards_with(directory, before, set(keys))
    _check_found(sum(len(shard.gone) for shard in shards), directory, before, keys, given)
    moved = _plan(before, shards)
    changed = [shard for shard in shards if shard.changed]
    if storage.is_local(new):
        os.makedirs(new, exist_ok=True)
    entries = dict(
        map_concurrently(
            lambda shard: (shard.entry["file"], _write(directory, new, before, shard)), changed
        )
    )
    manifest = copy.deepcopy(before)
    for split in manifest["splits"].values():
        split["shards"] = [entries.get(entry["file"], entry) for entry in split["shards"]]
        split["num_records"] = sum(entry["num_records"] for entry in split["shards"])
    manifest["listed"] -= len(keys)
    manifest["removed"] = before.get("removed", 0) + len(keys)
    text = json.dumps([before["fingerprint"], without_index(manifest["splits"])], sort_keys=True)
    manifest["fingerprint"] = hashlib.sha256(text.encode()).hexdigest()
    return {
        "keys": _digest(keys),
        "before": before["fingerprint"],
        "manifest": manifest,
        "files": sorted(entries),
        "report": storage.is_folder(storage.join(directory, REPORT_NAME)),
        "removed": [len(keys), len(changed), len(shards), moved],
    }


def _shards_with(
    directory: str, manifest: Mapping[str, Any], keys: Collection[str]
) -> list[_Shard]:
    """All shards, each with the numbers of its records that have some keys."""

    def look(found: tuple[str, dict[str, Any]]) -> _Shard:
        split, entry = found
        own = enumerate(_keys_of(directory, manifest, entry))
        shard = _Shard(split, entry, {i for i, key in own if key in keys})
        note_activity("looking for the keys", 1, "shard")
        return shard

    return list(map_concurrently(look, shards_of(manifest)))


def _keys_of(
    directory: str, manifest: Mapping[str, Any], entry: Mapping[str, Any]
) -> Iterator[str]:
    if has_index(manifest):
        schema = index_schema(manifest["features"])
        schema = schema.empty_table().select(["key"]).schema
        yield from read_shard_index(directory, entry, schema, "DIR")["key"].to_pylist()
        return
    for ref in list_records(storage.join(directory, entry["file"]), None, entry):
        yield ref.key


def _check_found(
    count: int,
    directory: str,
    manifest: Mapping[str, Any],
    keys: Sequence[str],
    given: str,
) -> None:
    if count == len(keys):
        return
    absent = set(keys)
    for _, entry in shards_of(manifest):
        absent.difference_update(_keys_of(directory, manifest, entry))
    first = min(absent) if absent else keys[0]
    raise UserError(
        f"--keys {given!r} has {len(absent):,} of {counted(len(keys), 'key')} that {directory!r} "
        "has not, "
        f"{first!r} among them; expected keys as records have them in image/filename: fix them or "
        "leave them out."
    )


def _plan(manifest: Mapping[str, Any], shards: Sequence[_Shard]) -> int:
    """Fills in what becomes of every shard; returns how many records move to another one.

    Raises:
        UserError: A split would have fewer records than shards.
    """
    groups: dict[tuple[str, str], list[_Shard]] = collections.defaultdict(list)
    for shard in shards:
        shard.keep = [i for i in range(shard.entry["num_records"]) if i not in shard.gone]
        of_class = next(iter(shard.entry["classes"]), "")
        by_class = manifest.get("shard_by") == "class"
        groups[shard.split, of_class if by_class else ""].append(shard)
    moved = 0
    for (split, name), group in groups.items():
        counts = [len(shard.keep) for shard in group]
        if sum(counts) < len(group) and any(shard.gone for shard in group):
            what = f"class {name!r} of split" if name else "split"
            raise UserError(
                f"--keys would leave {counted(sum(counts), 'record')} of {what} {split!r} in "
                f"{len(group)} "
                "shards; expected at least one each: build a data set of fewer shards with "
                "imageshards build --input DIR --exclude KEYS --output OTHER."
            )
        if not any(shard.gone for shard in group):
            continue
        moves = plan_moves(counts)
        given = collections.Counter(move.source for move in moves)
        for move in moves:
            source = group[move.source]
            group[move.target].take.append((source, source.keep[move.record]))
        for number, shard in enumerate(group):
            shard.keep = shard.keep[: counts[number] - given[number]]
        moved += len(moves)
    return moved


def _write(directory: str, new: str, manifest: Mapping[str, Any], shard: _Shard) -> dict[str, Any]:
    """Writes a shard anew, and its index; returns its entry in the manifest."""
    sources: list[tuple[Mapping[str, Any], list[int]]] = [(shard.entry, shard.keep)]
    for source, number in shard.take:
        if sources[-1][0] is not source.entry:
            sources.append((source.entry, []))
        sources[-1][1].append(number)
    payloads = (
        payload for entry, numbers in sources for payload in _payloads(directory, entry, numbers)
    )
    classes: list[str] = []
    compression = manifest.get("compression", "none")
    file = shard.entry["file"]
    num_bytes, sha256 = _write_payloads(storage.join(new, file), payloads, compression, classes)
    entry = shard.entry | {
        "num_records": len(classes),
        "num_bytes": num_bytes,
        "sha256": sha256,
        "classes": count_classes(classes),
    }
    if has_index(manifest):
        rows, schema = IndexRows(), index_schema(manifest["features"])
        for source_entry, numbers in sources:
            table = read_shard_index(directory, source_entry, schema, "DIR")
            rows.extend(rows_of(table, manifest["features"]), numbers)
        table = index_table(rows, shard.split, file, compression, manifest["features"])
        entry["index"] = write_index(new, file, table)
    note_activity("writing again", 1, "shard")
    return entry


def _payloads(directory: str, entry: Mapping[str, Any], numbers: Sequence[int]) -> Iterator[bytes]:
    """Some records of a shard, in order.

    Raises:
        UserError: One of them is damaged.
    """
    path = storage.join(directory, entry["file"])
    wanted = set(numbers)
    compression = "gzip" if path.endswith(".gz") else "none"
    problem = "it has lost records"
    for record in tfrecord.scan_file(path, compression):
        if not wanted:
            return
        if record.number not in wanted:
            continue
        if isinstance(record, tfrecord.RecordError):
            problem = str(record).rstrip(".")
            break
        wanted.discard(record.number)
        yield record.payload
    if wanted:
        raise UserError(
            f"DIR received {directory!r}, whose {entry['file']} is damaged ({problem}); nothing "
            "was removed: restore it, or build another data set with imageshards build "
            "--input DIR, which leaves damaged records out."
        )


def _write_payloads(
    path: str, payloads: Iterator[bytes], compression: str, classes: list[str]
) -> tuple[int, str]:
    """Writes a file of records, and adds their classes; returns its size and SHA-256."""

    def noted() -> Iterator[bytes]:
        for payload in payloads:
            (name,) = decode_example(payload, (CLASS_FEATURE,))[CLASS_FEATURE]
            classes.append(name.decode() if isinstance(name, bytes) else str(name))
            yield payload

    with AtomicFile(path) as file:
        num_bytes = tfrecord.write_records(file.local_path, noted(), compression)
        with open(file.local_path, "rb") as written:
            sha256 = hashlib.file_digest(written, "sha256").hexdigest()
        file.commit()
    return num_bytes, sha256


# Putting them in place.


def _commit(directory: str, staging: str, pending: Mapping[str, Any]) -> Removed:
    """Puts the new shards in their places, the manifest last; may be done again."""
    note_activity("putting the new shards in place")
    manifest, files = pending["manifest"], pending["files"]
    new = storage.join(staging, _NEW_NAME)
    # Without TFDS's files, too, other readers take no half-changed shards for a data set.
    gone = (MANIFEST_NAME, *TFDS_NAMES)
    storage.delete([storage.join(directory, name) for name in gone])
    entries = {entry["file"]: entry for _, entry in shards_of(manifest)}
    beside = [entries[file]["index"]["file"] for file in files if "index" in entries[file]]
    for _ in map_concurrently(
        lambda name: move_staged(storage.join(new, name), storage.join(directory, name)),
        [*files, *beside],
    ):
        pass
    idx = [storage.join(directory, file + DALI_SUFFIX) for file in files]
    lost_idx = any(map_concurrently(storage.exists, idx))
    storage.delete(idx)
    storage.delete_folder(storage.join(directory, REPORT_NAME))  # it shows what is gone
    for name, text in companion_files(manifest, directory).items():
        storage.write(storage.join(directory, name), text)
    storage.sync(*(storage.join(directory, name) for name in [*files, *beside]), directory)
    write_manifest(directory, manifest)
    if pending["report"]:
        from beam_pipeline.report import try_report

        try_report(directory, manifest)
    staging_folder.remove(staging)
    records, changed, of_shards, moved = pending["removed"]
    return Removed(records, changed, of_shards, moved, lost_idx)
