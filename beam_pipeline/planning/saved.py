"""The numbers of shards of an unfinished data set, which a resumed build keeps."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping

from beam_pipeline.options import MAX_SHARDS, ImageOptions, PlanOptions
from beam_pipeline.planning.plan import ShardPlan, make_plan
from imageshards import storage
from imageshards.form import keyed, loads, mapped, text, whole

# In the staging folder.
PLAN_NAME = "plan.json"
_FORM = keyed({"survey": text(), "num_shards": mapped(whole(MAX_SHARDS, 1))})

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

    Sampled images decide how many shards a split gets. Another run may fail to read one of them,
    and another number of shards would make all finished shards worthless. So the numbers are saved
    with a digest of the survey and of the options, and a run with the same digest uses them.

    Args:
        path: The file of the saved numbers; "" to save none.
        counts, kinds, options, mean_record_bytes: As for `make_plan`; the mean is asked for where
            no numbers were saved.
        image: How pictures are encoded.

    Raises:
        UserError: As `make_plan`.
    """
    surveyed = repr((sorted(counts.items()), sorted(kinds.items()), options, image))
    digest = hashlib.sha256(surveyed.encode("utf-8", "backslashreplace")).hexdigest()
    with contextlib.suppress(FileNotFoundError, ValueError):
        found = loads(storage.read(path), _FORM) if path else {}
        if found.get("survey") == digest:
            options = dataclasses.replace(options, num_shards=found["num_shards"])
            return make_plan(counts, options, 0.0, kinds)
    plan = make_plan(counts, options, mean_record_bytes(), kinds)
    if path:
        saved = {"survey": digest, "num_shards": plan.num_shards}
        storage.write(path, json.dumps(saved) + "\n")
    return plan
