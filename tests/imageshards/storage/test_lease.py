"""A lease in a store: one holder, renewed, taken over when it is nobody's, lost with a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from beam_pipeline.commit.lock import output_lock
from imageshards import storage
from imageshards.errors import LeaseLostError, OutputError, UserError
from imageshards.storage import lease
from imageshards.storage.lease import StorageLock
from tests.support.store_servers import StoreServer, store_server


@pytest.fixture(scope="module", params=["gs", "s3"])
def server(request) -> Iterator[StoreServer]:
    with store_server(request.param) as running, running.environment():
        yield running


@pytest.fixture
def path(server) -> str:
    return f"{server.bucket()}/set/.staging/lock"


def hold(path: str, **more: object) -> None:
    """As another process would."""
    holder = {"host": "elsewhere", "pid": 1, "nonce": "other"}
    storage.write(path, json.dumps(holder | more))


def test_a_lease_is_held_by_one_and_given_back(path):
    with output_lock(path):
        assert json.loads(storage.read(path))["pid"] == os.getpid()
        with pytest.raises(UserError, match=f"in use by another job .process {os.getpid()} on "):
            output_lock(path).__enter__()
    assert not storage.exists(path)
    with output_lock(path):
        pass


def test_a_lease_is_renewed_while_it_is_held(path):
    with StorageLock(path, 0.05) as lock:
        lock.renew()
        deadline = time.monotonic() + 30
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
def test_a_lease_is_taken_over_when_it_is_nobodys(path, monkeypatch, holder, stale_sec, is_taken):
    monkeypatch.setattr(lease, "STALE_SEC", stale_sec)
    hold(path, **holder)
    if is_taken:
        with StorageLock(path):
            assert json.loads(storage.read(path))["pid"] == os.getpid()
        return
    with pytest.raises(UserError, match="in use by another job .* ago"):
        StorageLock(path).__enter__()
    assert json.loads(storage.read(path))["nonce"] == "other"


def test_the_lease_of_a_process_that_has_ended_is_free_at_once(path):
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    hold(path, host=os.uname().nodename, pid=gone.pid)
    with StorageLock(path):
        pass


def test_what_is_no_lease_is_one_only_for_a_while(path, monkeypatch):
    storage.write(path, b"\xff no lease")
    with pytest.raises(UserError, match="process unknown on unknown"):
        StorageLock(path).__enter__()
    monkeypatch.setattr(lease, "STALE_SEC", 0.0)
    with StorageLock(path):
        pass


@pytest.mark.parametrize("how", ["taken", "deleted"])
def test_a_lost_lease_interrupts_the_job_with_a_sentence(path, how):
    with pytest.raises(LeaseLostError, match="was taken by another job or deleted.*same command"):
        with StorageLock(path, 0.05) as lock:
            lock.renew()
            if how == "taken":
                hold(path)
            else:
                storage.delete([path])
            time.sleep(30)  # as a blocking call of the job: the signal ends it
    # Another's lease is not deleted on the way out.
    assert storage.exists(path) == (how == "taken")


def test_a_store_that_is_away_for_a_moment_loses_nothing(server, path, monkeypatch):
    calls = []
    replace_if = storage.replace_if

    def away(*arguments: str) -> str | None:
        calls.append(1)
        if len(calls) < 4:
            raise OSError(5, "away")
        return replace_if(*arguments)

    monkeypatch.setattr(storage, "replace_if", away)
    with StorageLock(path, 0.02) as lock:
        lock.renew()
        deadline = time.monotonic() + 30
        while len(calls) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    monkeypatch.setattr(lease, "GIVE_UP_SEC", 0.0)
    calls.clear()
    with pytest.raises(LeaseLostError, match="could not be renewed for 0 s .*away"):
        with StorageLock(path, 0.02) as lock:
            lock.renew()
            time.sleep(30)


def test_a_lease_that_cannot_be_written_is_one_sentence(server, path):
    server.fail(403, 100)
    storage.forget_clients()
    try:
        with pytest.raises(UserError) as error:
            StorageLock(path).__enter__()
    finally:
        server.heal()
    assert isinstance(error.value, OutputError) or "403" in str(error.value)
    assert "\n" not in str(error.value)
