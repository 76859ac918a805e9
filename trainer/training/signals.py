"""SIGTERM and Ctrl-C: asked for once, a run stops after the step it is in."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

EXIT_TERMINATED = 143


class Stopped(Exception):
    """A run was asked to stop, and did, with everything saved.

    Attributes:
        exit_code: 143 after SIGTERM, 130 after Ctrl-C, as shells count signals.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class StopRequest:
    """Notes SIGTERM and SIGINT while it is entered.

    A signal may come in the middle of a step, when the weights are changed and the step
    is not counted yet; so it is only noted, and looked at between steps. Whoever does not
    want to wait presses Ctrl-C again.
    """

    def __init__(self) -> None:
        self._signum: int | None = None
        self._at_once = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    @property
    def requested(self) -> bool:
        """Whether to stop."""
        return self._signum is not None

    def stopped(self) -> Stopped:
        """The exception to end the run with."""
        return Stopped(self._signum or signal.SIGTERM)

    def at_once(self, allowed: bool) -> None:
        """Whether a signal may interrupt whatever is going on: where nothing is half done.

        Raises:
            Stopped: One came before.
        """
        self._at_once = allowed
        if allowed and self.requested:
            raise self.stopped()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        again = self.requested
        self._signum = signum
        if self._at_once:
            raise self.stopped()
        if again and signum == signal.SIGINT:
            raise KeyboardInterrupt
        print(f"\n{signal.Signals(signum).name}: stopping after this step", file=sys.stderr)
