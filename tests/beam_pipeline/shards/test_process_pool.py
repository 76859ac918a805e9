"""Processes that write shards: what happens when one of them is gone."""

from __future__ import annotations

import psutil
import pytest

from beam_pipeline.shards import process_pool
from beam_pipeline.shards.process_pool import MAX_ATTEMPTS, LocalPool
from imageshards.errors import UserError
from tests.support import tasks

pytestmark = pytest.mark.process


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def pool(said):
    with LocalPool(2, said.append) as started:
        yield started


def test_results_come_by_name_and_images_are_counted(pool):
    for i in range(10):
        pool.submit(f"shard {i}", tasks.double, i, size=1)
    assert [pool.result(f"shard {i}").value for i in range(10)] == [2 * i for i in range(10)]
    assert pool.total == 10
    assert pool.progress() == (10, 1000, 0, 0)


def test_images_of_shards_that_were_finished_before_are_counted_apart(pool):
    pool.submit("old", tasks.was_done_before, 40, size=40)
    pool.result("old")
    assert pool.progress() == (40, 0, 0, 40)


def test_a_killed_process_is_replaced_and_its_task_done_again(pool, said, tmp_path):
    for i in range(6):
        pool.submit(f"shard {i}", tasks.double, i, size=1)
    pool.submit("mortal", tasks.die_once, str(tmp_path / "marker"), 21, size=1)
    assert pool.result("mortal").value == 42
    assert [pool.result(f"shard {i}").value for i in range(6)] == [2 * i for i in range(6)]
    assert len(said) == 1
    assert "a worker process was killed" in said[0]


def test_it_gives_up_on_a_task_that_is_killed_again_and_again(pool, said):
    pool.submit("train-00007-of-00009", tasks.die, size=1)
    with pytest.raises(UserError, match=r"train-00007-of-00009 was killed 3 times.*memory"):
        pool.result("train-00007-of-00009")
    assert len(said) == MAX_ATTEMPTS - 1


def test_an_error_of_a_task_is_raised_where_its_result_is_asked_for(pool):
    pool.submit("bad", tasks.fail, size=1)
    with pytest.raises(ValueError, match="no such luck"):
        pool.result("bad")


def test_no_process_is_left_behind(said):
    before = set(psutil.Process().children(recursive=True))
    with LocalPool(2, said.append) as pool:
        pool.submit("shard", tasks.double, 1, size=1)
        pool.result("shard")
        workers = list(pool._executor._processes)
        assert workers
    assert process_pool.active() is None
    left = {p.pid for p in set(psutil.Process().children(recursive=True)) - before}
    assert not left & set(workers)
