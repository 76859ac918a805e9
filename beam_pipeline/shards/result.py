"""What is known of a shard that was written."""

from __future__ import annotations

import dataclasses
import json

from beam_pipeline.shards.record import ShardStats


@dataclasses.dataclass(frozen=True)
class Reject:
    """An image that did not become a record: a row of the quarantine."""

    key: str
    uri: str
    label: str
    split: str
    reason: str
    stage: str
    message: str


@dataclasses.dataclass(frozen=True)
class ShardResult:
    """What is known of a written shard; kept beside it, as JSON, when it is finished.

    Attributes:
        digest: Of everything its bytes depend on; tells finished work from stale work.
        name: Stem of its file.
        record_classes: Class of each record, in order.
        record_bytes: Size of each record with its framing, before any compression.
        stored: Version of its object in a store, by which an earlier run's is known again.
        staged: Whether its bytes are in the staging folder, not in their final place.
        reused: Whether an earlier run had written it.
    """

    digest: str
    name: str
    split: str
    group: str
    num_records: int
    num_bytes: int
    sha256: str
    record_classes: list[str]
    record_bytes: list[int]
    rejects: list[Reject]
    stats: ShardStats
    stored: str = ""
    staged: bool = True
    reused: bool = False

    def to_json(self) -> str:
        """The text of the file beside a finished shard."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ShardResult:
        """Raises ValueError, KeyError or TypeError for a text that is no result."""
        fields = json.loads(text)
        fields["rejects"] = [Reject(**reject) for reject in fields["rejects"]]
        fields["stats"] = ShardStats(**fields["stats"])
        return cls(**fields | {"reused": True})
