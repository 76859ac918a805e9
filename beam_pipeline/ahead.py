"""Requests to a store, several at once and in order, with few answers waiting."""

from __future__ import annotations

import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")

AT_ONCE = 16


def map_ahead(
    function: Callable[[_In], _Out], items: Iterable[_In], at_once: int = AT_ONCE
) -> Iterator[_Out]:
    """`map(function, items)` in threads, at most `at_once` items ahead of the consumer."""
    waiting: collections.deque[concurrent.futures.Future[_Out]] = collections.deque()
    threads = concurrent.futures.ThreadPoolExecutor(at_once)
    try:
        for item in items:
            waiting.append(threads.submit(function, item))
            if len(waiting) >= at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
