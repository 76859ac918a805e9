"""How the commands of the trainer are run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from imageshards.commands import command_line


def run(
    program: str, body: Callable[[], int], stopped: str = "stopped", prints_result: bool = False
) -> int:
    """`command_line.run`, also for what TensorFlow makes of Ctrl-C."""

    def interruptible() -> int:
        with _keyboard_interrupts():
            return body()

    return command_line.run(program, interruptible, stopped, prints_result)


@contextmanager
def _keyboard_interrupts() -> Iterator[None]:
    """Makes every Ctrl-C a KeyboardInterrupt; TensorFlow turns some into other errors."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []

    def note(signum: int, frame: object) -> None:
        pressed.append(signum)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as e:
        if pressed:
            raise KeyboardInterrupt from e
        raise
    finally:
        signal.signal(signal.SIGINT, before)
