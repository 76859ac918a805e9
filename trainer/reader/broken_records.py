"""`--skip_broken`: broken records are left out up to a number, named, and nothing else moves."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from imageshards import storage
from imageshards.errors import UserError
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.dataset.manifest import wrong_sizes
from trainer.dataset.spec import FeatureSpec, Subset
from trainer.output_errors import output_errors
from trainer.reader.find_broken import BrokenRecord, find_broken
from trainer.reader.plan import Array

LIST_FILE = "broken.json"


class BrokenRecordHandler:
    """Finds what is broken and masks it, for every split of one run.

    A broken record keeps its place in the order, with weight 0, so nothing behind it moves
    and a restarted run goes on exactly. The list is kept in `broken.json`: a restarted run
    knows it from the beginning.

    Args:
        limit: How many records may be left out, in all splits together.
        output: The run's folder, where the list is kept. None to keep it in memory only.
        features: The model's inputs besides the picture, which have to be there, too.
        hosts: Those that read the same data; what one finds broken all leave out.
    """

    def __init__(
        self,
        limit: int,
        output: str | None,
        features: Mapping[str, FeatureSpec] | None = None,
        hosts: Hosts = ONE_HOST,
    ) -> None:
        self._hosts = hosts
        self._limit = limit
        self._features = features
        self._output = output
        self._found: dict[str, list[BrokenRecord]] = {}
        if limit and output:
            known = _plain(_read_list(storage.join(output, LIST_FILE)))
            self._found = _parsed(hosts.gather("broken.json", known)[0])

    @property
    def found(self) -> list[BrokenRecord]:
        """Everything that is left out, in the order of splits and records."""
        return [record for records in self._found.values() for record in records]

    def open(self, subset: Subset) -> Subset:
        """Masks what is known to be broken, and looks at shards that have a wrong size.

        Raises:
            UserError: That is more than may be left out.
        """
        if not self._limit:
            return subset
        wrong = {shard.path for shard, _ in wrong_sizes(subset.split.shards)}
        places = zip(subset.split.shards, subset.split.starts, strict=True)
        ranges = (range(s, s + one.num_records) for one, s in places if one.path in wrong)
        suspects = [number for numbers in ranges for number in numbers]
        found = find_broken(subset, suspects, self._features) if suspects else []
        return self._masked(subset, found)

    def handle(self, subset: Subset, records: Array, error: Exception | None) -> Subset:
        """Finds what made reading fail, and masks it.

        Args:
            subset: What was read.
            records: Those that may have done it.
            error: What TensorFlow said; None where reading failed on other hosts only.

        Returns:
            `subset` with everything masked that is known to be broken.

        Raises:
            UserError: Nothing may be left out, or not as much, or no record is broken.
        """
        fresh = []
        if error is not None:
            found = find_broken(subset, records, self._features)
            fresh = [one for one in found if one.record not in subset.broken]
            if not (fresh and self._limit):
                raise explain(error, subset, fresh)
        return self._masked(subset, fresh)

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
                f"⟦--data⟧ {subset.dataset.data!r} are broken (the last one found: {found[0]}); "
                "expected at most that many: allow more, or build the data set again."
            )

    def _masked(self, subset: Subset, found: Sequence[BrokenRecord]) -> Subset:
        self._note(subset, found)
        broken = frozenset(one.record for one in self._found[subset.split.name])
        return dataclasses.replace(subset, broken=broken)


def explain(error: BaseException, subset: Subset, found: Sequence[BrokenRecord]) -> UserError:
    """What a person is told when reading has failed."""
    dataset = subset.dataset
    look = f"look with imageshards verify {dataset.data}, " * (not dataset.adopted)
    if not found:
        return UserError(
            f"⟦--data⟧ received {dataset.data!r}, whose split {subset.split.name} cannot be read "
            f"({_first_line(error)}), though no record is broken; {look}look at memory, disk, "
            "network or store, then run the same command again."
        )
    others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return UserError(
        f"⟦--data⟧ received {dataset.data!r}, which is broken at {found[0]}{others}; "
        f"{look}fix or copy the file, or leave such records out by "
        f"⟦--skip_broken {len(found)}|skip_broken={len(found)}⟧."
    )


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


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "message", error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = (line for line in lines if not line.startswith("Detected at"))
    return next(told, "no reason given")[:300]
