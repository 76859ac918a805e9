"""`--skip_broken`: broken records are left out up to a number, named, and nothing else moves."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imageshards import storage
from imageshards.errors import UserError
from imageshards.tfrecord import Record, scan_file, write_records
from trainer.cluster.connection import note_work
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.dataset.manifest import wrong_sizes
from trainer.dataset.spec import FeatureSpec, Shard, Split, Subset
from trainer.output_errors import output_errors
from trainer.reader.find_broken import BrokenRecord, find_broken

LIST_FILE = "broken.json"
# What the reader takes for a record of weight 0.
PLACEHOLDER = b""
_FOLDER = "repaired"


class BrokenRecordHandler:
    """Finds what is broken and takes it out, for every split of one run.

    A broken record keeps its place in the order, with weight 0, so nothing behind it moves
    and a restarted run goes on exactly. The list is kept in `broken.json`: a restarted run
    knows it from the beginning.

    Args:
        limit: How many records may be left out, in all splits together.
        output: The run's folder, where the list and repaired copies of shards are kept; copies
            for one in a store are kept on this machine while the process runs, as TensorFlow
            reads them. None to keep the list in memory only, where nothing may be left out.
        data: As `--data` named it.
        features: The model's inputs besides the picture, which have to be there, too.
        hosts: Those that read the same data; what one finds broken all leave out.
    """

    def __init__(
        self,
        limit: int,
        output: str | None,
        data: str,
        features: Mapping[str, FeatureSpec] | None = None,
        hosts: Hosts = ONE_HOST,
    ) -> None:
        self._hosts = hosts
        self._limit = limit
        self._features = features
        self._output = output
        self._data = data
        self._found: dict[str, list[BrokenRecord]] = {}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if limit and output:
            known = _plain(_read_list(storage.join(output, LIST_FILE)))
            self._found = _parsed(hosts.gather("broken.json", known)[0])

    @property
    def found(self) -> list[BrokenRecord]:
        """Everything that is left out, in the order of splits and records."""
        return [record for records in self._found.values() for record in records]

    def open(self, subset: Subset) -> Subset:
        """Takes out what is known to be broken, and looks at shards that have a wrong size.

        Raises:
            UserError: That is more than may be left out.
        """
        if not self._limit:
            return subset
        wrong = wrong_sizes(subset.split.shards)
        self._note(subset, find_broken(subset, None, self._features) if wrong else [])
        return self._repaired(subset)

    def handle(
        self, subset: Subset, records: Sequence[int] | None, error: Exception | None
    ) -> Subset:
        """Finds what made reading fail, and takes it out.

        Args:
            subset: The split as it was before anything was taken out.
            records: Those that may have done it; None to look at all.
            error: What TensorFlow said; None where reading failed on other hosts only.

        Returns:
            `subset` without everything that is known to be broken.

        Raises:
            UserError: Nothing may be left out, or not as much.
        """
        fresh = self._fresh(subset, records, error) if error is not None else []
        if error is not None and not (fresh and self._limit):
            raise explain(error, subset, fresh)
        self._note(subset, fresh)
        return self._repaired(subset)

    def _fresh(
        self, subset: Subset, records: Sequence[int] | None, error: Exception
    ) -> list[BrokenRecord]:
        """What is broken and was not known to be."""
        known = {record.record for record in self._found.get(subset.split.name, [])}
        for suspects in (records, None):
            found = find_broken(subset, suspects, self._features)
            if fresh := [record for record in found if record.record not in known]:
                return fresh
        return []

    def _note(self, subset: Subset, mine: Sequence[BrokenRecord]) -> None:
        """Adds what this host has found to what is known, and what all others have."""
        of_hosts = self._hosts.gather("broken records", [dataclasses.asdict(one) for one in mine])
        found = [BrokenRecord(**one) for part in of_hosts for one in part]
        records = self._found.setdefault(subset.split.name, [])
        known = {record.record: record for record in reversed([*records, *found])}
        if len(known) == len(records):
            return
        records[:] = sorted(known.values(), key=lambda record: record.record)
        if self._output:
            text = json.dumps(_plain(self._found), indent=1)
            with output_errors(self._output, LIST_FILE):
                storage.write(storage.join(self._output, LIST_FILE), text)
        if len(self.found) > self._limit:
            raise UserError(
                f"⟦--skip_broken⟧ received {self._limit}, but {len(self.found)} records of "
                f"⟦--data⟧ {self._data!r} are broken (the last one found: {found[0]}); expected at "
                "most that many: allow more, or build the data set again."
            )

    def _repaired(self, subset: Subset) -> Subset:
        found = self._found.get(subset.split.name)
        if not found or self._output is None:
            return subset
        folder = os.path.join(self._output, _FOLDER)
        if not storage.is_local(self._output):
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="imageshards-")
            folder = self._temporary.name
        return repair(subset, found, folder)


def explain(error: BaseException, subset: Subset, found: Sequence[BrokenRecord]) -> UserError:
    """What a person is told when reading has failed."""
    dataset = subset.dataset
    for part, own in dataset.by_part(subset.split):
        if any(shard.path == one.path for shard in own.shards for one in found[:1]):
            dataset = part
    # Of several data sets verify looks at one.
    can_verify = not dataset.adopted and not dataset.parts
    look = f"look with imageshards verify {dataset.data}, " * can_verify
    if not found:
        return UserError(
            f"⟦--data⟧ received {dataset.data!r}, and reading its split {subset.split.name} failed "
            f"({_first_line(error)}), though no record of it is broken now; {look}or start again."
        )
    others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return UserError(
        f"⟦--data⟧ received {dataset.data!r}, which is broken at {found[0]}{others}; "
        f"{look}fix or copy the file, or leave such records out by "
        f"⟦--skip_broken {len(found)}|skip_broken={len(found)}⟧."
    )


def unreadable(error: BaseException, subset: Subset, attempts: int) -> UserError:
    """What a person is told when reading has failed, and no record is to blame."""
    tried = f", tried {attempts} times" if attempts > 1 else ""
    return UserError(
        f"⟦--data⟧ received {subset.dataset.data!r}, whose split {subset.split.name} cannot be "
        f"read ({type(error).__name__}: {_first_line(error)}{tried}), though no record is broken; "
        "look at memory, disk, network or store, then run the same command again."
    )


def repair(subset: Subset, found: Sequence[BrokenRecord], folder: str) -> Subset:
    """The same split with broken records replaced by empty ones, in copies of their shards.

    An empty record keeps the place of a broken or missing one and has weight 0; what a shard
    holds beyond its count is left out. Nothing else moves: which records are read, and how often,
    is known from the index.

    Returns:
        `subset` with other paths and sizes.

    Raises:
        UserError: `folder` cannot be written.
    """
    numbers: dict[str, set[int]] = defaultdict(set)
    for record in found:
        numbers[record.path].add(record.number)
    whole = subset.split
    shards = list(whole.shards)
    for index, shard in enumerate(whole.shards):
        if shard.path in numbers:
            name = f"{whole.name}-{index:05d}-{os.path.basename(shard.path)}"
            path = os.path.join(folder, name)
            shards[index] = _copy(shard, numbers[shard.path], path)
    return dataclasses.replace(subset, split=Split(whole.name, tuple(shards)))


def _plain(found: Mapping[str, Sequence[BrokenRecord]]) -> dict[str, Any]:
    return {split: [dataclasses.asdict(one) for one in broken] for split, broken in found.items()}


def _parsed(raw: Mapping[str, Any]) -> dict[str, list[BrokenRecord]]:
    return {split: [BrokenRecord(**one) for one in broken] for split, broken in raw.items()}


def _read_list(path: str) -> dict[str, list[BrokenRecord]]:
    try:
        return _parsed(json.loads(storage.read(path)))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as e:
        raise UserError(
            f"⟦--output⟧ holds {path}, which cannot be read ({e}); delete it: what is broken is "
            "found again."
        ) from e


def _copy(shard: Shard, broken: set[int], path: str) -> Shard:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        num_bytes = write_records(path, _kept(shard, broken))
    except OSError as e:
        raise UserError(
            f"⟦--output⟧ received a folder in which {path}, a copy of a shard without its broken "
            f"records, cannot be written ({e.strerror or e}); expected {shard.num_bytes} bytes of "
            "room in a folder that may be written."
        ) from e
    return Shard(path, shard.num_records, num_bytes)


def _kept(shard: Shard, broken: set[int]) -> Iterator[bytes]:
    """As many payloads as the shard should hold."""
    number = 0
    with contextlib.suppress(FileNotFoundError):
        for record in scan_file(shard.path):
            if record.number >= shard.num_records:
                return
            note_work()
            if isinstance(record, Record) and record.number not in broken:
                yield record.payload
            else:
                yield PLACEHOLDER
            number += 1
    for _ in range(number, shard.num_records):
        yield PLACEHOLDER


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "message", error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = (line for line in lines if not line.startswith("Detected at"))
    return next(told, "no reason given")[:300]
