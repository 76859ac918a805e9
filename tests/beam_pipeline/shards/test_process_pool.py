"""Processes that write shards: what happens when one of them is gone."""

from __future__ import annotations

import contextlib
import functools
import pathlib

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


def kill_family() -> None:
    """Kills all processes below this one; who started them reaps them.

    But for the server of other tests, which has nothing to do with the pool.
    """
    children = psutil.Process().children(recursive=True)
    family = [child for child in children if not _is_server(child)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    tasks.wait_until(lambda: not any(map(_runs, family)))


def _holds_two_files(folder: pathlib.Path) -> bool:
    return len(list(folder.iterdir())) == 2


def _is_server(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "tests.support.forked_commands" in process.cmdline()
    return False


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


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
    pool.submit("mortal", tasks.die_until, str(tmp_path / "marker"), 1, 21, size=1)
    assert pool.result("mortal").value == 42
    assert [pool.result(f"shard {i}").value for i in range(6)] == [2 * i for i in range(6)]
    assert len(said) == 1
    assert "a worker process was killed" in said[0] and "shard mortal" in said[0]
    assert pool.progress() == (7, 700, 0, 0)  # what the killed one had counted is not counted twice


def test_only_the_task_of_a_killed_process_is_blamed_and_done_again(said, tmp_path):
    """Others that run meanwhile, as long as they like, neither stop nor begin anew."""
    go_on, begun = tmp_path / "go on", tmp_path / "begun"
    kills = MAX_ATTEMPTS - 1
    with LocalPool(2, said.append) as pool:
        pool.submit("innocent", tasks.wait_for, str(begun), str(go_on), size=1)
        for name in ("a", "b", "c"):
            pool.submit(name, tasks.die_until, str(tmp_path / name), kills, 1, size=1)
        assert [pool.result(name).value for name in ("a", "b", "c")] == [2, 2, 2]
        go_on.touch()
        assert pool.result("innocent").value == 1  # times that it was begun
    assert len(said) == 3 * kills
    assert not [sentence for sentence in said if "innocent" in sentence]


def test_every_process_of_the_pool_may_be_killed_five_times(pool, said, tmp_path):
    """The fork server, which starts new processes after the first ones, among them."""
    for round_number in range(5):
        folder = tmp_path / str(round_number)
        folder.mkdir()
        go_on = folder / "go on"
        for i in range(2):
            pool.submit(f"{i}", tasks.wait_for, str(folder / f"begun {i}"), str(go_on), size=1)
        tasks.wait_until(functools.partial(_holds_two_files, folder))
        kill_family()
        go_on.touch()
        assert [pool.result(f"{i}").value for i in range(2)] == [2, 2]
    assert len(said) == 10


def test_a_process_killed_between_tasks_is_nobodys_fault(pool, said):
    pool.submit("first", tasks.double, 1, size=1)
    assert pool.result("first").value == 2
    kill_family()
    tasks.wait_until(lambda: all(worker.has_ended() for worker in pool._workers))
    for i in range(4):
        pool.submit(f"shard {i}", tasks.double, i, size=1)
    assert [pool.result(f"shard {i}").value for i in range(4)] == [0, 2, 4, 6]
    assert not said


def test_it_gives_up_on_a_task_that_is_killed_again_and_again(pool, said):
    pool.submit("train-00007-of-00009", tasks.die, size=1)
    expected = rf"train-00007-of-00009 was killed {MAX_ATTEMPTS} times.*memory"
    with pytest.raises(UserError, match=expected):
        pool.result("train-00007-of-00009")
    assert len(said) == MAX_ATTEMPTS - 1


def test_an_error_of_a_task_is_raised_where_its_result_is_asked_for(pool):
    pool.submit("bad", tasks.fail, size=1)
    with pytest.raises(ValueError, match="no such luck"):
        pool.result("bad")


def test_an_error_says_where_in_the_other_process_it_was_raised(pool):
    pool.submit("bad", tasks.fail, size=1)
    with pytest.raises(ValueError) as error:
        pool.result("bad")
    assert "tasks.py" in "".join(error.value.__notes__)


def test_an_error_that_cannot_be_sent_between_processes_is_raised_as_its_text(pool):
    pool.submit("bad", tasks.fail_without_pickle, size=1)
    with pytest.raises(RuntimeError, match="UnpicklableError: two arguments"):
        pool.result("bad")


def test_no_process_is_left_behind(said):
    before = set(psutil.Process().children(recursive=True))
    with LocalPool(2, said.append) as pool:
        pool.submit("shard", tasks.pid, size=1)
        worker = pool.result("shard").value
        assert psutil.pid_exists(worker)
    assert process_pool.active() is None
    left = {p.pid for p in set(psutil.Process().children(recursive=True)) - before}
    assert worker not in left
