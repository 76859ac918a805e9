"""Hosts meet, agree, and end together; here every host is a thread, its sockets are real."""

import concurrent.futures
import contextlib
import functools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import pytest

from imageshards import storage
from imageshards.errors import UserError
from tests.support.cluster import free_addresses
from tests.support.commands import wait_until
from trainer.cluster import hosts
from trainer.cluster.hosts import EXIT_LOST, Ended, Hosts
from trainer.cluster.rendezvous import Cluster, joined
from trainer.training.checkpoint import Checkpoints, RunState

pytestmark = pytest.mark.process

TIMEOUT_SEC = 20.0


def one_host(addresses, index, timeout_sec=TIMEOUT_SEC, body=lambda hosts: None):
    """What `body` returned or raised on a host, or what kept it from meeting the others."""
    try:
        with joined(Cluster(tuple(addresses), index), timeout_sec) as hosts:
            return body(hosts)
    except (UserError, Ended, ZeroDivisionError, KeyboardInterrupt) as e:
        return e


def at_once(*hosts: Callable[[], Any]) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(lambda host: host(), hosts))


def on_hosts(count, body, timeout_sec=TIMEOUT_SEC):
    run = functools.partial(one_host, free_addresses(count), timeout_sec=timeout_sec, body=body)
    return at_once(*(functools.partial(run, index) for index in range(count)))


def at_a_step(hosts: Hosts) -> None:
    hosts.gather("step", None)


def test_all_hosts_get_the_values_of_all_hosts_in_order() -> None:
    def body(hosts: Hosts) -> Any:
        arrays: dict[str, np.ndarray] = {
            "a": np.arange(hosts.index + 1),
            "b": np.full((1, 2), hosts.index, np.float32),
        }
        whole = hosts.concatenate("arrays", arrays)
        shared = hosts.exchange("bytes", b"of %d" % hosts.index)
        listed = {name: array.tolist() for name, array in whole.items()}
        return hosts.gather("value", [hosts.index]), b"\n".join(shared), listed

    whole = {"a": [0, 0, 1, 0, 1, 2], "b": [[0, 0], [1, 1], [2, 2]]}
    assert on_hosts(3, body) == [([[0], [1], [2]], b"of 0\nof 1\nof 2", whole)] * 3


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("a flag is wrong; expected another."), 2, "a flag is wrong; expected another."),
        (Ended("told", 143), 143, "told"),
        (ZeroDivisionError("by zero"), 1, "ZeroDivisionError: by zero"),
    ],
)
def test_an_error_on_one_host_ends_all_hosts_with_its_sentence(failing, error, code, said):
    def body(hosts: Hosts) -> None:
        if hosts.index == failing:
            raise error
        at_a_step(hosts)

    found = on_hosts(3, body)
    assert found.pop(failing) is error
    assert all(isinstance(one, Ended) and one.exit_code == code for one in found)
    assert all(str(one).endswith(said) for one in found)


def die(hosts: Hosts) -> None:
    """Ends as a killed process does: nothing is said any more."""
    hosts._ended.cancel()
    for stream in hosts._peers.values():
        stream.shutdown(socket.SHUT_RDWR)
    raise KeyboardInterrupt


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_host_ends_all_hosts(lost: int) -> None:
    found = on_hosts(3, lambda hosts: (die if hosts.index == lost else at_a_step)(hosts))
    for error in found[:lost] + found[lost + 1 :]:
        assert isinstance(error, Ended) and error.exit_code == EXIT_LOST
        assert "is lost" in str(error) and "same command on all hosts again" in str(error)


@pytest.mark.parametrize(
    ("silent", "said"),
    [(True, ["is lost"]), (False, ["did not end within 3 s", "(step 7)", "cluster_timeout"])],
)
def test_a_host_that_does_not_answer_is_named(silent, said, monkeypatch):
    monkeypatch.setattr(hosts, "LOST_AFTER_SEC", 0.5 if silent else 60.0)
    monkeypatch.setattr(hosts, "HEARTBEAT_SEC", 3600.0 if silent else 0.1)
    over = threading.Event()

    def body(hosts: Hosts) -> None:
        if hosts.index == 1:
            over.wait(TIMEOUT_SEC)
            return
        try:
            hosts.gather("step 7", None)
        finally:
            over.set()

    found = on_hosts(2, body, TIMEOUT_SEC if silent else 3.0)[0]
    assert isinstance(found, Ended) and all(words in str(found) for words in said)


@pytest.mark.parametrize("stuck", [0, 1])
@pytest.mark.one_row
def test_a_sum_that_does_not_end_has_a_limit(stuck: int) -> None:
    over = threading.Event()

    def body(hosts: Hosts) -> None:
        with hosts.limited("Step 3"):
            if hosts.index == stuck:
                over.wait(TIMEOUT_SEC)  # as in a sum that nobody joins
        try:
            hosts.gather("step 4", None, patient=True)
        finally:
            over.set()

    for error in on_hosts(2, body, 2.0):
        assert isinstance(error, Ended) and "Step 3 did not end within 2 s" in str(error)


def test_a_patient_wait_has_no_limit() -> None:
    def body(hosts: Hosts) -> Any:
        hosts.timeout_sec = 0.1
        if hosts.index == 1:
            time.sleep(2)  # as where only this host fills its cache
        return hosts.gather("the reader", hosts.index, patient=True)

    assert on_hosts(3, body) == [[0, 1, 2]] * 3


def test_a_lost_host_does_not_cut_off_a_checkpoint(tmp_path, monkeypatch):
    """The main thread of the chief waits for ever, as in a sum that the lost host never joins."""
    begun, over, plain = threading.Event(), threading.Event(), storage.open_write
    ends: list[Any] = []

    def end(code: int) -> None:
        ends.append((code, Checkpoints(str(tmp_path), 1).steps()))
        over.set()

    def body(met: Hosts) -> None:
        @contextlib.contextmanager
        def slow(path: str) -> Iterator[IO[bytes]]:
            with plain(path) as file:
                begun.set()
                met._ended.result()
                time.sleep(10 * hosts.GRACE_SEC)
                yield file

        if met.is_chief:
            monkeypatch.setattr(storage, "open_write", slow)
            checkpoints = Checkpoints(str(tmp_path), 1, met)
            threading.Thread(target=checkpoints.save, args=[RunState({}, step=4)]).start()
            begun.wait()
        met.gather("begun", None)
        over.wait(60) if met.is_chief else die(met)

    monkeypatch.setattr(hosts, "GRACE_SEC", 0.1)
    monkeypatch.setattr(os, "_exit", end)
    assert "is lost" in str(on_hosts(2, body, 60.0)[0])
    assert ends[0] == (EXIT_LOST, [4])


def test_a_host_that_ends_slowly_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = Hosts.leave

    def slowly(self: Hosts, error: BaseException | None) -> None:
        if self.is_chief:
            time.sleep(0.5)  # the others have gone before
        leave(self, error)

    monkeypatch.setattr(Hosts, "leave", slowly)
    assert on_hosts(4, lambda hosts: hosts.index) == [0, 1, 2, 3]


def test_a_network_error_of_tensorflow_becomes_a_sentence(monkeypatch):
    monkeypatch.setattr(hosts, "HEARTBEAT_SEC", 0.1)
    unavailable = type("UnavailableError", (Exception,), {})

    def body(hosts: Hosts) -> None:
        if hosts.index == 1:
            raise unavailable("no route\nto host")
        at_a_step(hosts)

    for error in on_hosts(2, body):
        assert isinstance(error, Ended) and "(UnavailableError: no route)" in str(error)
        assert "does not reach another host of" in str(error)


def test_missing_hosts_and_hosts_at_different_steps_are_named() -> None:
    found = on_hosts(2, lambda hosts: hosts.gather(f"step {hosts.index}", None))
    assert any("is at 'step 1', while" in str(error) for error in found)
    assert all(isinstance(error, Ended) for error in found)
    addresses = free_addresses(3)
    run = functools.partial(one_host, addresses, timeout_sec=3.0)
    for error in at_once(lambda: run(0), lambda: run(1)):
        assert f"3 hosts, of which {addresses[2]}" in str(error)
        assert "cluster_timeout" in str(error)
    said = str(one_host(addresses, 1, 1.0))
    assert f"the chief {addresses[0]}, " in said and "1 s" in said


@pytest.mark.parametrize("index", [0, 1])
def test_a_port_in_use_is_an_error(index: int) -> None:
    with socket.create_server(("", 0)) as taken:
        addresses = ["localhost:1", "localhost:2"]
        addresses[index] = f"localhost:{taken.getsockname()[1]}"
        error = one_host(addresses, index, 1.0)
    assert isinstance(error, UserError) and "cannot be used" in str(error)


@pytest.mark.parametrize("indices", [[1, 1], [0]])
def test_a_wrong_index_ends_all_hosts(indices: list[int]) -> None:
    addresses = free_addresses(3)

    def others() -> Any:
        with _caller(addresses) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        callers = [_caller(addresses, index=index) for index in indices]
        return [json.loads(one.makefile().readline()) for one in callers]

    chief, told = at_once(lambda: one_host(addresses, 0), others)
    assert isinstance(chief, UserError) and f"the task index {indices[0]}" in str(chief)
    assert {*told} == {str(chief)}


def test_a_malformed_greeting_is_ignored() -> None:
    addresses = free_addresses(2)

    def others() -> Any:
        greeting = f'{{"addresses": {json.dumps(addresses)}, "index": %s}}'
        wrong = (greeting % index for index in ("true", "1.0", "1e999", "[" * 100_000))
        for hello in ('{"addresses": 1}', *wrong):
            with _caller(addresses) as stranger:
                stranger.sendall(hello.encode() + b"\n")
        return one_host(addresses, 1, body=lambda hosts: hosts.gather("value", 1))

    run = functools.partial(one_host, body=lambda hosts: hosts.gather("value", 0))
    assert at_once(lambda: run(addresses, 0), others) == [[0, 1]] * 2


def test_a_restarted_host_takes_its_old_place() -> None:
    addresses = free_addresses(3)
    run = functools.partial(one_host, addresses, body=lambda hosts: hosts.gather("value", 0))

    def killed_and_again() -> Any:
        _caller(addresses, index=1).close()
        return at_once(lambda: run(1), lambda: run(2))

    assert at_once(lambda: run(0), killed_and_again) == [[0] * 3, [[0] * 3] * 2]


def test_hosts_of_two_clusters_are_refused() -> None:
    addresses = free_addresses(2)
    other = (addresses[0], "elsewhere:" + addresses[1].rpartition(":")[2])
    for error in at_once(lambda: one_host(addresses, 0), lambda: one_host(other, 1)):
        assert "addresses" in str(error)


def _caller(addresses: Sequence[str], **hello: int) -> socket.socket:
    """A connection to the chief, which has said `hello` if there is something to say."""
    address, streams = ("localhost", int(addresses[0].rpartition(":")[2])), []

    def connects() -> bool:
        with contextlib.suppress(OSError):
            streams.append(socket.create_connection(address))
        return bool(streams)

    wait_until(connects)
    if hello:
        streams[0].sendall(json.dumps({"addresses": addresses, **hello}).encode() + b"\n")
    return streams[0]
