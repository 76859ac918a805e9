"""Builds in processes of their own that do not import Beam each.

A fork server imports it once in a process of tests. What it forks is a session of its own, can be
killed by any signal, and ends as `imageshards build` does.
"""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.process
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from typing import Any

from beam_pipeline.images.process_pool import LocalPool

ROOT = pathlib.Path(__file__).resolve().parents[2]
_PRELOADED = ["beam_pipeline.pipeline", "beam_pipeline.runners.remote", __name__]


class ForkedBuild:
    """`imageshards build ARGUMENTS`, with the interface of a `Popen`.

    Args:
        arguments: Of the command line.
        before: Called in the process before the build, with `given`.
    """

    def __init__(self, *arguments: str, before: Callable[..., None] | None = None, given: Any = ()):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        log, self._log = tempfile.mkstemp(prefix="build-", suffix=".log")
        os.close(log)
        self._process = context.Process(
            target=_run, args=(arguments, dict(os.environ), self._log, before, given)
        )
        self._process.start()
        # A process that nobody holds any more is closed: its two files are too many after
        # some hundred builds.
        self._clean = weakref.finalize(self, _clean, self._process, self._log)

    @property
    def pid(self) -> int:
        """Its process, which leads a session."""
        return self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        """Its exit code, -N after signal N; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """As `returncode`."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Sends it a signal."""
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code.

        Raises:
            TimeoutExpired: It has not ended in time.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a build", timeout or 0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Waits for its end; all that it printed."""
        self.wait(timeout)
        return pathlib.Path(self._log).read_text("utf-8", "replace"), None


def _clean(process: multiprocessing.process.BaseProcess, log: str) -> None:
    process.kill()
    process.join()
    process.close()
    os.unlink(log)


def _run(
    arguments: tuple[str, ...],
    environ: dict[str, str],
    log: str,
    before: Callable[..., None] | None,
    given: Any,
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environ)
    for number, path in enumerate((os.devnull, log, log)):
        opened = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    if before is not None:
        before(*given)
    from beam_pipeline.__main__ import main
    from imageshards.commands.command_line import end_now

    end_now(main(arguments))


def kill_at(module: str, name: str, calls: int) -> None:
    """The n-th call of a function kills this process: for `before`."""
    owner: Any = importlib.import_module(module)
    *path, name = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original, count = getattr(owner, name), 0

    def last(*args, **kwargs):  # Beam would take annotations for those of its step
        nonlocal count
        count += 1
        if count == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, last)


def hold_at(staging: str, limit: str) -> None:
    """No shard is begun while as many are finished as a file says: for `before`."""
    original = LocalPool._do

    def held(self: LocalPool, name: str, packed: bytes) -> Any:
        folder, file = pathlib.Path(staging), pathlib.Path(limit)
        while not self._stopped and len(list(folder.glob("*-of-*.json"))) >= int(file.read_text()):
            time.sleep(0.01)
        return original(self, name, packed)

    LocalPool._do = held  # type: ignore[method-assign]
