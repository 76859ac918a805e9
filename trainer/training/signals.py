"""SIGTERM and Ctrl-C stop a run after its current step."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SavedStep = Callable[[], int | None]


class Stopped(Exception):
    """A signal stopped a run: 143 after SIGTERM, 130 after Ctrl-C.

    `step` is that of the run's last checkpoint, 0 where the run has none; None where no run is
    open, or where nothing is saved.
    """

    def __init__(self, signum: int, step: int | None = None) -> None:
        told = "stopped" if step is None else "stopped before the first checkpoint"
        again = "run the same command again"
        if step:
            told, again = "saved", f"{again} to resume after step {step}"
        super().__init__(f"{signal.Signals(signum).name}: {told}; {again}.")
        self.exit_code = 128 + signum


@contextmanager
def stopped_by_sigterm(saved_step: SavedStep = lambda: None) -> Iterator[None]:
    """SIGTERM ends what is inside by `Stopped`, so that what cleans up runs, loop or not.

    `saved_step` returns the `step` of a `Stopped`.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stopped(signum, saved_step())

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
    Ctrl-C does not wait for the step. `saved_step` returns the `step` of a `Stopped`. Where
    nothing is saved, both are KeyboardInterrupts at once.
    """

    def __init__(self, saved_step: SavedStep, saves: bool = True) -> None:
        self._saved_step, self._saves = saved_step, saves
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
            raise Stopped(self.requested, self._saved_step())
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
            raise Stopped(signum, self._saved_step())
        if again and signum == signal.SIGINT:
            raise KeyboardInterrupt
        print(f"\n{signal.Signals(signum).name}: stopping after this step", file=sys.stderr)
