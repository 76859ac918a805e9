"""`--skip_broken`: broken records are left out up to a number, and never silently."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from imageshards.errors import UserError
from trainer.dataset.spec import FeatureSpec, Subset
from trainer.reader import broken_records
from trainer.reader.broken_records import BrokenRecord

LIST_FILE = "broken.json"
_FOLDER = "repaired"


class BrokenRecordHandler:
    """Finds what is broken and takes it out, for every split of one run.

    A broken record keeps its place in the order, with weight 0, so nothing behind it moves
    and a restarted run goes on exactly. The list is kept in `broken.json`: a restarted run
    knows it from the beginning.

    Args:
        limit: How many records may be left out, in all splits together.
        output: The run's folder, where the list and repaired copies of shards are kept;
            None to keep the list in memory only, where nothing may be left out.
        data: As `--data` named it.
        features: The model's inputs besides the picture, which have to be there, too.
    """

    def __init__(
        self,
        limit: int,
        output: str | None,
        data: str,
        features: Mapping[str, FeatureSpec] | None = None,
    ) -> None:
        self._limit = limit
        self._features = features
        self._output = output
        self._data = data
        self._found: dict[str, list[BrokenRecord]] = {}
        if limit and output:
            self._found = _read_list(os.path.join(output, LIST_FILE))

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
        suspicious = broken_records.wrong_files(subset)
        if suspicious:
            self._note(subset, self._find(subset, None))
        return self._repaired(subset)

    def handle(self, subset: Subset, records: Sequence[int] | None, error: Exception) -> Subset:
        """Finds what made reading fail, and takes it out.

        Args:
            subset: The split as it was before anything was taken out.
            records: Those that may have done it; None to look at all.
            error: What TensorFlow said.

        Returns:
            `subset` without everything that is known to be broken.

        Raises:
            UserError: Nothing may be left out, or not as much.
        """
        known = {record.record for record in self._found.get(subset.split.name, [])}
        found = self._find(subset, records)
        fresh = [record for record in found if record.record not in known]
        if not fresh and records is not None:
            found = self._find(subset, None)
            fresh = [record for record in found if record.record not in known]
        if not fresh:
            raise broken_records.explain(error, subset, ())
        if not self._limit:
            raise broken_records.explain(error, subset, fresh)
        self._note(subset, fresh)
        return self._repaired(subset)

    def _find(self, subset: Subset, records: Sequence[int] | None) -> list[BrokenRecord]:
        return broken_records.find(subset, records, framing=records is None, inputs=self._features)

    def _note(self, subset: Subset, found: Sequence[BrokenRecord]) -> None:
        records = self._found.setdefault(subset.split.name, [])
        known = {record.record for record in records}
        records.extend(record for record in found if record.record not in known)
        records.sort(key=lambda record: record.record)
        if self._output:
            _write_list(os.path.join(self._output, LIST_FILE), self._found)
        if len(self.found) > self._limit:
            first = broken_records.describe(found[0])
            raise UserError(
                f"--skip_broken received {self._limit}, but {len(self.found)} records of "
                f"--data {self._data!r} are broken (the last one found: {first}); expected at "
                "most that many: allow more, or build the data set again."
            )

    def _repaired(self, subset: Subset) -> Subset:
        found = self._found.get(subset.split.name)
        if not found or self._output is None:
            return subset
        return broken_records.repair(subset, found, os.path.join(self._output, _FOLDER))


def _read_list(path: str) -> dict[str, list[BrokenRecord]]:
    try:
        with open(path, encoding="utf-8") as f:
            raw = json.load(f)
        return {
            split: [BrokenRecord(**record) for record in records] for split, records in raw.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as e:
        raise UserError(
            f"--output holds {path}, which cannot be read ({e}); delete it: what is broken is "
            "found again."
        ) from e


def _write_list(path: str, found: dict[str, list[BrokenRecord]]) -> None:
    plain: dict[str, list[dict[str, Any]]] = {
        split: [dataclasses.asdict(record) for record in records]
        for split, records in found.items()
    }
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as f:
        json.dump(plain, f, indent=1)
    os.replace(temporary, path)
