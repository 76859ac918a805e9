"""How far a job elsewhere is: by its metrics, else by the shards it has finished."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from beam_pipeline.progress import progress_line
from imageshards import storage
from imageshards.errors import UserError

_RESULT = re.compile(r"(\w+)-\d{5}-of-(\d{5})\.json")
# A listing of a store is a request, and metrics are a call to the job service.
_ASK_SEC = 2.0


class RemoteProgress:
    """The line a person sees.

    Args:
        staging: Where finished shards are noted.
        counters: Gives the runner's metrics so far, (namespace, name) → value.
    """

    def __init__(self, staging: str, counters: Callable[[], dict[tuple[str, str], int]]):
        self._staging = staging
        self._counters = counters
        self._asked = 0.0
        self._begun: tuple[float, int] | None = None
        self._line = ""

    def line(self) -> str:
        """How far the job is; what was last found when it was asked for just now."""
        now = time.monotonic()
        if now - self._asked >= _ASK_SEC:
            self._asked = now
            self._line = self._by_metrics(now) or self._by_shards()
        return self._line

    def _by_metrics(self, now: float) -> str:
        found = self._counters()
        images = found.get(("write", "images"), 0)
        reused = found.get(("write", "reused"), 0)
        total = found.get(("plan", "images"), 0)
        if not images + reused or not total:
            return ""
        if self._begun is None:
            self._begun = (now, images)
        seconds, first = now - self._begun[0], self._begun[1]
        size_bytes, rejects = (
            found.get(("write", "bytes_read"), 0),
            found.get(("write", "rejects"), 0),
        )
        size_bytes = size_bytes * (images - first) // max(1, images)
        return progress_line(
            min(images + reused, total), total, size_bytes, rejects, reused + first, seconds
        )

    def _by_shards(self) -> str:
        try:
            names = [entry.name for entry in storage.list_folder(self._staging)]
        except (OSError, UserError):
            return ""
        found = [match for name in names if (match := _RESULT.fullmatch(name))]
        totals = {match[1]: int(match[2]) for match in found}
        return f"{len(found):,}/{sum(totals.values()):,} shards" if found else ""
