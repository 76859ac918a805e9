"""Readers side by side: each in its own process, measured in turn while the others stand still."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

from benchmarks.measure import REPOSITORY, BenchmarkError


@dataclasses.dataclass(frozen=True)
class Window:
    """One measurement of one reader.

    Attributes:
        images: Read in it.
        seconds: By the clock.
        cpu_seconds: User and system time of its processes.
    """

    images: int
    seconds: float
    cpu_seconds: float

    @property
    def images_per_second(self) -> float:
        """By the clock."""
        return self.images / self.seconds

    @property
    def cpu_usec(self) -> float:
        """CPU microseconds per image."""
        return 1e6 * self.cpu_seconds / self.images


class Side:
    """A reader in a process of its own, stopped whenever it is not measured.

    Args:
        kind: One of `benchmarks.reader_side.KINDS`.
        arguments: Its further command line.
        log: File for what it says on stderr.

    Raises:
        BenchmarkError: It fails.
    """

    def __init__(self, kind: str, arguments: tuple[str, ...], log: pathlib.Path) -> None:
        self._kind, self._log = kind, log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.reader_side", kind, *arguments],
                cwd=REPOSITORY,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # A group of its own: its children are stopped with it.
                start_new_session=True,
            )
        try:
            self._line("ready")
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.end()
            raise

    def window(self, seconds: float) -> Window:
        """Measures for so many seconds.

        Raises:
            BenchmarkError: It fails.
        """
        self._signal(signal.SIGCONT)
        if self._process.stdin is None:
            raise BenchmarkError(f"{self._kind} has ended")
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        found = json.loads(self._line("{"))
        self._signal(signal.SIGSTOP)
        return Window(**found)

    def end(self) -> None:
        """Ends the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._process.wait()

    def _line(self, begins: str) -> str:
        for line in self._process.stdout or ():
            if line.startswith(begins):
                return line
        said = self._log.read_text(encoding="utf-8", errors="replace")
        raise BenchmarkError(f"the reader {self._kind} ended:\n{said}")

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)


@contextlib.contextmanager
def opened(
    kinds: Mapping[str, str], arguments: tuple[str, ...], work: pathlib.Path
) -> Iterator[dict[str, Side]]:
    """Sides by their names, warmed up one after the other, ended in the end."""
    sides: dict[str, Side] = {}
    try:
        for name, kind in kinds.items():
            sides[name] = Side(kind, arguments, work / f"{kind}.log")
        yield sides
    finally:
        for side in sides.values():
            side.end()


def in_turn(
    kinds: Mapping[str, str],
    arguments: tuple[str, ...],
    work: pathlib.Path,
    rounds: int,
    seconds: float,
) -> dict[str, list[Window]]:
    """Measures readers A B C A B C …, so that a slow minute of the machine meets them all.

    Args:
        kinds: Name of a side → one of `benchmarks.reader_side.KINDS`.
        arguments: The command line of all of them.
        work: Folder for their logs.
        rounds: How often each is measured.
        seconds: How long each time.

    Raises:
        BenchmarkError: One of them fails.
    """
    found: dict[str, list[Window]] = {name: [] for name in kinds}
    with opened(kinds, arguments, work) as sides:
        for _ in range(rounds):
            for name, side in sides.items():
                found[name].append(side.window(seconds))
    return found
