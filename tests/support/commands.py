"""The project's programs in processes of their own.

Most are forked by a server that has imported TensorFlow or Beam (`command_server.py`): it starts
once in a process of tests, for the first command that needs it.
"""

import atexit
import functools
import itertools
import os
import pathlib
import pkgutil
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tests.support import command_client

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMEOUT_SEC = 300
_CLIENT = ROOT / "tests" / "support" / "command_client.py"
# TensorFlow looks for devices in the folders of this name on Python's path.
FAKE_GPU = ROOT / "tests" / "gpu" / "fake_device" / "build" / "site-packages"
# Libraries that would start threads of their own as soon as they are imported.
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
_ONE_THREAD["JE_ARROW_MALLOC_CONF"] = "background_thread:false"


def run_module(module, *arguments, **environment):
    """`python -m MODULE …` to its end; TensorFlow reads its environment once in a process."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    captured: dict = {"capture_output": True, "text": True, "timeout": TIMEOUT_SEC}
    return subprocess.run(command, cwd=ROOT, env=environ, **captured)


class Command:
    """`python -m MODULE …` in a session of the repository, forked, with the interface of a `Popen`.

    Args:
        program: Whose server forks it: `trainer`, `gpu` for the trainer with fake or real GPUs, or
            `beam_pipeline`, whose output is one.
        environment: Added to that of this process.
        before: Called by its name, with `given`, in the process before the module runs.
    """

    def __init__(self, program, module, *arguments, environment=None, before=None, given=()):
        self.args = [module, *map(str, arguments)]
        self.returncode: int | None = None
        self._out = tempfile.TemporaryFile()
        self._err = self._out if program == "beam_pipeline" else tempfile.TemporaryFile()
        request = {
            "module": module,
            "arguments": self.args[1:],
            "folder": str(ROOT),
            "environment": {**os.environ, "CUDA_VISIBLE_DEVICES": "", **(environment or {})},
            "first_on_path": str(ROOT),
            "before": before and (before.__module__, before.__qualname__, given),
        }
        with open(os.devnull) as null:
            files = (null.fileno(), self._out.fileno(), self._err.fileno())
            # Closed when nobody holds this any more: then the server kills the command.
            self._server = command_client.ask(_address(program), request, files)
        self.pid = self._answer()

    def _answer(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            read = self._server.recv(1)
            if not read:
                raise RuntimeError("the server of commands has ended")
            line += read
        return int(line)

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it, and waits for its end."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float | None = TIMEOUT_SEC) -> int:
        if self.returncode is None:
            self._server.settimeout(timeout)
            try:
                self.returncode = self._answer()
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
        return self.returncode

    def communicate(self, timeout: float | None = TIMEOUT_SEC) -> tuple[str, str]:
        self.wait(timeout)
        return _text(self._out.fileno()), _text(self._err.fileno())

    def result(self) -> subprocess.CompletedProcess[str]:
        out, err = self.communicate()
        return subprocess.CompletedProcess(self.args, self.wait(), out, err)


def wait_until(condition, process=None):
    deadline = time.monotonic() + TIMEOUT_SEC
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended before: {process.communicate()[0]}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"what was waited for did not happen within {TIMEOUT_SEC} s")
        time.sleep(0.005)


def _text(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode("utf-8", "replace")


def run_forked(module, *arguments, **environment):
    return Command("trainer", module, *arguments, environment=environment).result()


def killed_train(signum, step, *flags, **options):
    """`imageshards train FLAGS`, which gets a signal in its n-th step."""
    given = ("trainer.training.loop", "Loop._train", step, signum)
    return Command("trainer", "trainer", *flags, before=kill_at, given=given, **options)


class ForkedBuild(Command):
    """`imageshards build ARGUMENTS` with one output, where Beam is imported already."""

    def __init__(self, *arguments, **options):
        super().__init__("beam_pipeline", "beam_pipeline", *arguments, **options)


def build_killed_at(module: str, name: str, calls: int, *arguments: object) -> None:
    killed = ForkedBuild(*arguments, before=kill_at, given=(module, name, calls))
    assert killed.wait() == -signal.SIGKILL, killed.communicate()[0]


def kill_at(module: str, name: str, calls: int, signum: str = "SIGKILL") -> None:
    """The n-th call of a function sends this process a signal: for `before`."""
    path, _, name = name.rpartition(".")
    owner = pkgutil.resolve_name(f"{module}:{path}")
    original, numbers = getattr(owner, name), itertools.count(1)

    def counted(*args, **kwargs):  # Beam would take annotations for those of its step
        if next(numbers) == calls:
            os.kill(os.getpid(), signal.Signals[signum])
        return original(*args, **kwargs)

    setattr(owner, name, counted)


@functools.cache
def commands_folder() -> pathlib.Path:
    """For the head of a PATH: `imageshards` and `python`, and the addresses of the servers."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="commands-"))
    atexit.register(shutil.rmtree, folder)
    for name in ("imageshards", "python", "python3"):
        script = folder / name
        words = [sys.executable, "-IS", str(_CLIENT), str(folder), name]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', "utf-8")
        script.chmod(0o755)
    return folder


@functools.cache
def _address(program: str) -> str:
    """Where a server is, or will be in a moment."""
    address = str(commands_folder() / program)
    command = [sys.executable, "-m", "tests.support.command_server", program, address]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **_ONE_THREAD}
    if program == "gpu":
        del environ["CUDA_VISIBLE_DEVICES"]
        environ["PYTHONPATH"] = os.pathsep.join([str(FAKE_GPU), environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.PIPE)
    # Closes its input, which ends it.
    atexit.register(server.communicate)
    return address


def served_environment() -> dict[str, str]:
    """Of a shell in which `imageshards` and `python` are served; the servers start."""
    for program in command_client.SERVED:
        _address(program)
    path = [str(commands_folder()), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    of_tensorflow = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ours = {"PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), **of_tensorflow}
    return {**os.environ, **ours}


def write_and_die(*files: pathlib.Path) -> None:
    code = """if True:
        import contextlib, os, signal, sys
        from imageshards import storage
        with contextlib.ExitStack() as stack:
            for path in sys.argv[1:]:
                stack.enter_context(storage.open_write(path))
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert subprocess.run([sys.executable, "-c", code, *files]).returncode == -signal.SIGKILL
