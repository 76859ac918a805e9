"""What all commands of the trainer share: exit codes, errors on stderr."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from imageshards.errors import UserError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
# Packages of the extra `trainer`, which may be absent where data sets are only built.
_TRAINER_EXTRA = ("tensorflow", "keras", "tqdm")


def run(program: str, body: Callable[[], int], interrupted: str = "stopped") -> int:
    """Runs `body`, and prints a user's mistake as one sentence on stderr.

    Args:
        program: For example `imageshards train`.
        body: Returns an exit code.
        interrupted: What is printed after Ctrl-C.

    Returns:
        The exit code of `body`, or 2 for a user's mistake, or 130 after Ctrl-C.
    """
    try:
        with _keyboard_interrupts():
            return body()
    except UserError as e:
        print(f"{program}: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    except ModuleNotFoundError as e:
        if e.name not in _TRAINER_EXTRA:
            raise
        print(
            f"{program}: the package {e.name} is not installed, which training needs; install it "
            "with pip install 'imageshards[trainer]', or run make setup and use its .venv.",
            file=sys.stderr,
        )
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print(f"{program}: {interrupted}.", file=sys.stderr)
        return EXIT_INTERRUPTED


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
