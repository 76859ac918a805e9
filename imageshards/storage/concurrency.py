"""Several calls at once, because a store answers slowly; results in order."""

from __future__ import annotations

import collections
import concurrent.futures
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_AT_ONCE = 16


def map_concurrently(
    function: Callable[[_In], _Out], items: Iterable[_In], at_once: int = _AT_ONCE
) -> Generator[_Out, None, None]:
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


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that do not depend on each other, made at once in threads.

    Raises:
        Exception: What the first of them raised; those that were begun have ended.
    """
    return list(map_concurrently(lambda call: call(), calls))
