"""One job per output folder: no lock outlives its job, and a lost lease is one sentence."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from imageshards import storage
from imageshards.errors import LeaseLostError, OutputError, UserError
from imageshards.manifest import load_manifest
from imageshards.storage import lock, lock_holder, output_lock
from imageshards.storage.lock import FileLock, Lease, LeaseTimes
from tests.support.store_servers import StoreServer, store_server

pytestmark = pytest.mark.process

FAST = LeaseTimes(renew_sec=0.02)
TIMEOUT_SEC = 30

HOLD = """
import sys
from imageshards.storage.lock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


# As HOLD; and a worker of it keeps the lock until its standard input ends.
HOLD_WITH_WORKER = """
import subprocess, sys, time
from imageshards.storage.lock import FileLock
with FileLock(sys.argv[1]) as lock:
    subprocess.Popen(["cat"], pass_fds=[lock.fileno()], stdout=subprocess.DEVNULL)
    print("held", flush=True)
    time.sleep(600)
"""


def start(path: object, program: str = HOLD) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)], text=True,
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
    with pytest.raises(UserError) as error, FileLock(str(path)):
        pass
    text = str(error.value)
    assert f"--output '{path.parent.parent}' is in use" in text
    assert f"process {process.pid}" in text


def test_who_asks_for_the_data_set_meanwhile_is_told_who_builds_it(held):
    path, process = held
    directory = str(path.parent.parent)
    with pytest.raises(UserError, match=f"is being built now by process {process.pid} on "):
        load_manifest(directory)
    process.kill()
    process.wait()
    with pytest.raises(UserError, match="its build has not ended; run that again"):
        load_manifest(directory)


def kill_and_leave_a_worker(path: object) -> subprocess.Popen:
    process = start(path, HOLD_WITH_WORKER)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.kill()
    process.wait()
    return process


def test_workers_of_a_killed_process_are_waited_for(tmp_path, monkeypatch):
    path = str(tmp_path / "out" / ".staging" / "lock")
    input_of_worker = kill_and_leave_a_worker(path).stdin
    assert input_of_worker is not None
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            input_of_worker.close()  # so it ends
        threading.Event().wait(seconds)

    monkeypatch.setattr("imageshards.storage.lock.time.sleep", wait)
    with FileLock(path):
        assert len(waits) >= 3


def test_a_worker_of_a_killed_process_that_does_not_end_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_ORPHANS_SEC", 0.1)
    path = tmp_path / "out" / ".staging" / "lock"
    process = kill_and_leave_a_worker(path)
    assert process.stdin is not None
    with process.stdin, pytest.raises(UserError, match=f"process {process.pid}.*end them"):
        with FileLock(str(path)):
            pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_killed_process_is_free(held, number):
    path, process = held
    process.send_signal(number)
    process.wait(10)
    with FileLock(str(path)):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_lock_is_free_again_after_its_block_even_after_an_error(tmp_path):
    path = str(tmp_path / "out" / ".staging" / "lock")
    with pytest.raises(ZeroDivisionError), FileLock(path):
        raise ZeroDivisionError
    with FileLock(path), pytest.raises(UserError, match="in use"), FileLock(path):
        pass
    with FileLock(path):
        pass


def test_a_lock_whose_folder_was_removed_keeps_nobody_in_error(tmp_path):
    path = str(tmp_path / "out" / ".staging" / "lock")
    with FileLock(path):
        shutil.rmtree(os.path.dirname(path))  # as a job does when it is done
    with FileLock(path), pytest.raises(UserError, match="in use"), FileLock(path):
        pass


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    path = str(tmp_path / "out" / ".staging" / "lock")
    opened = FileLock._open
    times = []

    def open_and_lose(self: FileLock) -> None:
        opened(self)
        times.append(1)
        if len(times) == 1:
            shutil.rmtree(os.path.dirname(path))

    monkeypatch.setattr(FileLock, "_open", open_and_lose)
    with FileLock(path):
        assert os.path.exists(path)
    assert len(times) == 2


@pytest.mark.parametrize("where", ["file/out/.staging/lock", "file/.staging/lock"])
def test_an_output_that_cannot_be_made_is_one_sentence(tmp_path, where):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="--output .*cannot be written.*choose another"):
        with FileLock(str(tmp_path / where)):
            pass


def test_a_full_disk_is_one_sentence(tmp_path):
    path = tmp_path / "out" / ".staging" / "lock"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OutputError, match="--output .*File too large"):
            with FileLock(str(path)):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_system_without_locks_is_not_called_another_job(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OutputError, match="--output .*No locks available"):
        with FileLock(str(tmp_path / "out" / ".staging" / "lock")):
            pass


@pytest.fixture(scope="module", params=["gs", "s3"])
def server(request) -> Iterator[StoreServer]:
    with store_server(request.param) as running, running.environment():
        yield running


@pytest.fixture
def path(server) -> str:
    return f"{server.bucket()}/set/.staging/lock"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where the tests were started in the background, which ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def hold(path: str, **more: object) -> None:
    """As another process would."""
    holder = {"host": "elsewhere", "pid": 1, "nonce": "other"}
    storage.write(path, json.dumps(holder | more))


def test_a_lease_is_held_by_one_and_given_back(path):
    with output_lock(path):
        assert lock_holder(path).startswith(f"process {os.getpid()} on ")
        assert json.loads(storage.read(path))["pid"] == os.getpid()
        with pytest.raises(UserError, match=f"in use by another job .process {os.getpid()} on "):
            output_lock(path).__enter__()
    assert not storage.exists(path)
    with output_lock(path):
        pass


def test_a_lease_is_renewed_while_it_is_held(path):
    with Lease(path, FAST) as lock:
        lock.renew()
        deadline = time.monotonic() + TIMEOUT_SEC
        while json.loads(storage.read(path))["renewals"] < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("holder", "stale_sec", "is_taken"),
    [
        ({}, 60.0, False),  # on another machine, seen just now
        ({}, 0.0, True),  # not renewed for too long
        ({"host": os.uname().nodename, "pid": os.getppid()}, 60.0, False),  # alive
        ({"host": os.uname().nodename, "pid": os.getpid()}, 60.0, True),  # our number, not us
        ({"host": os.uname().nodename, "pid": "?"}, 60.0, False),
    ],
)
def test_a_lease_is_taken_over_when_its_holder_is_gone(path, holder, stale_sec, is_taken):
    hold(path, **holder)
    lock = Lease(path, LeaseTimes(stale_sec=stale_sec))
    if is_taken:
        with lock:
            assert json.loads(storage.read(path))["pid"] == os.getpid()
        return
    with pytest.raises(UserError, match="in use by another job .* ago"):
        lock.__enter__()
    assert json.loads(storage.read(path))["nonce"] == "other"


def test_the_lease_of_a_process_that_has_ended_is_free_at_once(path):
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    hold(path, host=os.uname().nodename, pid=gone.pid)
    with Lease(path):
        pass


def test_what_is_no_lease_is_one_only_for_a_while(path):
    storage.write(path, b"\xff no lease")
    with pytest.raises(UserError, match="process unknown on unknown"):
        Lease(path).__enter__()
    with Lease(path, LeaseTimes(stale_sec=0.0)):
        pass


@pytest.mark.parametrize("how", ["taken", "deleted"])
def test_a_lost_lease_interrupts_the_job_with_a_sentence(path, how, interruptible):
    with pytest.raises(LeaseLostError, match="was taken by another job or deleted.*same command"):
        with Lease(path, FAST) as lock:
            lock.renew()
            if how == "taken":
                hold(path)
            else:
                storage.delete([path])
            time.sleep(TIMEOUT_SEC)  # as a blocking call of the job: the signal ends it
    # Another's lease is not deleted on the way out.
    assert storage.exists(path) == (how == "taken")


def test_a_store_that_is_away_for_a_moment_loses_nothing(path, monkeypatch, interruptible):
    calls = []
    store = storage.backend(path)
    write_if = store.write_if

    def away(path: str, data: bytes, version: str | None) -> str | None:
        calls.append(1 if version else 0)
        if version and sum(calls) < 4:
            raise OSError(5, "away")
        return write_if(path, data, version)

    monkeypatch.setattr(store, "write_if", away)
    with Lease(path, FAST) as lock:
        lock.renew()
        deadline = time.monotonic() + TIMEOUT_SEC
        while sum(calls) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    calls.clear()
    with pytest.raises(LeaseLostError, match="could not be renewed for 0 s .*away"):
        with Lease(path, FAST._replace(give_up_sec=0.0)) as lock:
            lock.renew()
            time.sleep(TIMEOUT_SEC)


def test_a_lease_that_cannot_be_written_is_one_sentence(server, path):
    server.fail(403, 100)
    storage.forget_clients()
    try:
        with pytest.raises(UserError) as error:
            Lease(path).__enter__()
    finally:
        server.heal()
    assert isinstance(error.value, OutputError) or "403" in str(error.value)
    assert "\n" not in str(error.value)
