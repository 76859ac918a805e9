"""Forks commands from a process that has imported their program: `python -m … PROGRAM ADDRESS`.

What is forked is an interpreter that has just done the imports: it has its own devices, leads a
session, can be killed by any signal, and ends like any other. `tests/support/commands.py` asks for
commands, and so does `command_client.py`. A command whose client is gone is killed. The server has
one thread, which it checks before every fork. What TensorFlow reads from the environment while it
is imported is the server's: `run_module` is for a command that sets such a variable.
"""

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Returns None in the server at the end of its input, in a command its request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who attend to clients
    asked: list[Any] = [sys.stdin, listener]
    while True:
        ready, _, _ = select.select(asked, [], [])
        if sys.stdin in ready:
            return None
        connection, _ = listener.accept()
        with connection:
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return _attend(connection)


def _attend(connection: socket.socket) -> dict[str, Any]:
    """Returns in the command; a process between it and the server tells the client its end."""
    request = _receive(connection)
    pid = os.fork()
    if not pid:
        return request
    for number in request["files"]:
        os.close(number)
    connection.send(b"%d\n" % pid)
    ended = os.pidfd_open(pid)
    told: list[Any] = [connection, ended]
    if ended not in select.select(told, [], [])[0]:
        for kill in (os.killpg, os.kill):  # it may not have its own group yet
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # the client may be gone
        connection.send(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


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
    os.setsid()
    # A shell without job control lets background jobs ignore Ctrl-C, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, opened in enumerate(request["files"]):
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if "KERAS_HOME" in os.environ:  # Keras, which is imported, would look only now
        config = importlib.import_module("keras.src.backend.config")
        setattr(config, "_KERAS_DIR", os.environ["KERAS_HOME"])  # noqa: B010
    if "FAKE_GPUS" in os.environ:  # TensorFlow has listed the devices while it was imported
        context = importlib.import_module("tensorflow.python.eager.context")
        context.context().reinitialize_physical_devices()
    sys.argv[:] = [request["module"], *request["arguments"]]
    root, sys.path[0] = sys.path[0], request["first_on_path"]
    sys.path.insert(1, root)
    if request["before"]:
        module, name, given = request["before"]
        getattr(importlib.import_module(module), name)(*given)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _preload(program: str) -> None:
    if program in ("trainer", "gpu"):
        from trainer.imports import quiet_import

        with quiet_import():
            import trainer.training.run  # noqa: F401
    else:
        import imageshards.reporting.page  # noqa: F401
    # Searching these libraries for garbage again and again is a quarter of what a command costs.
    gc.disable()
    gc.freeze()


def main(program: str, address: str) -> None:
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
