"""Forks commands from a process that has imported their program: `python -m … PROGRAM ADDRESS`.

What is forked is an interpreter that has just done the imports: it has its own devices, leads a
session, can be killed by any signal, and ends like any other. `tests/support/commands.py` asks for
commands, and so does `command_client.py`. A command whose client is gone is killed. The server has
one thread, which it checks before every fork. What TensorFlow reads from the environment while it
is imported is the server's: `run_module` is for a command that sets such a variable.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from typing import Any


class _Served:
    """A command that runs, and what tells its end or that of its client."""

    def __init__(self, connection: socket.socket, pid: int, watched: selectors.BaseSelector):
        self.pid, self.pidfd = pid, os.pidfd_open(pid)
        self._connection, self._watched = connection, watched
        for ends in (connection, self.pidfd):
            watched.register(ends, selectors.EVENT_READ, self)
        connection.send(b"%d\n" % pid)

    def kill(self) -> None:
        for kill in (os.killpg, os.kill):  # it may not have its own group yet
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        # The client may be gone.
        with contextlib.suppress(OSError):
            self._connection.send(b"%d\n" % os.waitstatus_to_exitcode(status))
        for ends in (self._connection, self.pidfd):
            with contextlib.suppress(KeyError):
                self._watched.unregister(ends)
        self._connection.close()
        os.close(self.pidfd)

    def leave(self, gone: object) -> None:
        """Its client was killed, or does not want it any more; its end is still to come."""
        self.kill()
        self._watched.unregister(gone)  # type: ignore[arg-type]


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Returns None in the server at the end of its input, in a forked process the request."""
    watched = selectors.DefaultSelector()
    watched.register(sys.stdin, selectors.EVENT_READ)
    watched.register(listener, selectors.EVENT_READ)
    while True:
        # Ends first: then nobody is killed who is no more.
        events = sorted(watched.select(), key=lambda event: not isinstance(event[0].fileobj, int))
        for key, _ in events:
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
                _Served(connection, pid, watched)
            elif isinstance(key.fileobj, int):
                key.data.end()
            elif key.fd in watched.get_map():
                key.data.leave(key.fileobj)


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
    """Makes a forked process the command that was asked for, and runs it."""
    os.setsid()
    for number, opened in enumerate(request["files"]):
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = [request["module"], *request["arguments"]]
    root, sys.path[0] = sys.path[0], request["first_on_path"]
    sys.path.insert(1, root)
    if request["before"]:
        module, name, given = request["before"]
        getattr(importlib.import_module(module), name)(*given)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


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


if __name__ == "__main__":
    main(*sys.argv[1:])
