"""Adds up the results of all shards, and checks that few enough images were rejected."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from beam_pipeline.option_texts import invalid
from beam_pipeline.planning.missing import HOW_PATHS_ARE_READ, why_missing
from beam_pipeline.shards.result import ShardResult, ShardStats, merge_stats, most_first
from imageshards import storage
from imageshards.manifest import REJECTS_NAME, Reject
from imageshards.text import counted
from imageshards.typed import decode

_SHOWN_REJECTS = 3


@dataclasses.dataclass
class WriteSummary:
    """Totals of some shards."""

    shards: list[ShardResult] = dataclasses.field(default_factory=list)  # without details
    stats: dict[str, ShardStats] = dataclasses.field(default_factory=dict)  # by split
    reused_images: int = 0  # images in shards that an earlier run had finished

    @property
    def rejects(self) -> dict[str, int]:
        """Reason → rejected images, the most frequent reason first."""
        return merge_stats(self.stats.values()).of("rejects")


def add_up(summaries: Iterable[WriteSummary]) -> WriteSummary:
    total = WriteSummary()
    for summary in summaries:
        total.shards += summary.shards
        for split, stats in summary.stats.items():
            total.stats[split] = merge_stats([total.stats.get(split, ShardStats()), stats])
        total.reused_images += summary.reused_images
    return total


def without_shards(summary: WriteSummary) -> WriteSummary:
    """Returns the totals alone, whose size does not depend on the number of shards."""
    return dataclasses.replace(summary, shards=[])


def write_list(rejects: Iterable[Reject], folder: str) -> str:
    """Writes one line of JSON for each reject into a file in `folder`; returns the path."""
    path = storage.join(folder, REJECTS_NAME)
    with storage.open_write(path) as lines:
        for reject in rejects:
            fields = msgspec.structs.asdict(reject)
            lines.write((json.dumps(fields, ensure_ascii=False) + "\n").encode())
    return path


def remedies(counts: Mapping[str, int]) -> list[str]:
    """Returns sentences that say what to do about rejects of some reasons."""
    if pointers := counts.get("git_lfs_pointer"):
        return [
            f"{counted(pointers, 'file')} of the input held a pointer of Git LFS in place of the "
            "picture: run git lfs pull in the clone, then build again"
        ]
    return []


def check_budget(counts: Mapping[str, int], listed: int, max_fraction: float, where: str) -> None:
    """Raises `UserError`, with reasons and examples, if more images were rejected than allowed.

    The examples come from `where`, the path of the list of rejects.
    """
    allowed = math.floor(max_fraction * listed + 1e-9)  # 0.29 * 100 is a little below 29
    if max_fraction and listed > 1:
        allowed = max(1, allowed)  # 1 % of 50 images would allow none
    rejected = sum(counts.values())
    if rejected <= allowed:
        return
    table = ", ".join(f"{reason} {count}" for reason, count in most_first(counts).items())
    remedy = "fix or remove them or raise the fraction"
    # If most files are missing, the paths of a table were probably read in the wrong way.
    if 2 * counts.get("not_found", 0) > listed:
        place = next(reject.uri for reject in _read_list(where) if reject.reason == "not_found")
        table += f", such as {why_missing(place)}"
        remedy = HOW_PATHS_ARE_READ
    some = itertools.islice(_read_list(where), _SHOWN_REJECTS)
    first = ", ".join(f"{reject.key!r} ({reject.reason})" for reject in some)
    raise invalid(
        "max_reject_fraction",
        f"{max_fraction:g}, which allows {allowed} of {counted(listed, 'image')} to be "
        f"rejected, but {rejected} were ({table}), first {first}",
        remedy=f"see {where}, {remedy}, then give the same command again: finished shards are kept "
        "and nothing was committed" + "".join(f". {sentence}" for sentence in remedies(counts)),
    )


def _read_list(path: str) -> Iterator[Reject]:
    with storage.open_read(path) as lines:
        yield from (decode(line, Reject) for line in lines)
