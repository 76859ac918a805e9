"""Tasks for `LocalPool` that a fresh process can import."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from collections.abc import Callable
from typing import NamedTuple


class Done(NamedTuple):
    """A result, with what the pool looks at."""

    value: int
    reused: bool = False


def double(value: int, progress) -> Done:
    progress(1, 100, 0)
    return Done(2 * value)


def die_until(marker: str, kills: int, value: int, progress) -> Done:
    """Kills its process, so many times."""
    path = pathlib.Path(marker)
    progress(1, 100, 0)
    with open(path, "ab") as file:
        file.write(b".")
    if path.stat().st_size <= kills:
        os.kill(os.getpid(), signal.SIGKILL)
    return Done(2 * value)


def wait_for(begun: str, go_on: str, progress) -> Done:
    """Waits for a file to appear; gives out how many times it was begun."""
    with open(begun, "ab") as file:
        file.write(b".")
    wait_until(pathlib.Path(go_on).exists)
    return Done(pathlib.Path(begun).stat().st_size)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what was waited for did not happen within 60 s")
        time.sleep(0.005)


def pid(progress) -> Done:
    return Done(os.getpid())


def die(progress) -> Done:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def fail(progress) -> Done:
    raise ValueError("no such luck")


class UnpicklableError(Exception):
    """It is pickled with one argument, and made with two."""

    def __init__(self, first: str, second: str):
        super().__init__(f"{first} {second}")


def fail_without_pickle(progress) -> Done:
    raise UnpicklableError("two", "arguments")


def was_done_before(size: int, progress) -> Done:
    return Done(size, reused=True)
