"""One command as a whole process tree: seconds, CPU seconds and memory, seen from outside."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import psutil

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_SECONDS = 0.05
# The kernel walks all pages to tell the proportional size, so it is asked less often.
_SAMPLES_PER_PSS = 10
_ORPHANS_SECONDS = 20.0


class BenchmarkError(Exception):
    """A command that was to be measured failed."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """What one run took.

    Attributes:
        seconds: From its start to its end.
        cpu_seconds: User and system time of the whole process tree.
        main_cpu_seconds: Of its first process alone.
        peak_rss_bytes: Largest sum of resident sets over the tree; 0 if not watched. Pages
            that processes share count for each.
        peak_pss_bytes: The same with shared pages divided among those that share them.
        output: What it printed.
    """

    seconds: float
    cpu_seconds: float
    main_cpu_seconds: float
    peak_rss_bytes: int
    peak_pss_bytes: int
    output: str


def run_module(
    module: str, *arguments: str | pathlib.Path | int, log: pathlib.Path, memory: bool = False
) -> Usage:
    """Runs `python -m module arguments` and measures it.

    Args:
        module: A module of this repository.
        *arguments: Its command line.
        log: File for what it prints.
        memory: Whether to watch memory, which costs some CPU time on another core.

    Raises:
        BenchmarkError: It failed, or left processes behind.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    # A person's Python keeps what it has compiled.
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    os.sync()  # what an earlier run wrote is not this one's burden
    with log.open("wb") as out, _adopted_orphans() as reap:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environ, stdout=out, stderr=subprocess.STDOUT
        )
        with _MemoryWatch(process.pid) if memory else contextlib.nullcontext() as watch:
            # Waits without reaping: a zombie still tells its own CPU time.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.perf_counter() - begun
        main_cpu_seconds = _own_cpu_seconds(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu_seconds = usage.ru_utime + usage.ru_stime + reap()
    output = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        raise BenchmarkError(f"{' '.join(command)} exited with {process.returncode}:\n{output}")
    peaks = (watch.peak_rss_bytes, watch.peak_pss_bytes) if watch else (0, 0)
    return Usage(seconds, cpu_seconds, main_cpu_seconds, *peaks, output)


def remove(folder: pathlib.Path) -> None:
    """Removes what a run made, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _adopted_orphans() -> Iterator[Callable[[], float]]:
    """Processes whose parent ends become our children, so that their CPU time can be asked for.

    Yields a function that waits for those and returns their CPU seconds.
    """
    before = _children()
    _set_subreaper(True)
    try:
        yield lambda: _reap(_children() - before)
    finally:
        _set_subreaper(False)


def _set_subreaper(on: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def _own_cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _reap(orphans: set[int]) -> float:
    """CPU seconds of processes that outlived their parent, once they have ended."""
    total, waiting = 0.0, set(orphans)
    deadline = time.monotonic() + _ORPHANS_SECONDS
    while waiting:
        for pid in list(waiting):
            ended, _, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                waiting.remove(pid)
                total += usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline:
            raise BenchmarkError(f"processes were left running: {sorted(waiting)}")
        time.sleep(0.01)
    return total


class _MemoryWatch:
    """Samples the memory of a process and all its descendants."""

    def __init__(self, pid: int):
        self.peak_rss_bytes = 0
        self.peak_pss_bytes = 0
        self._root = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        samples = 0
        while not self._stop.wait(_SAMPLE_SECONDS):
            self._sample(samples % _SAMPLES_PER_PSS == 0)
            samples += 1

    def _sample(self, with_pss: bool) -> None:
        tree = [self._root]
        with contextlib.suppress(psutil.NoSuchProcess):
            tree += self._root.children(recursive=True)
        rss = pss = 0
        for process in tree:
            with contextlib.suppress(psutil.Error):
                rss += process.memory_info().rss
                pss += process.memory_full_info().pss if with_pss else 0
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
        self.peak_pss_bytes = max(self.peak_pss_bytes, pss)
