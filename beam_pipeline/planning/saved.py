"""Keeps the numbers of shards of an unfinished dataset, so that a resumed build uses them again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from beam_pipeline.options import MAX_SHARDS, ImageOptions, PlanOptions
from beam_pipeline.planning.plan import ShardPlan, make_plan
from imageshards import storage
from imageshards.typed import decode

# A file in the staging folder.
PLAN_NAME = "plan.json"


class _SavedPlan(msgspec.Struct, frozen=True):
    """Digest of a survey, and the number of shards of each split."""

    survey: str
    num_shards: dict[str, Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARDS)]]


Counts = Mapping[tuple[str, str], int]


def make_plan_once(
    path: str,
    counts: Counts,
    kinds: Counts,
    options: PlanOptions,
    image: ImageOptions,
    mean_record_bytes: Callable[[], float],
) -> ShardPlan:
    """Returns the plan for a survey of images, with the numbers of shards of an earlier run.

    `path` is the file for these numbers, "" to save none. `image` says how pictures are encoded.
    `mean_record_bytes` is called only if no numbers were saved. The rest is as for `make_plan`.
    """
    # Sampled images decide how many shards a split gets. If another run fails to read a sampled
    # image, another number of shards would make all finished shards worthless. A run with the same
    # survey and options therefore takes the saved numbers.
    surveyed = repr((sorted(counts.items()), sorted(kinds.items()), options, image))
    digest = hashlib.sha256(surveyed.encode("utf-8", "backslashreplace")).hexdigest()
    with contextlib.suppress(FileNotFoundError, ValueError):
        found = decode(storage.read(path), _SavedPlan) if path else None
        if found and found.survey == digest:
            options = dataclasses.replace(options, num_shards=found.num_shards)
            return make_plan(counts, options, 0.0, kinds)
    plan = make_plan(counts, options, mean_record_bytes(), kinds)
    if path:
        saved = _SavedPlan(digest, dict(plan.num_shards))
        storage.write(path, msgspec.json.encode(saved))
    return plan
