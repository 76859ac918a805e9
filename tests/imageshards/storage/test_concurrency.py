import threading

import pytest

from imageshards.storage import map_concurrently, run_concurrently

TIMEOUT_S = 30


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
