"""Measures time, CPU time and memory of a command with all its child processes."""

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
    """Error for a failed command or reader."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """Time, memory and output of one run.

    Attributes:
        seconds: Wall-clock time of the run.
        cpu_seconds: User and system time of the whole process tree. Every process waits for its
            children, so the time of all children counts.
        main_cpu_seconds: User and system time of the first process alone.
        peak_rss_bytes: Largest sum of the resident sets of the process tree; 0 if not measured. A
            shared page counts once for every process.
        output: Printed output of the run.
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
        *arguments: Command line of the module.
        log: File for the printed output.
        memory: Whether to sample memory, which costs some CPU time on another core.

    Raises:
        BenchmarkError: The command failed.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    # Python normally caches bytecode, so the measured command must be allowed to do the same.
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    # Writes of an earlier run must not slow down this run.
    os.sync()
    with log.open("wb") as out:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environ, stdout=out, stderr=subprocess.STDOUT
        )
        with _MemoryWatch(process.pid) if memory else contextlib.nullcontext() as watch:
            # WNOWAIT keeps the process as a zombie, because /proc still has its CPU time.
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
    """Removes the output folder of a run if the folder exists."""
    shutil.rmtree(folder, ignore_errors=True)


def _own_cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _MemoryWatch:
    """Sampler of the memory of a process and all its descendants."""

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
