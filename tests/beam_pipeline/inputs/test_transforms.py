"""Listing holds a few names, however many there are."""

from __future__ import annotations

import tracemalloc

import pytest

from beam_pipeline.inputs import folders, transforms
from beam_pipeline.inputs.listing import ListingTask
from beam_pipeline.inputs.transforms import BATCH_SIZE
from beam_pipeline.options import InputOptions
from imageshards.storage import files
from imageshards.storage.base import Backend, Stat

FOLDERS, NAMES = 40, 12_000


class LongFolders(Backend):
    """A store whose folders have many files; it counts those that were listed."""

    def __init__(self):
        self.listed = 0

    def open_read(self, path):
        raise FileNotFoundError(path)

    def stat(self, path):
        return None

    def files_from(self, prefix):
        for number in range(NAMES):
            self.listed += 1
            yield Stat(f"{prefix}{number:06d}.jpg", 1, 0, "")


@pytest.fixture
def store(monkeypatch):
    backend = LongFolders()
    monkeypatch.setitem(files._backends, "long", backend)
    return backend


def test_long_folders_of_a_store_are_listed_side_by_side_and_never_whole(store):
    tasks = [
        ListingTask(f"long://bucket/photos/{number:02d}", label=f"{number:02d}")
        for number in range(FOLDERS)
    ]
    images, most_ahead, labels_seen = 0, 0, []
    for found in transforms.list_tasks(tasks, ((InputOptions("long://bucket/photos"), None),)):
        images += len(found)
        labels_seen.append(found.refs[0].label)
        most_ahead = max(most_ahead, store.listed - images)
    assert images == FOLDERS * NAMES
    # One batch and one page for each folder that is listed at the moment.
    assert most_ahead <= transforms._TASKS_AT_ONCE * 2 * BATCH_SIZE
    assert len(set(labels_seen[: transforms._TASKS_AT_ONCE])) == transforms._TASKS_AT_ONCE


def test_a_long_folder_of_this_machine_is_never_held_whole(tmp_path):
    for number in range(20_000):
        (tmp_path / f"{number:06d}_with_a_name_of_some_length.jpg").touch()
    tracemalloc.start()
    found = sum(1 for _ in folders.files_below(str(tmp_path), folders.PathFilter(str(tmp_path))))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == 20_000
    assert peak < 1 << 20


def test_an_error_of_one_folder_ends_the_listing():
    def broken():
        yield 1
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(transforms.interleave([iter(range(10)), broken(), iter(range(10))], 2))


@pytest.mark.parametrize("at_once", [1, 2, 16])
def test_every_element_comes_once(at_once):
    sources = [range(5), range(5, 5), range(5, 20), range(20, 21)]
    assert sorted(transforms.interleave(map(iter, sources), at_once)) == list(range(21))
