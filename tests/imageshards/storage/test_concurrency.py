import os
import threading

import pytest

from imageshards.storage import map_concurrently, run_concurrently
from imageshards.storage.concurrency import available_cores

TIMEOUT_S = 30


V1 = "7:cpuset:/\n4:cpu,cpuacct:/\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
        (V1 + "0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/a/b\n", {"cpu.max": "300000 100000", "a/cpu.max": "900000 100000"}, 3),
        ("0::/../../of/the/host\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/\n", {"cpu.max": "max 100000"}, 64),
        ("0::/\n", {"cpu.max": "10000 100000"}, 1),
        ("0::/\n", {"cpu.max": ""}, 64),
        (V1, {"cpu.max": "100000 100000"}, 64),
        (None, {}, 64),
    ],
)  # fmt: skip
def test_cores_are_those_of_the_containers_quota(tmp_path, monkeypatch, cgroup, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    contents = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in contents.items() | ({("proc/self/cgroup", cgroup)} if cgroup else set()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert available_cores(str(tmp_path)) == cores


def test_concurrent_calls_overlap_and_keep_their_order():
    meeting = threading.Barrier(3, timeout=TIMEOUT_S)

    def call(number):
        meeting.wait()  # one after the other they would wait in vain
        return number

    assert run_concurrently(lambda: call(1), lambda: call(2), lambda: call(3)) == [1, 2, 3]


def test_an_error_waits_for_running_calls():
    begun, ended = threading.Event(), threading.Event()

    def fails():
        assert begun.wait(TIMEOUT_S)
        raise OSError("no such luck")

    def slow():
        begun.set()
        threading.Event().wait(0.2)
        ended.set()

    with pytest.raises(OSError, match="no such luck"):
        run_concurrently(fails, slow)
    assert ended.is_set()
    assert run_concurrently() == []


def test_calls_start_only_shortly_before_they_are_needed():
    begun: list[int] = []

    def call(item):
        begun.append(item)
        return item

    results = map_concurrently(call, range(100), at_once=4)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    results.close()
    assert len(begun) <= 7
