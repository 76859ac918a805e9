"""Several calls at once, because a store answers slowly; memory for several processes."""

from __future__ import annotations

import collections
import concurrent.futures
import os
import tempfile
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


def shared_memory(num_bytes: int) -> int:
    """A descriptor of zeros that processes map; nothing of it can be lacking later."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("imageshards")
    else:
        with tempfile.TemporaryFile(prefix="imageshards-") as file:
            fd = os.dup(file.fileno())
    os.write(fd, bytes(num_bytes))
    return fd
