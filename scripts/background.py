"""Servers that run behind a person's back: started once, stopped when asked.

What is known of a server is kept in the folder of `state_folder()`: NAME-PORT.pid and
NAME-PORT.log.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_TIMEOUT_SEC = 60.0
STOP_TIMEOUT_SEC = 15.0


class ServerError(Exception):
    """One sentence for a person."""


@dataclasses.dataclass(frozen=True)
class Server:
    """A program that listens at a port of this host.

    Attributes:
        name: What a person calls it.
        port: Where it listens.
        mark: Text that its command line holds and no other program's does.
    """

    name: str
    port: int
    mark: str

    @property
    def pid_file(self) -> pathlib.Path:
        """Holds its process id."""
        return state_folder() / f"{self.name.replace(' ', '-')}-{self.port}.pid"

    @property
    def log_file(self) -> pathlib.Path:
        """Holds what it says."""
        return self.pid_file.with_suffix(".log")

    def pid(self) -> int | None:
        """Its process, if it runs; the number in the file may be another's by now."""
        try:
            pid = int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        with contextlib.suppress(psutil.Error):  # a command line that ended is empty, or refused
            return pid if self.mark in " ".join(psutil.Process(pid).cmdline()) else None
        return None

    def answers(self) -> bool:
        """Whether anything accepts connections at its port."""
        with contextlib.suppress(OSError), socket.create_connection(("localhost", self.port), 1):
            return True
        return False

    def listens(self, pid: int) -> bool:
        """Whether this process, or one it started, accepts connections at its port."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            return any(
                found.status == psutil.CONN_LISTEN and found.laddr.port == self.port
                for each in (process, *process.children(recursive=True))
                for found in each.net_connections("tcp")
            )
        return False

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        """Starts it unless it runs; returns when it listens, with a sentence.

        Raises:
            ServerError: Another program has the port, or it ends at once, or never answers.
        """
        if (pid := self.pid()) is not None:
            self._await(pid)
            return f"{self.name} already runs as process {pid} at localhost:{self.port}"
        if self.answers():
            raise self._taken()
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_file, "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True, cwd=ROOT,
            )  # fmt: skip
        self.pid_file.write_text(f"{process.pid}\n")
        try:
            self._await(process.pid)
        except ServerError:
            process.kill()
            process.wait()
            self.pid_file.unlink(missing_ok=True)
            raise
        return f"{self.name} runs as process {process.pid} at localhost:{self.port}"

    def _await(self, pid: int) -> None:
        """Waits until it listens itself: another program may take the port meanwhile."""
        deadline = time.monotonic() + START_TIMEOUT_SEC
        while not self.listens(pid):
            ended = _has_ended(pid)
            if ended and self.answers():
                raise self._taken()
            if ended or time.monotonic() > deadline:
                raise ServerError(
                    f"the {self.name} does not answer at localhost:{self.port}; see {self.log_file}"
                )
            time.sleep(0.05)

    def _taken(self) -> ServerError:
        return ServerError(
            f"--port received {self.port}, where another program listens; stop that program, "
            "or choose another port."
        )

    def stop(self) -> str:
        """Ends it and what it started; a sentence."""
        pid = self.pid()
        if pid is None:
            self.pid_file.unlink(missing_ok=True)
            return f"no {self.name} of ours runs at localhost:{self.port}"
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_SEC
        while self.pid() is not None:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                break
            time.sleep(0.05)
        self.pid_file.unlink(missing_ok=True)
        return f"{self.name} at localhost:{self.port} stopped"


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent to ask how it ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def state_folder() -> pathlib.Path:
    """Where process ids and logs are kept: the user's cache folder."""
    return cache_folder() / "run"


def cache_folder() -> pathlib.Path:
    """`$XDG_CACHE_HOME/imageshards`, `~/.cache/imageshards` by default."""
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "imageshards"


def main(
    make: Callable[[int], Server],
    default_port: int,
    command: Callable[[int], list[str]],
    usage: Callable[[int], str],
    description: str,
    argv: Sequence[str] | None = None,
) -> int:
    """`start`, `stop` or `status` of one server.

    Args:
        make: Port → the server.
        default_port: Used without --port.
        command: Port → what to run; may raise ServerError.
        usage: Port → how a build uses it.
        description: For --help.
        argv: Arguments, those of the process by default.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("action", choices=("start", "stop", "status"))
    parser.add_argument("--port", type=int, default=default_port)
    args = parser.parse_args(argv)
    server = make(args.port)
    try:
        if args.action == "start":
            print(server.start([] if server.pid() else command(args.port), _environment()))
            print(usage(args.port))
        elif args.action == "stop":
            print(server.stop())
        else:
            pid = server.pid()
            print(f"{server.name}: {f'process {pid}' if pid else 'not running'}")
            return 0 if pid else 1
    except ServerError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


def _environment() -> dict[str, str]:
    """This environment, with the folder of this interpreter first on the PATH."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    return os.environ | {"PATH": path}
