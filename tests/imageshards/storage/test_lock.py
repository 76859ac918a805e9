import concurrent.futures
import contextlib
import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings

from beam_pipeline.images.process_pool import LocalPool
from imageshards import storage
from imageshards.errors import LeaseLostError, OutputError, UserError
from imageshards.manifest.file import load_manifest
from imageshards.storage import lease as leases
from imageshards.storage import lock, objects
from imageshards.storage.lease import output_lock
from tests.support import tasks
from tests.support.no_locks import hide_locks_below
from tests.support.strangers import changed

pytestmark = pytest.mark.process

TIMEOUT_SEC = 30
# Of the address of a request that writes an object of a test's output.
WRITES = {"s3": "/set/", "gs": "/upload/"}

HOLD = """
import sys
from imageshards.storage.lease import output_lock
with output_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
# As HOLD; and a worker of it keeps the lock until its standard input ends.
HOLD_WITH_WORKER = """
import subprocess, sys, time
from imageshards.storage.lease import output_lock
with output_lock(sys.argv[1]) as lock:
    subprocess.Popen(["cat"], pass_fds=[lock.fd], stdout=subprocess.DEVNULL)
    print("held", flush=True)
    time.sleep(600)
"""


def holder_of(path, program=HOLD):
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_lock_has_one_holder_until_its_process_ends(tmp_path):
    path = tmp_path / "out" / ".staging" / "lock"
    with holder_of(path) as process:
        said = f"output received '{tmp_path}/out.* is in use .*process {process.pid} on "
        with pytest.raises(UserError, match=said):
            output_lock(str(path)).__enter__()
        with pytest.raises(UserError, match="build has not ended; wait for it, or run it again"):
            load_manifest(f"{tmp_path}/out")
        process.kill()
    with output_lock(str(path)):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def kill_and_leave_a_worker(path):
    process: Any = holder_of(path, HOLD_WITH_WORKER)
    process.kill()
    process.wait()
    return process


def test_a_lock_waits_for_workers_of_a_killed_process(tmp_path, monkeypatch):
    path = str(tmp_path / "out" / ".staging" / "lock")
    worker = kill_and_leave_a_worker(path)
    waits: list[float] = []
    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=f"{worker.pid} on .*end"),
    ):
        patch.setattr(lock, "_ORPHANS_SEC", 0.0)
        output_lock(path).__enter__()

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            worker.stdin.close()  # so it ends
        threading.Event().wait(seconds)

    monkeypatch.setattr("imageshards.storage.lock.time.sleep", wait)
    with output_lock(path):
        assert len(waits) >= 3


def test_a_lock_is_free_again_after_its_block_even_after_an_error(tmp_path):
    path = str(tmp_path / "out" / ".staging" / "lock")
    with pytest.raises(ZeroDivisionError), output_lock(path):
        raise ZeroDivisionError
    with output_lock(path):
        shutil.rmtree(os.path.dirname(path))  # as a job does when it is done
    with output_lock(path), pytest.raises(UserError, match="in use"), output_lock(path):
        pass


def test_a_lock_is_taken_again_if_its_file_was_deleted_meanwhile(tmp_path, monkeypatch):
    path = str(tmp_path / "out" / ".staging" / "lock")
    opened = lock._locked_file
    times: list[int] = []

    def open_and_lose(path):
        file = opened(path)
        if not times:
            shutil.rmtree(os.path.dirname(path))
        times.append(1)
        return file

    monkeypatch.setattr(lock, "_locked_file", open_and_lose)
    with output_lock(path):
        assert os.path.exists(path) and len(times) == 2


def test_an_unusable_output_is_reported_in_one_sentence(tmp_path):
    path = tmp_path / "out" / ".staging" / "lock"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OutputError, match="File too large"):
            output_lock(str(path)).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path):
    path, mine = tmp_path / "out" / ".staging" / "lock", tmp_path / "mine"
    mine.write_text("mine")
    path.parent.mkdir(parents=True)
    path.symlink_to(mine)
    with pytest.raises(OutputError, match="cannot be written .Too many levels of symbolic links"):
        output_lock(str(path)).__enter__()
    assert mine.read_text() == "mine"


@pytest.fixture
def without_locks(tmp_path, monkeypatch):
    """The path of a lock in a folder without locks, and the program that makes it so."""
    monkeypatch.setattr(fcntl, "flock", fcntl.flock)  # restored after the test
    hide_locks_below(str(tmp_path))
    program = f"from tests.support.no_locks import *; hide_locks_below({str(tmp_path)!r})"
    return tmp_path / "out" / ".staging" / "lock", program


def test_without_locks_a_second_file_keeps_other_jobs_out(without_locks, caplog):
    path, program = without_locks
    held = f"{path}-held"
    with output_lock(str(path)):
        assert f"without locks (No locks available), so the file {held} keeps" in caplog.text
    assert not os.path.exists(held)
    with holder_of(path, program + HOLD) as process:
        said = f"in use by another job .process {process.pid} on .*wait.*or delete {held} if"
        with pytest.raises(UserError, match=said):
            output_lock(str(path)).__enter__()
        process.kill()
    os.unlink(held)  # as the sentence says
    with output_lock(str(path)):
        shutil.rmtree(path.parent)  # as a job does when it is done


@pytest.fixture
def path(server):
    return f"{server.bucket()}/set/.staging/lock"


@pytest.fixture
def fast(monkeypatch):
    """Renewals follow each other at once; Ctrl-C interrupts, also tests in the background."""
    monkeypatch.setattr(leases, "_RENEW_SEC", 0.02)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def hold(path):
    storage.write(path, json.dumps({"host": "elsewhere", "pid": 1, "nonce": "other"}))


UNKNOWN = {"host": os.uname().nodename, "pid": 2**22}  # also in a container of the same host name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"host": "elsewhere", "pid": 1, "nonce": "other"}, "process 1 on elsewhere"),
        (UNKNOWN | {"nonce": "0" * 32}, f"process {2**22} on"),
        (UNKNOWN | {"nonce": "../../etc/passwd"}, f"process {2**22} on"),
        ({"nonce": None}, "process unknown on unknown"),
    ],
)
def test_a_lease_is_free_when_it_was_not_renewed_for_too_long(path, content, words, monkeypatch):
    storage.write(path, json.dumps(content))
    with pytest.raises(UserError, match=f"in use by another job .{words}.*, seen .* ago"):
        output_lock(path).__enter__()
    monkeypatch.setattr(leases, "_STALE_SEC", 0.0)
    with output_lock(path):
        assert json.loads(storage.read(path))["pid"] == os.getpid()


def test_a_lease_is_free_as_soon_as_its_process_has_ended(path):
    with holder_of(path) as process:
        with pytest.raises(UserError, match=f"in use by another job .process {process.pid} "):
            output_lock(path).__enter__()
        holder = lock.Holder.parse(storage.read(path))
        process.kill()
    with output_lock(path):
        pass
    assert not os.path.exists(holder.sign_of_life)


@pytest.mark.parametrize("how", ["taken", "deleted"])
def test_a_lost_lease_interrupts_the_job_with_a_sentence(path, how, fast):
    with pytest.raises(LeaseLostError, match="was taken by another job or deleted.*same command"):
        with output_lock(path):
            if how == "taken":
                hold(path)
            else:
                storage.delete([path])
            time.sleep(TIMEOUT_SEC)  # as a blocking call of the job: the signal ends it
    # Another's lease is not deleted on the way out.
    assert storage.exists(path) == (how == "taken")


def renewals_after(path, count):
    deadline = time.monotonic() + TIMEOUT_SEC
    while (done := int(json.loads(storage.read(path))["renewals"])) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return done


@pytest.mark.one_row
def test_a_renewal_that_fails_or_whose_answer_is_lost_loses_nothing(server, path, fast):
    matching = WRITES[server.scheme]
    server.fail("drop_answer", times=1, matching=matching)
    with output_lock(path):
        for kind, times in (("drop_answer", 1), ("drop_answer", 3), (500, 3)):
            done = renewals_after(path, 0)
            server.fail(kind, times=times, matching=matching)
            renewals_after(path, done + 8)
    assert not storage.exists(path)


def test_a_holder_gives_up_when_no_renewal_succeeds(server, path, monkeypatch, fast):
    monkeypatch.setattr(leases, "_GIVE_UP_SEC", 0.4)
    with pytest.raises(LeaseLostError, match="could not be renewed for 0 s .*403"):
        with output_lock(path):
            server.fail(403, times=10**6, matching=WRITES[server.scheme])
            time.sleep(TIMEOUT_SEC)  # as a blocking call of the job: the signal ends it
    server.heal()


def writes_refused(output, local):
    """What of all that writes below an output is refused as its lease is lost."""
    store, path = storage.backend(output), f"{output}/x"
    calls = {
        "write": lambda: store.write(path, b"1"),
        "upload": lambda: store.upload(local, path),
        "copy": lambda: store.copy(f"{storage.parent_of(output)}/elsewhere", path),
        "move": lambda: storage.move(f"{storage.parent_of(output)}/elsewhere", path),
        "delete": lambda: store.delete([path]),
        "delete many": lambda: store.delete([path, f"{output}/y"]),
    }
    refused = []
    for name, call in calls.items():
        try:
            call()
        except LeaseLostError:
            refused.append(name)
    return refused if len(refused) < len(calls) else ["all"]


@pytest.mark.usefixtures("fast")
def test_nothing_is_written_after_a_lease_is_lost(server, path, tmp_path, monkeypatch):
    output = path.removesuffix("/.staging/lock")
    elsewhere = f"{storage.parent_of(output)}/elsewhere"
    (tmp_path / "x").write_bytes(b"1")
    storage.write(elsewhere, b"1")
    with contextlib.ExitStack() as stack:
        with pytest.raises(LeaseLostError):
            with output_lock(path) as held:
                assert writes_refused(output, str(tmp_path / "x")) == []
                storage.write(elsewhere, b"1")
                pool = stack.enter_context(LocalPool(1, lock=held))
                written = pool.submit("x", tasks.write, tasks.PICTURES, f"{output}/x")
                assert written.result() is None
                hold(path)
                time.sleep(TIMEOUT_SEC)
        server.clear()
        written = pool.submit("x", tasks.write, tasks.PICTURES, f"{output}/x")
        with pytest.raises(LeaseLostError, match="was lost, so this job was stopped"):
            written.result()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert threads.submit(writes_refused, output, str(tmp_path / "x")).result() == ["all"]
    assert {asked.method for asked in server.requests()} <= {"GET", "HEAD"}
    storage.write(elsewhere, b"2")
    monkeypatch.setattr(leases, "_STALE_SEC", 0.0)
    with output_lock(path):  # of another job, for this process
        assert writes_refused(output, str(tmp_path / "x")) == []


def test_a_write_is_not_repeated_after_the_limit(server, path, monkeypatch):
    output = path.removesuffix("/.staging/lock")
    with output_lock(path):
        now = [0.0, 1e9]  # the machine slept while the store was busy
        monkeypatch.setattr(leases, "_now", lambda: now.pop(0) if len(now) > 1 else now[0])
        server.fail(503, times=5, matching=WRITES[server.scheme])
        server.clear()
        with pytest.raises(LeaseLostError, match="could not be renewed for 45 s"):
            storage.write(f"{output}/x", b"1")
        assert [asked.status for asked in server.requests()] == [503]
        server.heal()
    assert storage.exists(path)  # it may be another's by now


def test_requests_end_before_a_lease_expires():
    longest_sec = objects.CONNECT_SEC + objects.ANSWER_SEC
    assert 2 * (leases._RENEW_SEC + objects.HASTY_SEC) < leases._GIVE_UP_SEC
    assert leases._GIVE_UP_SEC + longest_sec < leases._STALE_SEC


@given(changed({"host": socket.gethostname(), "pid": 1, "nonce": "0" * 32}))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_damaged_content_of_a_lock_keeps_no_job_out(tmp_path_factory, holder):
    path = str(tmp_path_factory.mktemp("lock") / "lock")
    storage.write(path, json.dumps(holder))
    with output_lock(path):
        assert json.loads(storage.read(path))["pid"] == os.getpid()
