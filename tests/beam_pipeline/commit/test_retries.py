"""Beam may run any step again: after it succeeded, after it failed, and twice at once."""

import contextlib
import errno
import functools
import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from beam_pipeline.commit.finalize import FinalizeTask, FinalShard
from beam_pipeline.commit.staging import mark_committed
from imageshards import storage
from imageshards.errors import LeaseLostError, UserError
from tests.support import commit_steps
from tests.support.builds import quarantined


@pytest.fixture
def disturbed(monkeypatch) -> Iterator[commit_steps.Disturbed]:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    found = commit_steps.Disturbed()
    with found.installed():
        yield found


@pytest.fixture(params=["disk", "store"])
def output(request, tmp_path) -> str:
    return str(tmp_path / "set") if request.param == "disk" else "mem://bucket/set"


class Attempts:
    """Runs the steps of a commit again and again, each until it has succeeded."""

    def __init__(self, job: commit_steps.Job, disturbed: Any, draw: random.Random):
        self.job, self.disturbed, self.draw = job, disturbed, draw
        self.tasks: list[FinalizeTask] = []
        self.entries: dict[str, FinalShard] = {}

    def attempt(self, step: Callable[[], Any]) -> Any:
        """A step that may fail, or be overtaken by another attempt at it, at any operation."""
        act = self.draw.choice([lambda: None, commit_steps.fail(), step])
        with contextlib.suppress(OSError, UserError):
            with self.disturbed.at(self.draw.randrange(60), act):
                step()
        return step()

    def begin(self):
        self.tasks = self.attempt(self.job.begin_commit)

    def finalize(self, number: int) -> None:
        task = self.tasks[number]
        self.entries[task.shard.name] = self.attempt(lambda: self.job.finalize(task))

    def finish(self) -> None:
        self.attempt(lambda: self.job.finish(self.entries.values()))

    def run(self) -> None:
        self.begin()
        shards = [n for n in range(len(self.tasks)) for _ in range(self.draw.randint(1, 2))]
        self.draw.shuffle(shards)
        for number in shards:
            if self.draw.random() < 0.2:
                self.begin()
            self.finalize(number)
        self.finish()
        again: list[Callable[[], None]] = [
            self.begin, lambda: self.finalize(self.draw.randrange(len(self.tasks))), self.finish,
        ]  # fmt: skip
        for step in again:  # as a runner that has lost their results
            if self.draw.random() < 0.5:
                step()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.one_row
def test_repeated_steps_make_the_same_dataset(disturbed, output, tmp_path, overwrite):
    if overwrite:
        commit_steps.Job(output, commit_steps.make_units(tmp_path / "old", 100, shards=2)).run()
        storage.write(storage.join(output, "report/index.html"), b"of the old dataset")
    before = commit_steps.contents(output)
    job = commit_steps.Job(output, commit_steps.make_units(tmp_path / "new", 0), overwrite)
    job.run()
    expected = commit_steps.contents(output)
    assert commit_steps.spreads(output) <= {0, 1} and len(quarantined(output)) == 5
    assert not [name for name in expected if "of-00002" in name]
    commit_steps.restore(output, before)
    job.begin()
    written = commit_steps.everything(output)
    shutil.rmtree(tmp_path / "new")  # the originals are not read again

    # A smaller example would say no more, and takes minutes to find.
    @settings(deadline=None, max_examples=12, derandomize=True, phases=[Phase.generate])
    @given(draw=st.randoms(use_true_random=False))
    def check(draw: random.Random) -> None:
        commit_steps.restore(output, written)
        Attempts(job, disturbed, draw).run()
        assert commit_steps.contents(output) == expected

    check()


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.one_row
def test_a_failed_read_replaces_nothing_finished(disturbed, output, tmp_path, is_finished):
    job = commit_steps.Job(output, commit_steps.make_units(tmp_path / "photos", 0))
    job.begin()
    written = commit_steps.everything(output)
    for number in itertools.count():
        commit_steps.restore(output, written)
        entries = [job.finalize(task) for task in job.begin_commit()]
        if is_finished:
            job.finish(entries)
            expected = commit_steps.contents(output)
        with disturbed.at(number, commit_steps.fail()):
            with contextlib.suppress(OSError, UserError):
                job.begin_commit()
            reached = disturbed.count > number
        if is_finished:
            assert commit_steps.contents(output) == expected
        else:
            job.commit()
            assert commit_steps.spreads(output) <= {0, 1}
        if not reached:
            break
    assert number > 5


@pytest.mark.parametrize("is_late", [False, True])
def test_a_lost_job_publishes_nothing(disturbed, output, tmp_path, monkeypatch, is_late):
    """So is a job on a cluster whose client was killed."""
    units = [commit_steps.make_units(tmp_path / name, n) for n, name in enumerate("ab")]
    lost, other = (commit_steps.Job(output, of_job) for of_job in units)
    lost.begin()
    tasks = lost.begin_commit()
    entries = [lost.finalize(task) for task in tasks]
    steps: list[Callable[[], Any]] = [lambda: lost.finish(entries)]
    if is_late:  # after the last check of job.json
        name = "beam_pipeline.commit.dataset.mark_committed"

        def mark_after_the_other_build(*given: Any) -> None:
            monkeypatch.setattr(name, mark_committed)
            other.run()
            mark_committed(*given)

        monkeypatch.setattr(name, mark_after_the_other_build)
    else:
        other.begin()
        with pytest.raises(LeaseLostError):  # while job.json is there, and when it is gone
            lost.begin_commit()
        other.run()
        steps += [lost.begin_commit, *(functools.partial(lost.finalize, task) for task in tasks)]
    for step in steps:
        with pytest.raises(LeaseLostError, match="publishes nothing"):
            step()
    found = commit_steps.contents(output)
    assert commit_steps.fingerprint_if_whole(output)
    storage.delete_folder(output)
    other.run()
    assert found == commit_steps.contents(output)


@pytest.mark.one_row
def test_a_full_disk_leaves_the_old_dataset_or_the_new_one(disturbed, output, tmp_path):
    commit_steps.Job(output, commit_steps.make_units(tmp_path / "old", 100, shards=2)).run()
    old, before = commit_steps.fingerprint_if_whole(output), commit_steps.contents(output)
    job = commit_steps.Job(output, commit_steps.make_units(tmp_path / "new", 0), overwrite=True)
    job.run()
    new, expected = commit_steps.fingerprint_if_whole(output), commit_steps.contents(output)
    assert old and new and old != new
    commit_steps.restore(output, before)
    job.begin()
    written, seen = commit_steps.everything(output), []
    for number in itertools.count():
        commit_steps.restore(output, written)
        job.begin()  # the job of the last round is another one
        try:
            with disturbed.at(number, commit_steps.fail(errno.ENOSPC), writes_only=True):
                job.commit()
        except (OSError, UserError):
            there = commit_steps.fingerprint_if_whole(output)
            aside = commit_steps.fingerprint_if_whole(storage.join(output, ".staging", "replaced"))
            assert there == old or (there is None and aside == old)
            seen.append(there or "aside")
        else:
            break
        job.run()  # the same command again, when there is room
        assert commit_steps.contents(output) == expected
    assert {*seen} == {old, "aside"}
