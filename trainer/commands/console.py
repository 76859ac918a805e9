"""How the commands of the trainer are run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from imageshards.commands import command_line
from imageshards.errors import UserError

# Packages of the extra `trainer`, which may be absent where data sets are only built.
_TRAINER_EXTRA = ("tensorflow", "keras", "tqdm")


def run(program: str, body: Callable[[], int], stopped: str = "stopped") -> int:
    """`command_line.run`, also for what TensorFlow makes of Ctrl-C, and without TensorFlow.

    Args:
        program: For example `imageshards train`.
        body: Returns an exit code.
        stopped: What is printed after Ctrl-C.

    Returns:
        The exit code of `body`, or 2 for a user's mistake, or 130 after Ctrl-C.
    """

    def interruptible() -> int:
        try:
            with _keyboard_interrupts():
                return body()
        except ModuleNotFoundError as e:
            if e.name not in _TRAINER_EXTRA:
                raise
            raise UserError(
                f"the package {e.name} is not installed, which training needs; install it with "
                "pip install 'imageshards[trainer]', or run make setup and use its .venv."
            ) from e

    return command_line.run(program, interruptible, stopped)


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
