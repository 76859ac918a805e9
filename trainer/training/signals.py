"""Stops a run after its current step on SIGTERM and Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from imageshards.commands.command_line import on_signals

SavedStep = Callable[[], int | None]


class Stopped(Exception):
    """The end of a run by a signal, with exit code 143 after SIGTERM and 130 after Ctrl-C.

    `step` is the step of the run's last checkpoint, 0 for none yet. None means that no run is open,
    or that nothing is saved.
    """

    def __init__(self, signum: int, step: int | None = None) -> None:
        done = "stopped" if step is None else "stopped before the first checkpoint"
        again = "run the same command again"
        if step:
            done, again = "saved", f"{again} to resume after step {step}"
        super().__init__(f"{signal.Signals(signum).name}: {done}; {again}.")
        self.exit_code = 128 + signum


@contextmanager
def stopped_by_sigterm(saved_step: SavedStep = lambda: None) -> Iterator[None]:
    """Raises `Stopped` on SIGTERM inside the context, so that clean-up code runs.

    `saved_step` returns the `step` of `Stopped`.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stopped(signum, saved_step())

    with on_signals(stop, signal.SIGTERM):
        yield


class StopRequest:
    """A context that records SIGTERM and SIGINT, for the loop to act on between steps.

    `saved_step` returns the `step` of `Stopped`. A second Ctrl-C does not wait for the end of the
    step. Without `saves` both signals raise KeyboardInterrupt immediately.
    """

    def __init__(self, saved_step: SavedStep, saves: bool = True) -> None:
        self._saved_step, self._saves = saved_step, saves
        # A signal during a step only sets this number: the weights may be changed already, but the
        # step is not yet counted.
        self.requested: int | None = None
        self._interruptible = False
        self._handled = on_signals(self._note, signal.SIGTERM, signal.SIGINT)

    def __enter__(self) -> StopRequest:
        self._handled.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._handled.__exit__(None, None, None)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Lets a signal, even an earlier signal, raise `Stopped` inside the context."""
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
