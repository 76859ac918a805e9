"""Listing holds a few names, however many there are."""

import tracemalloc
from unittest import mock

import pyarrow as pa
import pytest
from pyarrow import parquet

from beam_pipeline.inputs import folders, transforms
from beam_pipeline.inputs.labels import Layout
from beam_pipeline.inputs.listing import ListingTask, schema_of
from beam_pipeline.inputs.transforms import BATCH_SIZE
from beam_pipeline.options import InputOptions
from beam_pipeline.planning.refs import RefBatch
from imageshards import storage
from imageshards.storage.base import Stat

FOLDERS, NAMES = 40, 12_000


@pytest.mark.long
def test_long_folders_of_a_store_are_listed_side_by_side_and_never_whole(monkeypatch):
    listed = []

    def files_below(folder):
        for number in range(NAMES):
            listed.append(number)
            yield Stat(f"{folder}/{number:06d}.jpg", 1, 0, "")

    store = mock.Mock(files_below=files_below, stat=lambda path: None)
    store.open_read.side_effect = FileNotFoundError
    monkeypatch.setitem(storage._backends, "long", store)
    tasks = [
        ListingTask(
            f"long://bucket/photos/{n:02d}",
            layout=Layout(classes={f"{n:02d}/": (None, f"{n:02d}")}),
        )
        for n in range(FOLDERS)
    ]
    images, most_ahead, labels_seen = 0, 0, []
    for found in transforms.list_tasks(tasks, ((InputOptions("long://bucket/photos"), None),)):
        images += len(found)
        labels_seen.append(found.refs[0].label)
        most_ahead = max(most_ahead, len(listed) - images)
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


def test_few_threads_hold_pages_of_pictures_however_many_cores_there_are(tmp_path, monkeypatch):
    table = pa.table({"image": pa.array([b"x"], pa.binary()), "label": ["a"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    source = InputOptions(str(tmp_path / "a.parquet"))
    spy = mock.Mock(side_effect=transforms.interleave)
    monkeypatch.setattr(transforms, "interleave", spy)
    monkeypatch.setattr(transforms, "available_cores", lambda: 64)
    tasks = [ListingTask(source.input, kind="table")] * 64
    found = transforms.list_tasks(tasks, ((source, schema_of(source)),), str(tmp_path / "spool"))
    assert sum(len(each) for each in found if isinstance(each, RefBatch)) == 64
    assert spy.call_args.args[1] <= 8


def test_an_error_of_one_folder_ends_the_listing():
    with pytest.raises(ZeroDivisionError):
        list(transforms.interleave([iter(range(10)), (1 // n for n in (1, 0)), iter(range(10))], 2))


@pytest.mark.parametrize("at_once", [1, 2, 16])
def test_every_element_comes_once(at_once):
    sources = [range(5), range(5, 5), range(5, 20), range(20, 21)]
    assert sorted(transforms.interleave(map(iter, sources), at_once)) == list(range(21))
