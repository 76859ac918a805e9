"""Programs that run behind a person's back: started, found again by a later command, ended.

What is known of a program is kept in a folder: NAME.pid and NAME.log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

import psutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_TIMEOUT_SEC = 60.0
STOP_TIMEOUT_SEC = 15.0


class ServerError(Exception):
    """One sentence for a person."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that this command or an earlier one started.

    Attributes:
        name: What its files are called.
        folder: Where they are.
    """

    name: str
    folder: pathlib.Path

    @property
    def pid_file(self) -> pathlib.Path:
        """Holds its process id and when it began: ids are used again."""
        return self.folder / f"{self.name}.pid"

    @property
    def log_file(self) -> pathlib.Path:
        """Holds what it says."""
        return self.folder / f"{self.name}.log"

    def process(self) -> psutil.Process | None:
        """Its process, if it runs."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            pid, began = self.pid_file.read_text().split()
            found = psutil.Process(int(pid))
            # What the kernel counts from its own start moves a little when the clock is set.
            same = abs(found.create_time() - float(began)) < 2
            return found if same and found.status() != psutil.STATUS_ZOMBIE else None
        return None

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> psutil.Process:
        """Starts it in a group of its own; it outlives this process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.log_file, "ab") as log:
            begun = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | dict(environment or {}), start_new_session=True, cwd=ROOT,
            )  # fmt: skip
        found = psutil.Process(begun.pid)
        self.pid_file.write_text(f"{begun.pid} {found.create_time()}\n")
        return found

    def signal(self, number: int) -> None:
        """Sends a signal to it and to the processes it has started."""
        if (found := self.process()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(found.pid, number)

    def last_lines(self, count: int) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
            return "\n".join(lines[-count:])
        return ""


def programs(folder: pathlib.Path) -> list[Program]:
    """The programs that were started from a folder and not stopped."""
    return [Program(path.stem, folder) for path in sorted(folder.glob("*.pid"))]


def stop(ending: Sequence[Program]) -> int:
    """Asks programs to end, and ends those that do not; returns how many ran."""
    running = [each for each in ending if each.process() is not None]
    for each in running:
        each.signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_SEC
    while any(each.process() for each in running) and time.monotonic() < deadline:
        time.sleep(0.05)
    for each in running:
        each.signal(signal.SIGKILL)
    for each in ending:
        each.pid_file.unlink(missing_ok=True)
    return len(running)


@dataclasses.dataclass(frozen=True)
class Server:
    """A program that listens at a port of this host.

    Attributes:
        title: What a person calls it.
        port: Where it listens.
    """

    title: str
    port: int

    @property
    def program(self) -> Program:
        """What runs, known by its port in the user's cache folder."""
        return Program(f"{self.title.replace(' ', '-')}-{self.port}", cache_folder() / "run")

    def start(self, command: Sequence[str]) -> str:
        """Starts it unless it runs; returns when it listens, with a sentence.

        Raises:
            ServerError: Another program has the port, or it ends at once, or never answers.
        """
        if (running := self.program.process()) is not None:
            self._await(running)
            return f"{self.title} already runs as process {running.pid} at localhost:{self.port}"
        if self._answers():
            raise self._taken()
        begun = self.program.start(command)
        try:
            self._await(begun)
        except ServerError:
            stop([self.program])
            raise
        return f"{self.title} runs as process {begun.pid} at localhost:{self.port}"

    def stop(self) -> str:
        """Ends it and what it started; a sentence."""
        if not stop([self.program]):
            return f"no {self.title} of ours runs at localhost:{self.port}"
        return f"{self.title} at localhost:{self.port} stopped"

    def _answers(self) -> bool:
        """Whether anything accepts connections at its port."""
        with contextlib.suppress(OSError), socket.create_connection(("localhost", self.port), 1):
            return True
        return False

    def _listens(self, process: psutil.Process) -> bool:
        """Whether this process, or one it started, accepts connections at its port."""
        with contextlib.suppress(psutil.Error):
            return any(
                found.status == psutil.CONN_LISTEN and found.laddr.port == self.port
                for each in (process, *process.children(recursive=True))
                for found in each.net_connections("tcp")
            )
        return False

    def _await(self, process: psutil.Process) -> None:
        """Waits until it listens itself: another program may take the port meanwhile."""
        deadline = time.monotonic() + START_TIMEOUT_SEC
        while not self._listens(process):
            ended = self.program.process() is None
            if ended and self._answers():
                raise self._taken()
            if ended or time.monotonic() > deadline:
                raise ServerError(
                    f"the {self.title} does not answer at localhost:{self.port}; see "
                    f"{self.program.log_file}"
                )
            time.sleep(0.05)

    def _taken(self) -> ServerError:
        return ServerError(
            f"--port received {self.port}, where another program listens; stop that program, "
            "or choose another port."
        )


def cache_folder() -> pathlib.Path:
    """`$XDG_CACHE_HOME/imageshards`, `~/.cache/imageshards` by default."""
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "imageshards"
