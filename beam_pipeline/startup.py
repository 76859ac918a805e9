"""Big libraries started quickly: their imports, and what Beam does again and again.

Without the garbage collector Beam is imported in 0.4 to 0.7 CPU s less (of 2.5), TensorFlow with
tensorflow-transform in 0.7 to 1.0 (of 4.2): minima of 6 to 8 rounds, Python 3.11 on 2 shared cores.
Each full collection afterwards would look through 215,000 objects in 0.3 s, were they not frozen.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import logging
import sys
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Stops the garbage collector for a while; what was imported by then is never collected."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


# Whether this process runs one build and nothing else: a program that calls one may use them.
only_builds = False

# Beam imports these if they are there. They are three fifths of its import, and no build on this
# machine uses them: `imageshards.storage` reads and writes gs:// and s3://.
_UNUSED = (
    "pandas",
    "bson",  # of pymongo
    "apitools",
    "google.cloud.dataflow",
    "google.cloud.pubsub",
    "apache_beam.io.aws.s3filesystem",
    "apache_beam.io.gcp.bigquery",
    "apache_beam.io.gcp.gcsfilesystem",
)


class _NotInstalled(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in _UNUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextlib.contextmanager
def without_unused() -> Iterator[None]:
    """Has Beam do without clients of services, as if they were not installed.

    For a process that only builds a data set on this machine: Beam stays without them.
    """
    finder = _NotInstalled()
    sys.meta_path.insert(0, finder)
    # It warns that there is no client of MongoDB.
    logging.getLogger("apache_beam.io.mongodbio").setLevel(logging.ERROR)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def cache_inspections() -> None:
    """Has Beam inspect each method, and each DoFn, once in this process.

    It inspects all methods of a DoFn whenever it asks whether that has state, ten times for each:
    for a graph of 200 steps 25,000 times, 0.8 of the 2.4 CPU s that Beam 2.77 took to make and run
    it.
    """
    from apache_beam.transforms import core, userstate

    _cache(core, "get_function_args_defaults", {}, lambda method: getattr(method, "__func__", None))
    _cache(userstate, "get_dofn_specs", weakref.WeakKeyDictionary(), lambda dofn: dofn)


def _cache(
    module: ModuleType, name: str, found: MutableMapping[Any, Any], key: Callable[[Any], Any]
) -> None:
    """Remembers in `found` the two collections that a function of Beam returns for one argument.

    Args:
        module: Its module.
        name: Its name; another Beam may have none.
        found: Where to.
        key: Argument → under what; None for an argument that is not remembered.
    """
    inspect = getattr(module, name, None)

    def look_up(subject: Any) -> tuple[Any, Any]:
        known = key(subject)
        if known is None:
            return inspect(subject)  # type: ignore[misc]
        if known not in found:
            found[known] = inspect(subject)  # type: ignore[misc]
        first, second = found[known]
        return first.copy(), second.copy()  # who asks may change them

    if inspect is not None and not hasattr(inspect, "found"):
        look_up.found = found  # type: ignore[attr-defined]
        setattr(module, name, look_up)
