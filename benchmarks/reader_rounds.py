"""Measures readers in turn: each reader has a process, and only one process runs at a time.

    python -m benchmarks.reader_rounds KIND --data SHARDS --raw PHOTOS

This command runs the process of one reader. The process first prints `ready`. Each line on stdin is
a number of seconds; the process reads for this time and prints the figures as a JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import psutil

from benchmarks import reader_kinds, reader_limits
from benchmarks.measure import REPOSITORY, BenchmarkError
from benchmarks.reader_kinds import Job, Read

WARM_UP_SECONDS = 3.0
# Before each measurement a reader runs for this time, which uses up batches read in advance.
SETTLE_SECONDS = 0.7

KINDS: dict[str, Callable[[Job], Read]] = {
    "records": reader_kinds.records,
    "trainer_host": reader_kinds.trainer,
    "trainer_device": lambda job: reader_kinds.trainer(job, "device"),
    "slow_disk": reader_kinds.slow_disk,
    "deterministic": reader_kinds.deterministic,
    "pixels_host": lambda job: reader_kinds.trainer(job, "host", "pixels"),
    "pixels_device": lambda job: reader_kinds.trainer(job, "device", "pixels"),
    "keras_raw": reader_kinds.keras_raw,
    "keras_cached": lambda job: reader_kinds.keras_crops(job, cached=True),
    "keras_crops": lambda job: reader_kinds.keras_crops(job, cached=False),
    "tfds": reader_kinds.tfds,
    "limit_crops": reader_limits.crops,
    "turbo": reader_limits.turbo,
}


@dataclasses.dataclass(frozen=True)
class Window:
    """One measurement of one reader.

    Attributes:
        images: Number of images read.
        seconds: Wall-clock time.
        cpu_seconds: User and system time of the reader's processes.
    """

    images: int
    seconds: float
    cpu_seconds: float

    @property
    def images_per_second(self) -> float:
        """Images per second of wall-clock time."""
        return self.images / self.seconds

    @property
    def cpu_usec(self) -> float:
        """CPU time per image in microseconds."""
        return 1e6 * self.cpu_seconds / self.images


class Side:
    """Process of one reader, which is stopped between measurements.

    Raises:
        BenchmarkError: The reader failed.
    """

    def __init__(self, kind: str, arguments: tuple[str, ...], log: pathlib.Path) -> None:
        self._kind, self._log = kind, log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.reader_rounds", kind, *arguments],
                cwd=REPOSITORY,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # In a separate process group, signals reach the children as well.
                start_new_session=True,
            )
        try:
            self._line("ready")
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.end()
            raise

    def window(self, seconds: float) -> Window:
        """Measures the reader for the given time."""
        self._signal(signal.SIGCONT)
        if self._process.stdin is None:
            raise BenchmarkError(f"{self._kind} has ended")
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        found = json.loads(self._line("{"))
        self._signal(signal.SIGSTOP)
        return Window(**found)

    def end(self) -> None:
        """Kills the process and its children."""
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
    """Starts and warms up the sides one after the other, and kills all sides at the end."""
    sides: dict[str, Side] = {}
    try:
        for name, kind in kinds.items():
            sides[name] = Side(kind, arguments, work / f"{kind}.log")
        yield sides
    finally:
        for side in sides.values():
            side.end()


def in_turn(kinds: Mapping[str, str], arguments: tuple[str, ...], work: pathlib.Path,
            rounds: int, seconds: float) -> dict[str, list[Window]]:  # fmt: skip
    """Measures readers in turn, A B C A B C …, so that a slow minute affects all readers.

    Args:
        kinds: Name of a side → one of `KINDS`.
        arguments: Command line for all sides.
        work: Folder for the logs.
        rounds: Number of measurements of each side.
        seconds: Duration of a measurement.

    Raises:
        BenchmarkError: A reader failed.
    """
    found: dict[str, list[Window]] = {name: [] for name in kinds}
    with opened(kinds, arguments, work) as sides:
        for _ in range(rounds):
            for name, side in sides.items():
                found[name].append(side.window(seconds))
    return found


def measure_window(read: Read, seconds: float, settle_seconds: float) -> dict[str, float]:
    """Measures a reader once; returns images, seconds and CPU seconds."""
    read(settle_seconds)
    cpu, begun = _cpu_seconds(), time.perf_counter()
    images = read(seconds)
    passed = time.perf_counter() - begun
    return {"images": images, "seconds": passed, "cpu_seconds": _cpu_seconds() - cpu}


def _cpu_seconds() -> float:
    """Returns the user and system time of this process and its children so far."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def main(argv: Sequence[str] | None = None) -> int:
    """Measures one reader for each line of stdin, until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--raw", default="")
    parser.add_argument("--warm_up", type=float, default=WARM_UP_SECONDS)
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS)
    args = parser.parse_args(argv)
    read = KINDS[args.kind](Job(args.data, args.raw))
    read(args.warm_up)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(measure_window(read, float(line), args.settle)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
