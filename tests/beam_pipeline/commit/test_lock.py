"""One job per output folder, and no lock that outlives its job."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest

from beam_pipeline.commit.lock import OutputLock
from imageshards.errors import OutputError, UserError

HOLD = """
import sys
from beam_pipeline.commit.lock import OutputLock
with OutputLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def start(path: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
def held(tmp_path):
    """A path, and a process that holds its lock."""
    path = tmp_path / "out" / ".staging" / "lock"
    with start(path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield path, process
        process.kill()


def test_a_second_process_is_refused_with_the_first_ones_number(held):
    path, process = held
    with pytest.raises(UserError) as error, OutputLock(str(path)):
        pass
    text = str(error.value)
    assert f"--output '{path.parent.parent}' is in use" in text
    assert f"process {process.pid}" in text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_killed_process_is_free(held, number):
    path, process = held
    process.send_signal(number)
    process.wait(10)
    with OutputLock(str(path)):
        assert path.read_text() == str(os.getpid())


def test_a_lock_is_free_again_after_its_block_even_after_an_error(tmp_path):
    path = str(tmp_path / "out" / ".staging" / "lock")
    with pytest.raises(ZeroDivisionError), OutputLock(path):
        raise ZeroDivisionError
    with OutputLock(path), pytest.raises(UserError, match="in use"), OutputLock(path):
        pass
    with OutputLock(path):
        pass


def test_a_lock_whose_folder_was_removed_keeps_nobody_in_error(tmp_path):
    path = str(tmp_path / "out" / ".staging" / "lock")
    with OutputLock(path):
        shutil.rmtree(os.path.dirname(path))  # as a job does when it is done
    with OutputLock(path), pytest.raises(UserError, match="in use"), OutputLock(path):
        pass


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    path = str(tmp_path / "out" / ".staging" / "lock")
    opened = OutputLock._open
    times = []

    def open_and_lose(self: OutputLock) -> None:
        opened(self)
        times.append(1)
        if len(times) == 1:
            shutil.rmtree(os.path.dirname(path))

    monkeypatch.setattr(OutputLock, "_open", open_and_lose)
    with OutputLock(path):
        assert os.path.exists(path)
    assert len(times) == 2


@pytest.mark.parametrize("where", ["file/out/.staging/lock", "file/.staging/lock"])
def test_an_output_that_cannot_be_made_is_one_sentence(tmp_path, where):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="--output .*cannot be written.*choose another"):
        with OutputLock(str(tmp_path / where)):
            pass


def test_a_full_disk_is_one_sentence(tmp_path):
    path = tmp_path / "out" / ".staging" / "lock"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OutputError, match="--output .*File too large"):
            with OutputLock(str(path)):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_system_without_locks_is_not_called_another_job(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OutputError, match="--output .*No locks available"):
        with OutputLock(str(tmp_path / "out" / ".staging" / "lock")):
            pass
