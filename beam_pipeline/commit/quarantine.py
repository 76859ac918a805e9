"""The rejects of a build: their list, and how many are allowed."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping

from beam_pipeline.shards.result import Reject
from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import REJECTS_NAME
from imageshards.text import counted, printable

# Rejects that are in memory at once when they are sorted, some 20 MB.
RUN_LENGTH = 50_000


def most_first(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by their names, the largest first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def write_list(rejects: Iterable[Reject], folder: str) -> str:
    """Writes one JSON object per reject, ordered by split and key; returns the path.

    However many there are, only `RUN_LENGTH` are in memory: sorted runs of them wait in
    temporary files, and are merged.
    """
    path = storage.join(folder, REJECTS_NAME)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="imageshards-"))
        runs: list[Iterable[tuple[str, str, str]]] = []
        left = iter(rejects)
        while run := sorted((r.split, r.key, _line(r)) for r in itertools.islice(left, RUN_LENGTH)):
            runs.append(run if len(run) < RUN_LENGTH else _waiting(run, scratch, stack))
        merged = os.path.join(scratch, REJECTS_NAME)
        with open(merged, "w", encoding="utf-8") as file:
            file.writelines(line for _, _, line in heapq.merge(*runs))
        storage.upload(merged, path)
    return path


def _waiting(
    run: list[tuple[str, str, str]], scratch: str, stack: contextlib.ExitStack
) -> Iterator[tuple[str, str, str]]:
    """What a run holds, from a temporary file."""
    file = stack.enter_context(tempfile.TemporaryFile("w+", dir=scratch, encoding="ascii"))
    file.writelines(json.dumps(row) + "\n" for row in run)
    file.seek(0)
    return (tuple(json.loads(line)) for line in file)


def _line(reject: Reject) -> str:
    fields = {name: printable(text) for name, text in dataclasses.asdict(reject).items()}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def allowed_rejects(listed: int, max_fraction: float) -> int:
    """How many images may be rejected."""
    return math.floor(max_fraction * listed + 1e-9)  # 0.29 * 100 is a little below 29


def check_budget(counts: Mapping[str, int], listed: int, max_fraction: float, where: str) -> None:
    """Raises `UserError`, with the reasons, if more images were rejected than allowed.

    Args:
        counts: Reason → rejected images.
        listed: Images in all.
        max_fraction: Of them that may be rejected.
        where: The list of rejects.
    """
    allowed = allowed_rejects(listed, max_fraction)
    rejected = sum(counts.values())
    if rejected <= allowed:
        return
    table = ", ".join(f"{reason} {count}" for reason, count in most_first(counts).items())
    raise UserError(
        f"--max_reject_fraction {max_fraction:g} allows {allowed} of {counted(listed, 'image')} "
        f"to be rejected, but {rejected} were ({table}); see {where}, fix or remove them or raise "
        "the fraction, then give the same command again: finished shards are kept and nothing "
        "was committed."
    )
