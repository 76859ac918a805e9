"""Counts items, bytes and milliseconds of each stage of a build as metrics of the Beam job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TypeVar

NAMESPACE = "imageshards"

_Element = TypeVar("_Element")


def count(stage: str, **numbers: int) -> None:
    """Adds to the counters of a stage: `count("read", bytes=7)` to `read_bytes`.

    Beam sums counters over all workers. A call in a thread of a step counts nothing.
    """
    from apache_beam.metrics import Metrics

    for name, number in numbers.items():
        Metrics.counter(NAMESPACE, f"{stage}_{name}").inc(number)


class Clock:
    """Adds up the time that is spent in its blocks, in `ns`."""

    def __init__(self) -> None:
        self.ns = 0

    @property
    def msec(self) -> int:
        return self.ns // 10**6

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        begun = time.monotonic_ns()
        try:
            yield
        finally:
            self.ns += time.monotonic_ns() - begun

    def over(self, elements: Iterator[_Element]) -> Iterator[_Element]:
        """Yields the elements, and adds the time until each of them comes."""
        while True:
            with self.running():
                try:
                    element = next(elements)
                except StopIteration:
                    return
            yield element
