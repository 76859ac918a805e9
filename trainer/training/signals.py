"""SIGTERM and Ctrl-C stop a run after its current step."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(Exception):
    """A signal stopped a run, with everything saved: 143 after SIGTERM, 130 after Ctrl-C."""

    def __init__(self, signum: int) -> None:
        name = signal.Signals(signum).name
        super().__init__(f"{name}: saved; run the same command again to resume.")
        self.exit_code = 128 + signum


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM ends what is inside by `Stopped`, so that what cleans up runs, loop or not."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stopped(signum)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class StopRequest:
    """Records SIGTERM and SIGINT while it is entered, for the loop to act on between steps.

    In the middle of a step the weights may be changed and the step not yet counted. A second
    Ctrl-C does not wait for the step. Where nothing is saved, both are KeyboardInterrupts at once.
    """

    def __init__(self, saves: bool = True) -> None:
        self._saves = saves
        # The signal that came.
        self.requested: int | None = None
        self._interruptible = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Lets a signal, also one before, end what is inside by `Stopped`: nothing is half done."""
        if self.requested is not None:
            raise Stopped(self.requested)
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if not self._saves:
            raise KeyboardInterrupt(signal.Signals(signum).name)
        again = self.requested is not None
        self.requested = signum
        if self._interruptible:
            raise Stopped(signum)
        if again and signum == signal.SIGINT:
            raise KeyboardInterrupt
        print(f"\n{signal.Signals(signum).name}: stopping after this step", file=sys.stderr)
