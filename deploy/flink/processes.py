"""Processes of a cluster on this host: started, remembered across commands, ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Sequence

_STATE = "processes.json"
STOP_TIMEOUT_SEC = 15.0


@dataclasses.dataclass(frozen=True)
class Process:
    """A process that a command before this one may have started.

    Attributes:
        name: For people, and the stem of its log.
        pid: Its number, also of its group.
        started: When it began, in the kernel's ticks: numbers are used again.
    """

    name: str
    pid: int
    started: int

    def alive(self) -> bool:
        """Whether it runs, and is still the same one."""
        return _started(self.pid) == self.started

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal to it and to the processes it has started."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def start(
    name: str, command: Sequence[str], extra: dict[str, str], folder: pathlib.Path
) -> Process:
    """Starts a process in a group of its own; it outlives this one and writes NAME.out."""
    with open(folder / f"{name}.out", "wb") as log:
        begun = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, **extra}, start_new_session=True,
        )  # fmt: skip
    return Process(name, begun.pid, _started(begun.pid) or 0)


def _started(pid: int) -> int | None:
    """When a process began; None if it has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # one of ours that ended stays in the table till then
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The name, in brackets, may hold spaces.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def end(running: Sequence[Process]) -> None:
    """Asks processes to end, and ends those that do not."""
    for each in running:
        each.kill(signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_SEC
    while any(each.alive() for each in running) and time.monotonic() < deadline:
        time.sleep(0.1)
    for each in running:
        each.kill()


def save(folder: pathlib.Path, running: Sequence[Process]) -> None:
    """Remembers which processes a cluster has."""
    path = folder / _STATE
    if not running:
        path.unlink(missing_ok=True)
        return
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps([dataclasses.asdict(each) for each in running]))
    temporary.replace(path)


def load(folder: pathlib.Path) -> list[Process]:
    """The processes that `save` remembered."""
    try:
        return [Process(**each) for each in json.loads((folder / _STATE).read_text())]
    except (OSError, ValueError, TypeError):
        return []


def last_lines(folder: pathlib.Path, name: str, count: int) -> str:
    """The end of a process's log."""
    try:
        text = (folder / f"{name}.out").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-count:])
