"""`imageshards` and `python` on a PATH: asks a server for the command, see command_server.py.

    python -IS command_client.py FOLDER imageshards|python ARGUMENTS

It imports little and stands alone, as it is started for every command. Python that runs none of
the project's programs is run as it is.
"""

import array
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

# Those that import the program of the server; the others are quick to start as they are.
SERVED = {"beam_pipeline": ("build",), "trainer": ("train", "evaluate", "predict", "export")}
MODULES = {"beam_pipeline": "beam_pipeline", "tests.documentation.python_session": "trainer"}
STARTUP_SEC = 120


def server_of(module: str, arguments: list[str]) -> str | None:
    """The program whose server runs it; None for a module that none serves."""
    if module == "imageshards":
        command = arguments[0] if arguments else ""
        return next((name for name, served in SERVED.items() if command in served), None)
    return "trainer" if module.partition(".")[0] == "trainer" else MODULES.get(module)


def ask(address: str, request: dict, files: Sequence[int] = (0, 1, 2)) -> socket.socket:
    """Starts a command with these files; the answer is a line with its process, then its code."""
    deadline = time.monotonic() + STARTUP_SEC
    while not os.path.exists(address):
        if time.monotonic() > deadline:
            raise SystemExit(f"no server at {address} after {STARTUP_SEC} s")
        time.sleep(0.05)
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    text = json.dumps(request).encode() + b"\n"
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files).tobytes())]
    sent = server.sendmsg([text], rights)
    server.sendall(text[sent:])
    return server


def main(folder: str, name: str, *arguments: str) -> int:
    given = list(arguments)
    is_python = name != "imageshards"
    if not is_python:
        given = ["-m", "imageshards", *given]
    module, rest = (given[1], given[2:]) if given[:1] == ["-m"] and given[1:] else ("", [])
    program = server_of(module, rest)
    if program is None:
        os.execv(sys.executable, [sys.executable, *given])
    request = {
        "module": module,
        "arguments": rest,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        # As `python -m` has it, and as a script of a virtual environment has it.
        "first_on_path": os.getcwd() if is_python else os.path.dirname(sys.executable),
        "before": None,
    }
    answers = ask(os.path.join(folder, program), request).makefile()
    pid = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(pid, number))
    code = int(answers.readline() or 1)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
