"""What was counted once, kept as JSON so that the next run need not count again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any


def cached(what: str, key: object, count: Callable[[], Any]) -> Any:
    """What `count()` returned when it was first called with this `key`.

    Says on stderr what it does. A cache that cannot be read or written is done without.

    Args:
        what: What is counted, for people.
        key: JSON values that say what the result depends on.
        count: Returns JSON values; what it raises is not kept.
    """
    path = cache_path(key)
    try:
        with open(path, encoding="utf-8") as stored:
            found = json.load(stored)
        if found["key"] == key:
            print(f"{what}: counted before, see {path}", file=sys.stderr)
            return found["counted"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    print(f"{what}: counting, once …", file=sys.stderr, flush=True)
    start = time.monotonic()
    counted = count()
    kept = f"kept in {path}" if _write(path, {"key": key, "counted": counted}) else "not kept"
    print(f"counted in {time.monotonic() - start:.1f} s, {kept}", file=sys.stderr)
    return counted


def cache_path(key: object) -> str:
    """The file for a key: `$XDG_CACHE_HOME/imageshards/counts/HASH.json`."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return os.path.join(cache_home(), "counts", f"{name}.json")


def cache_home() -> str:
    """The user's own folder for what can be had again: `$XDG_CACHE_HOME/imageshards`."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "imageshards")


def _write(path: str, value: Any) -> bool:
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        # Two runs may count at the same time: each writes its own file and moves it in place.
        with tempfile.NamedTemporaryFile(
            "w", dir=folder, suffix=".part", delete=False, encoding="utf-8"
        ) as unfinished:
            json.dump(value, unfinished)
        os.replace(unfinished.name, path)
    except OSError:
        return False
    return True
