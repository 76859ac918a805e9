"""Commands of a shell in processes that do not import TensorFlow or Beam each.

A server imports one program, uses none of it, and forks a process for every request of
`tests/support/command_client.py`, which stands for `imageshards` and `python` on a PATH: same
arguments, environment, working folder, input, output, exit code. A client that is killed takes
its command with it. The server has one thread, which it checks before every fork.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import json
import os
import pathlib
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "tests" / "support" / "command_client.py"
PROGRAMS = ("beam_pipeline", "trainer")
# Libraries that would start threads of their own as soon as they are imported.
_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
# What the servers alone need is none of the environment of a command.
_OF_SERVERS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


@functools.cache
def commands_folder() -> pathlib.Path:
    """A folder for the head of a PATH, with `imageshards` and `python`; the servers start.

    Made once in a process of tests, and gone with it.
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix="commands-"))
    for name in ("imageshards", "python", "python3"):
        script = folder / name
        words = [sys.executable, "-IS", str(CLIENT), str(folder), name]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', "utf-8")
        script.chmod(0o755)
    servers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.command_server", program, folder / program],
            cwd=ROOT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **_ONE_THREAD},
            stdin=subprocess.PIPE,
        )
        for program in PROGRAMS
    ]

    def end() -> None:
        for server in servers:
            server.communicate()  # closes its input, which ends it
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    atexit.register(end)
    return folder


def environment(folder: pathlib.Path) -> dict[str, str]:
    """Of a command in which `imageshards` and `python` are served."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_SERVERS}
    path = os.pathsep.join([str(folder), str(pathlib.Path(sys.executable).parent), kept["PATH"]])
    return {
        **kept,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


class _Served:
    """A command that runs, or has ended."""

    def __init__(self, connection: socket.socket, pid: int):
        self.connection, self.pid = connection, pid
        self.pidfd = os.pidfd_open(pid)
        connection.send(b"%d\n" % pid)

    def kill(self) -> None:
        for kill in (os.killpg, os.kill):  # it may not have its own group yet
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        # The client may be gone.
        with contextlib.suppress(OSError):
            self.connection.send(b"%d\n" % os.waitstatus_to_exitcode(status))
        self.connection.close()
        os.close(self.pidfd)


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Returns None in the server at the end of its input, in a forked process the request."""
    watched = selectors.DefaultSelector()
    watched.register(sys.stdin, selectors.EVENT_READ)
    watched.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if key.fileobj is sys.stdin:
                for each in list(watched.get_map().values()):
                    if each.data is not None:
                        each.data.kill()
                return None
            if key.fileobj is listener:
                connection, _ = listener.accept()
                request = _receive(connection)
                pid = os.fork()
                if not pid:
                    watched.close()
                    return request
                for number in request["files"]:
                    os.close(number)
                served = _Served(connection, pid)
                watched.register(connection, selectors.EVENT_READ, served)
                watched.register(served.pidfd, selectors.EVENT_READ, served)
            elif key.fileobj is key.data.connection:  # its client was killed
                key.data.kill()
                watched.unregister(key.fileobj)
            else:
                with contextlib.suppress(KeyError):
                    watched.unregister(key.data.connection)
                watched.unregister(key.fileobj)
                key.data.end()


def _receive(connection: socket.socket) -> dict[str, Any]:
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise RuntimeError(f"a process of {len(threads)} threads cannot be forked")
    text, ancillary, _, _ = connection.recvmsg(1 << 20, socket.CMSG_SPACE(3 * 4))
    files = array.array("i")
    for _, _, data in ancillary:
        files.frombytes(data)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    return {**json.loads(text), "files": list(files)}


def _become(request: dict[str, Any]) -> None:
    """Makes a forked process the command that was asked for."""
    os.setsid()
    for number, opened in enumerate(request["files"]):
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = [request["module"], *request["arguments"]]
    # As `python -m` has it, and as a script of a virtual environment has not.
    sys.path[0] = request["folder"] if request["is_python"] else request["scripts"]
    sys.path.insert(1, str(ROOT))


def _preload(program: str) -> None:
    if program == "trainer":
        from trainer.imports import quiet_import

        with quiet_import():
            import trainer.training.run  # noqa: F401
    else:
        from beam_pipeline.startup import quick_imports

        with quick_imports():
            import imageshards.report.page  # noqa: F401
    # Searching these libraries for garbage again and again is a quarter of what a command costs.
    gc.disable()
    gc.freeze()


def main(program: str, address: str) -> None:
    """Serves until its input ends; in a forked process, runs the module that was asked for."""
    _preload(program)
    with socket.socket(socket.AF_UNIX) as listener:
        # Clients look for its name: it is there when it can be connected to.
        listener.bind(f"{address}.new")
        listener.listen()
        os.rename(f"{address}.new", address)
        request = _serve(listener)
    if request is not None:
        _become(request)
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
