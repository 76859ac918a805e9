"""Starts and stops what a portable build on this host needs, and has Prism ready for that.

    .venv/bin/python scripts/servers.py start|stop worker-pool|job-service [--port PORT]
    .venv/bin/python scripts/servers.py prism

`worker-pool` is Beam's own pool, with this virtual environment; `job-service` is Prism, Beam's
portable runner for one host. Both go on when the command has ended: what is known of them, and what
they say, is in `~/.cache/imageshards/run`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import psutil

START_TIMEOUT_SEC = 60.0
STOP_TIMEOUT_SEC = 15.0
BUILD_TIMEOUT_SEC = 900.0

POOL = "apache_beam.runners.worker.worker_pool_main"
PORTS = {"worker-pool": 50000, "job-service": 8073}
USES = {
    "worker-pool": "--environment_type EXTERNAL --environment_config localhost:{port}",
    "job-service": "--runner PortableRunner --job_endpoint localhost:{port}",
}

PRISM_VARIABLE = "IMAGESHARDS_PRISM"
PRISM_PACKAGE = "github.com/apache/beam/sdks/v2/go/cmd/prism"


class ServerError(Exception):
    """One sentence for a person."""


@dataclasses.dataclass(frozen=True)
class Server:
    """A program that listens at a port of this host and goes on when its starter has ended.

    Attributes:
        name: What its files are called.
        port: Where it listens.
    """

    name: str
    port: int

    @property
    def pid_file(self) -> pathlib.Path:
        """Holds its process id and when it began: ids are used again."""
        return cache_folder() / "run" / f"{self.name}-{self.port}.pid"

    def process(self) -> psutil.Process | None:
        """Its process, if it runs."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            pid, began = self.pid_file.read_text().split()
            found = psutil.Process(int(pid))
            # What the kernel counts from its own start moves a little when the clock is set.
            same = abs(found.create_time() - float(began)) < 2
            return found if same and found.status() != psutil.STATUS_ZOMBIE else None
        return None

    def start(self, command: Sequence[str]) -> str:
        """Starts it unless it runs; returns a sentence when it listens.

        Raises:
            ServerError: Another program has the port, or it ends at once, or never answers.
        """
        if (running := self.process()) is not None:
            self._await()
            return f"{self.name} already runs as process {running.pid} at localhost:{self.port}"
        if self._answers():
            raise ServerError(
                f"--port received {self.port}, where another program listens; stop that program, "
                "or choose another port."
            )
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        with open(self.pid_file.with_suffix(".log"), "ab") as log:
            begun = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                cwd=pathlib.Path(__file__).parents[1],
            )  # fmt: skip
        self.pid_file.write_text(f"{begun.pid} {psutil.Process(begun.pid).create_time()}\n")
        try:
            self._await()
        except ServerError:
            self.stop()
            raise
        return f"{self.name} runs as process {begun.pid} at localhost:{self.port}"

    def stop(self) -> str:
        """Ends it and what it started; a sentence."""
        running = self.process()
        if running is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, number)
                with contextlib.suppress(psutil.TimeoutExpired):
                    running.wait(STOP_TIMEOUT_SEC)
        self.pid_file.unlink(missing_ok=True)
        if running is None:
            return f"no {self.name} of ours runs at localhost:{self.port}"
        return f"{self.name} at localhost:{self.port} stopped"

    def _answers(self) -> bool:
        """Whether anything accepts connections at its port."""
        with contextlib.suppress(OSError), socket.create_connection(("localhost", self.port), 1):
            return True
        return False

    def _await(self) -> None:
        """Waits until its port answers; what answers for a program that has ended is another's."""
        deadline = time.monotonic() + START_TIMEOUT_SEC
        while not self._answers() and self.process() and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.process() is None or time.monotonic() > deadline:
            raise ServerError(
                f"{self.name} does not answer at localhost:{self.port}; see "
                f"{self.pid_file.with_suffix('.log')}"
            )


def cache_folder() -> pathlib.Path:
    """`$XDG_CACHE_HOME/imageshards`, `~/.cache/imageshards` by default."""
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "imageshards"


def prism() -> pathlib.Path:
    """Prism of the version of Beam that is installed, where it is ready.

    Raises:
        ServerError: It is not; says how it is made so.
    """
    given = os.environ.get(PRISM_VARIABLE)
    path = pathlib.Path(given or cache_folder() / f"prism-v{_beam_version()}")
    if os.access(path, os.X_OK):
        return path
    if given:
        raise ServerError(f"{PRISM_VARIABLE} received {given!r}, which is no program.")
    raise ServerError(f"Prism is not ready ({path}): make prism, or set {PRISM_VARIABLE} to it.")


def prepare_prism() -> pathlib.Path:
    """Prism; where it is not ready, the Go module's program is copied, or built by `go install`.

    Raises:
        ServerError: It cannot be had; says what is missing.
    """
    try:
        return prism()
    except ServerError:
        if PRISM_VARIABLE in os.environ:
            raise
    if shutil.which("go") is None:
        raise ServerError(
            f"Prism cannot be had: Go is not on the PATH; install Go, or set {PRISM_VARIABLE} to "
            "the program."
        )
    version = _beam_version()
    kept = cache_folder() / f"prism-v{version}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        made = pathlib.Path(folder, "prism")
        if installed := _installed_prism(version):
            shutil.copy(installed, made)
        else:
            print(f"building Prism {version} by go install (about a minute, once) ...")
            built = subprocess.run(
                ["go", "install", f"{PRISM_PACKAGE}@v{version}"],
                env=os.environ | {"GOBIN": folder}, capture_output=True, text=True,
                timeout=BUILD_TIMEOUT_SEC, check=False,
            )  # fmt: skip
            if built.returncode or not made.is_file():
                last = (built.stderr.strip().splitlines() or [""])[-1]
                raise ServerError(
                    f"Prism cannot be had: go install failed ({last}); mend that, or set "
                    f"{PRISM_VARIABLE} to the program."
                )
        os.replace(made, kept)  # two that build at the same time each give the whole program
    return kept


def _beam_version() -> str:
    return importlib.metadata.version("apache-beam")


def _installed_prism(version: str) -> str | None:
    """What an earlier `go install` left in Go's own folder or on the PATH, if of this version."""
    go_path = subprocess.run(["go", "env", "GOPATH"], capture_output=True, text=True, check=False)
    places = os.pathsep.join([f"{go_path.stdout.strip()}/bin", os.environ["PATH"]])
    if (found := shutil.which("prism", path=places)) is None:
        return None
    told = subprocess.run(["go", "version", "-m", found], capture_output=True, text=True)
    built_from = [line.split() for line in told.stdout.splitlines()]
    module = PRISM_PACKAGE.partition("/go/")[0]
    return found if ["mod", module, f"v{version}"] in [words[:3] for words in built_from] else None


def command(name: str, port: int) -> list[str]:
    """What runs in the background.

    Raises:
        ServerError: Prism cannot be had.
    """
    if name == "worker-pool":
        # It starts the `python` that is first on its PATH for each worker.
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        return ["env", f"PATH={path}", sys.executable, "-m", POOL, "--service_port", str(port)]
    flags = ["--serve_http=false", "--log_level=warn", "--log_kind=text"]
    return [str(prepare_prism()), f"--job_port={port}", *flags]


def main(argv: Sequence[str] | None = None) -> int:
    """Starts or stops a server, or has Prism ready; 2 for a mistake, said in one sentence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("action", choices=("start", "stop", "prism"))
    parser.add_argument("server", choices=PORTS, nargs="?", default="job-service")
    parser.add_argument("--port", type=int, help="default: 50000 and 8073")
    args = parser.parse_args(argv)
    port = args.port or PORTS[args.server]
    server = Server(args.server, port)
    try:
        if args.action == "prism":
            prepare_prism()
        elif args.action == "stop":
            print(server.stop())
        else:
            print(server.start([] if server.process() else command(args.server, port)))
            print(f"use it with: {USES[args.server].format(port=port)}")
    except ServerError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
