"""The trainer's commands in processes of their own that do not import TensorFlow each.

A server imports TensorFlow and the trainer once, uses neither, and forks a process for every
command. It has one thread, which it checks before every fork, so what it forks is an interpreter
that has just done these imports: it has its own devices, can be killed by any signal, and ends
like any other. What TensorFlow reads from the environment while it is imported is the server's:
`tests.support.commands.run_module` is for a command that sets such a variable.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from tests.support.commands import ROOT, TIMEOUT_SEC

# The libraries that would start threads of their own as soon as they are imported.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def run_forked(
    module: str, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE …` to its end, the working directory being the repository's."""
    return run_forked_together([([module, *map(str, arguments)], environment)])[0]


def run_forked_together(
    commands: Sequence[tuple[list[str], Mapping[str, str]]],
) -> list[subprocess.CompletedProcess[str]]:
    """Several at the same time, each a module with its arguments, and its environment."""
    server = _server()
    if server.stdin is None or server.stdout is None:
        raise RuntimeError("the server has no pipes")
    with tempfile.TemporaryDirectory() as folder:
        files = [
            [pathlib.Path(folder, f"{name}-{i}") for name in ("out", "err")]
            for i in range(len(commands))
        ]
        requests = [
            [*map(str, pair), *command] for pair, command in zip(files, commands, strict=True)
        ]
        server.stdin.write(json.dumps(requests) + "\n")
        server.stdin.flush()
        codes = json.loads(server.stdout.readline())
        return [
            subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())
            for (command, _), code, (out, err) in zip(commands, codes, files, strict=True)
        ]


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Started once in a process of tests; ends when nobody can write to its input any more."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forked_commands"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **_ONE_THREAD},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # Closes its input, and waits for it.
    atexit.register(server.communicate)
    return server


def _serve(requests: IO[str], answers: IO[str]) -> None:
    """Returns in the server at the end of `requests`, in a forked process with its command."""
    for line in requests:
        threads = os.listdir("/proc/self/task")
        if len(threads) != 1:
            raise RuntimeError(f"a process of {len(threads)} threads cannot be forked")
        children = []
        for request in json.loads(line):
            children.append(os.fork())
            if not children[-1]:
                return _run(*request)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        answers.write(json.dumps(codes) + "\n")
        answers.flush()
    return None


def _run(out: str, err: str, command: list[str], environment: dict[str, str]) -> None:
    signal.alarm(TIMEOUT_SEC)
    os.environ.update(environment)
    for number, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv[:] = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from trainer.imports import quiet_import

    # What libraries print to the standard output is none of the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with quiet_import():
        import trainer.training.run  # noqa: F401
    # Searching these libraries for garbage again and again is a quarter of what a command costs.
    gc.disable()
    gc.freeze()
    _serve(sys.stdin, answers)
