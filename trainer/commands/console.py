"""Runs the commands of the trainer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from imageshards.commands import command_line


def run(
    program: str, body: Callable[[], int], stopped: str = "stopped", prints_result: bool = False
) -> int:
    """Runs `body` as `command_line.run` does, also if TensorFlow hides a Ctrl-C."""
    # The context wraps `body` alone: `command_line.run` expects the KeyboardInterrupt.
    return command_line.run(program, _keyboard_interrupts()(body), stopped, prints_result)


@contextmanager
def _keyboard_interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt for every Ctrl-C."""
    # Python allows a signal handler in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []

    def note(signum: int, frame: object) -> None:
        pressed.append(signum)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    # TensorFlow turns some KeyboardInterrupts into its own errors.
    try:
        yield
    except Exception as e:
        if pressed:
            raise KeyboardInterrupt from e
        raise
    finally:
        signal.signal(signal.SIGINT, before)
