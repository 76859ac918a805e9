"""Imports modules without the packages that they use only where these are installed."""

from __future__ import annotations

import contextlib
import importlib.abc
import sys
from collections.abc import Iterator


class _Hidden(importlib.abc.MetaPathFinder):
    """Finder for `sys.meta_path` that hides packages, as if they were not installed."""

    def __init__(self, packages: tuple[str, ...]):
        # Modules that this process uses already stay visible.
        self._prefixes = tuple(f"{name}." for name in packages if name not in sys.modules)

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if f"{name}.".startswith(self._prefixes):
            raise ModuleNotFoundError(f"{name} is hidden", name=name)


@contextlib.contextmanager
def without(*packages: str) -> Iterator[None]:
    """Hides packages inside a block; what is imported there works without them from then on."""
    finder = _Hidden(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def pyarrow_without_pandas() -> None:
    """Keeps PyArrow from importing pandas only to see that a list is no object of pandas."""
    with without("pandas"):
        import pyarrow as pa

        pa.array([0])  # PyArrow looks for pandas once, in its first array.
