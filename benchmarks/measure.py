"""One command as a whole process tree: seconds, CPU seconds and memory, seen from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from typing import Self

import psutil

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

_SAMPLE_SECONDS = 0.05


class BenchmarkError(Exception):
    """A command that was to be measured failed."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """What one run took.

    Attributes:
        seconds: From its start to its end.
        cpu_seconds: User and system time of the whole process tree, which every process of ours
            waits for.
        main_cpu_seconds: Of its first process alone.
        peak_rss_bytes: Largest sum of resident sets over the tree; 0 if not watched. Pages
            that processes share count for each.
        output: What it printed.
    """

    seconds: float
    cpu_seconds: float
    main_cpu_seconds: float
    peak_rss_bytes: int
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
        BenchmarkError: It failed.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    # A person's Python keeps what it has compiled.
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    os.sync()  # what an earlier run wrote is not this one's burden
    with log.open("wb") as out:
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
        cpu_seconds = usage.ru_utime + usage.ru_stime
    output = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        raise BenchmarkError(f"{' '.join(command)} exited with {process.returncode}:\n{output}")
    peak_rss_bytes = watch.peak_rss_bytes if watch else 0
    return Usage(seconds, cpu_seconds, main_cpu_seconds, peak_rss_bytes, output)


def remove(folder: pathlib.Path) -> None:
    """Removes what a run made, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def _own_cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _MemoryWatch:
    """Samples the memory of a process and all its descendants."""

    def __init__(self, pid: int):
        self.peak_rss_bytes = 0
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
        while not self._stop.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        tree = [self._root]
        with contextlib.suppress(psutil.NoSuchProcess):
            tree += self._root.children(recursive=True)
        rss = 0
        for process in tree:
            with contextlib.suppress(psutil.Error):
                rss += process.memory_info().rss
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
