"""Counts and lists damaged records, which are read as empty records up to `--skip_broken`."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Iterable, Mapping

from imageshards import storage
from imageshards.commands.output_folder import output_errors
from imageshards.errors import Arg, UserError
from imageshards.tfrecord import RecordError
from imageshards.typed import convert
from trainer.dataset.spec import DatasetSpec

LIST_FILE = "broken.json"


@dataclasses.dataclass(frozen=True)
class BrokenRecord:
    """A record that cannot be read.

    Attributes:
        path: Shard of the record.
        number: Number of the record within the shard, from 0.
        record: Number of the record within the split.
        offset_bytes: Offset of the record in the shard, according to the index.
        reason: The damage, without a full stop.
    """

    path: str
    number: int
    record: int
    offset_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, record {self.number} at byte {self.offset_bytes}: {self.reason}"


# The content of `broken.json`: the damaged records of each split.
_Listed = dict[str, list[BrokenRecord]]


class BrokenRecords:
    """The damaged records of a run, in all splits that the run reads.

    A damaged record keeps its position, with weight 0, so nothing behind it moves. The reader notes
    the record early, but the record counts only after its batch was used. `broken.json` keeps the
    list, so a resumed run counts from the same number.

    Args:
        limit: How many records of all splits together may be damaged.
        dataset: Dataset of the splits.
        output: Folder of the run, for the list. None to keep the list in memory.

    Attributes:
        limit: As given.
    """

    def __init__(self, limit: int, dataset: DatasetSpec, output: str | None = None) -> None:
        self.limit, self._dataset, self._output = limit, dataset, output
        self._lock = threading.Lock()
        self._found: dict[str, dict[int, BrokenRecord]] = {}
        # Each noted record has the number of the first batch that holds the record.
        self._noted: dict[str, dict[int, tuple[int, BrokenRecord]]] = {}
        if limit and output:
            self._add(_read_list(storage.join(output, LIST_FILE)))
        self._listed = len(self.found)

    @property
    def found(self) -> list[BrokenRecord]:
        """Returns all damaged records that count, in the order of splits and records."""
        with self._lock:
            splits = list(self._found.values())
            return [records[number] for records in splits for number in sorted(records)]

    def note(self, split: str, record: int, step: int, error: RecordError) -> None:
        """Notes a damaged record in batch `step` of a split."""
        found = BrokenRecord(error.path, error.number, record, error.offset_bytes, error.reason)
        with self._lock:
            self._noted.setdefault(split, {}).setdefault(record, (step, found))

    def count(self, split: str, steps: float = math.inf) -> None:
        """Counts the damaged records in the first `steps` batches of a split; refuses too many."""
        with self._lock:
            noted = list(self._noted.get(split, {}).values())
        # The reader is ahead of the training, so records of later batches do not count yet.
        self._add({split: [record for step, record in noted if step < steps]})
        self._check()

    def as_json(self) -> dict[str, list[dict[str, str | int]]]:
        """Returns the list as JSON values, for the `merge` of all hosts."""
        with self._lock:
            return {
                split: [dataclasses.asdict(records[number]) for number in sorted(records)]
                for split, records in sorted(self._found.items())
                if records
            }

    def merge(self, of_hosts: Iterable[Mapping[str, object]]) -> None:
        """Adds the records that hosts have found, writes a longer list, and refuses too many."""
        for found in of_hosts:
            self._add(convert(found, _Listed))
        if self._output and len(self.found) != self._listed:
            with output_errors(self._output, LIST_FILE):
                path = storage.join(self._output, LIST_FILE)
                storage.write(path, json.dumps(self.as_json(), indent=1))
            self._listed = len(self.found)
        self._check()

    def _check(self) -> None:
        found, data = self.found, self._dataset.data
        if found and not self.limit:
            raise UserError(
                argument="data",
                received=f"{data!r}, which is broken at {found[0]}",
                remedy=f"list all broken records with imageshards verify {data}, fix or copy the "
                "file, or leave broken records out by " + Arg("skip_broken", 1),
            )
        if len(found) > self.limit:
            raise UserError(
                argument="skip_broken",
                received=f"{self.limit}, but {len(found)} records of {data!r} are broken (one is "
                f"{found[-1]})",
                remedy="allow more, or build the dataset again",
            )

    def _add(self, found: Mapping[str, Iterable[BrokenRecord]]) -> None:
        with self._lock:
            for split, records in found.items():
                known = self._found.setdefault(split, {})
                # A record that is found again, after a restart or by another host, counts once.
                for record in records:
                    known.setdefault(record.record, record)


def _read_list(path: str) -> _Listed:
    try:
        # Only Python's decoder of JSON accepts names of files that are not UTF-8.
        return convert(json.loads(storage.read(path)), _Listed)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise UserError(
            argument="output",
            received=f"a folder with {path}, which cannot be read ({e})",
            remedy="delete the file, as the damaged records are found again",
        ) from e
