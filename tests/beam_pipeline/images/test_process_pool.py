"""Processes that decode pictures: what happens when one of them is gone, and who is to blame."""

import os
import pathlib
import signal
import sys
from unittest.mock import Mock

import psutil
import pytest

from beam_pipeline.images.process_pool import MAX_ATTEMPTS, LocalPool, encoded_sizes
from beam_pipeline.options import ImageOptions, UrlOptions
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards import storage
from imageshards.errors import UserError, naming_flags
from tests.support import tasks
from tests.support.builds import jpeg
from tests.support.commands import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def said():
    return []


@pytest.fixture
def pool(said):
    with LocalPool(2, said.append) as started:
        yield started


def submit(pool: LocalPool, task, *args, name: str = "train-00007-of-00009", size: int = 1):
    return pool.submit(name, task, tasks.PICTURES, *args, size=size)


def test_results_come_in_order_and_images_are_counted(pool):
    futures = [submit(pool, tasks.double, i) for i in range(10)]
    assert [future.result() for future in futures] == [2 * i for i in range(10)]
    assert pool.total == 10
    assert pool.progress() == (10, 1000, 0, 0)


def test_a_path_object_in_sys_path_reaches_the_processes(said, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    with LocalPool(1, said.append) as pool:
        assert submit(pool, tasks.double, 4).result() == 8


def test_processes_import_the_modules_of_their_tasks_but_never_pandas(said):
    for modules in ([], ["beam_pipeline.shards.writer"]):
        with LocalPool(1, said.append, modules=modules) as pool:
            found = submit(pool, tasks.loaded, ["beam_pipeline.shards.writer", "pandas"])
            assert found.result() == {*modules}


@pytest.mark.parametrize(("pictures", "expected"), [(1, 1), (16, 2), (64, 3)])
def test_processes_share_the_pictures_of_a_sample(said, monkeypatch, tmp_path, pictures, expected):
    refs = [ImageRef(f"{i}", str(tmp_path / f"{i}.jpg"), "a") for i in range(pictures)]
    for i, ref in enumerate(refs):
        pathlib.Path(ref.uri).write_bytes(jpeg(i))
    with LocalPool(3, said.append) as pool:
        submitted = Mock(wraps=pool.submit)
        monkeypatch.setattr(pool, "submit", submitted)
        sizes = encoded_sizes(RefBatch(refs), ImageOptions(height_px=8, width_px=8), UrlOptions())
    assert submitted.call_count == expected
    assert len(sizes) == pictures


def test_only_the_task_of_a_killed_process_is_blamed_and_done_again(said, tmp_path):
    """Others that run meanwhile, as long as they like, neither stop nor begin anew."""
    go_on, begun = tmp_path / "go on", tmp_path / "begun"
    kills = MAX_ATTEMPTS - 1
    with LocalPool(2, said.append) as pool:
        innocent = submit(pool, tasks.wait_for, str(begun), str(go_on), name="innocent")
        marker = str(tmp_path / "marker")
        assert submit(pool, tasks.die_until, marker, kills, 1, name="mortal").result() == 2
        go_on.touch()
        assert innocent.result() == 1  # times that it was begun
        # What the killed ones had counted is not counted twice.
        assert pool.progress() == (1, 100, 0, 0)
    assert len(said) == kills
    assert all("SIGKILL" in sentence and "shard mortal" in sentence for sentence in said)


def test_a_process_killed_between_tasks_blames_no_picture(pool, said):
    assert submit(pool, tasks.double, 1).result() == 2
    for worker in pool._workers:
        os.kill(worker._process.pid, signal.SIGKILL)
    wait_until(lambda: all(worker.has_ended() for worker in pool._workers))
    assert [submit(pool, tasks.double, i).result() for i in range(4)] == [0, 2, 4, 6]
    assert not said


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.one_row
def test_a_deadly_shard_is_given_up_with_the_signal(pool, said, number):
    with pytest.raises(UserError) as error:
        submit(pool, tasks.die, int(number)).result()
    for sentence in (str(error.value), *said):
        assert f"({number.name})" in sentence and "train-00007-of-00009" in sentence
        assert ("memory" in sentence) == (number == signal.SIGKILL)
    assert len(said) == MAX_ATTEMPTS - 1


@pytest.mark.parametrize("deed", ["SIGSEGV", "SIGKILL", "hang"])
@pytest.mark.one_row
def test_a_picture_that_ends_its_process_is_left_out_after_two_tries(said, tmp_path, deed):
    log = tmp_path / "log"
    message = "the process that decodes it crashed or hung in each of 2 tries"
    message += ", the last time while no other picture was decoded" * (deed == "SIGKILL")
    with LocalPool(1, said.append, picture_sec=1) as pool:
        left_out = submit(pool, tasks.decode, {1: "once", 2: deed, 4: deed}, str(log)).result()
        assert pool.progress() == (6, 600, 0, 0)
    assert left_out == [(number, "decoder_crashed", message) for number in (2, 4)]
    met = log.read_text().split()
    assert [met.count(str(number)) for number in range(6)] == [6, 6, 2, 3, 2, 1]
    for uri, times in (("/photos/1.jpg", 1), ("/photos/2.jpg", 2), ("/photos/4.jpg", 2)):
        assert sum(repr(uri) in sentence for sentence in said) == times
    assert sum("without that picture" in sentence for sentence in said) == 2


def test_a_picture_is_not_blamed_for_a_kill_while_another_picture_is_decoded(said, tmp_path):
    decoding, go_on, log = (str(tmp_path / name) for name in ("decoding", "go on", "log"))
    with LocalPool(2, said.append) as pool:
        other = submit(pool, tasks.decode_until, decoding, go_on)
        wait_until(pathlib.Path(decoding).exists)
        killed = submit(pool, tasks.decode, {3: decoding}, log)
        wait_until(lambda: bool(said))  # it was killed once
        pathlib.Path(go_on).touch()
        assert killed.result() == []
        other.result()
    assert len(said) == 1 and said[0].endswith("is written again while no other shard is")


def test_an_error_says_where_it_was_raised_and_one_that_cannot_be_sent_is_its_text(pool):
    with pytest.raises(ValueError, match="no such luck") as error:
        submit(pool, tasks.fail).result()
    assert "tasks.py" in "".join(error.value.__notes__)
    with pytest.raises(RuntimeError, match="UnpicklableError: two arguments"):
        submit(pool, tasks.fail_without_pickle).result()


def test_a_killed_process_leaves_no_file_for_a_store_behind(said, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with LocalPool(1, said.append) as pool, pytest.raises(UserError, match="SIGKILL"):
        submit(pool, tasks.die_writing, "s3://bucket/train-00000-of-00001").result()
    assert list(tmp_path.iterdir()) == []


def test_settings_of_today_reach_processes_that_were_started_before(pool, monkeypatch):
    for place in ("here", "there"):
        monkeypatch.setenv("A_SETTING", place)
        with storage.using({"s3": {"endpoint_url": place}}):
            told = submit(pool, tasks.settings, "A_SETTING")
        pid, variable, found = told.result()
        assert (variable, found) == (place, {"s3": {"endpoint_url": place}}) and pid != os.getpid()


def test_errors_of_processes_name_options_as_those_of_the_client(pool):
    for names_flags, name in ((True, "--seed"), (False, "seed")):
        with naming_flags(names_flags):
            assert submit(pool, tasks.name_of_an_option).result() == name


def test_no_process_is_left_behind(said):
    with LocalPool(2, said.append) as pool:
        pid, _, _ = submit(pool, tasks.settings, "HOME").result()
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)
