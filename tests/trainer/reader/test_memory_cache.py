"""The cache in memory: the same records in the same order, refused where they do not fit."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import pytest

from imageshards.errors import UserError
from tests.support.reader_sets import READ_OPTIONS, choose, make_set
from trainer.dataset.spec import DataSet, ReadOptions, Subset

tf = pytest.importorskip("tensorflow")

from trainer.reader import memory_cache, order  # noqa: E402

SHARDS = [[(7 * k + i) % 3 for i in range((k * 5) % 4)] for k in range(19)]
IN_MEMORY = ReadOptions(threads=2, cache="memory")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return make_set(tmp_path_factory.mktemp("cached") / "set", SHARDS, empty=(2,))


def _on_disk(folder: pathlib.Path) -> ReadOptions:
    return ReadOptions(threads=2, cache="disk", cache_folder=str(folder))


def _stream(subset: Subset, read_options: ReadOptions, start: int = 0) -> list[tuple[bytes, int]]:
    stream = order.training_records(subset, read_options, 4, start)
    taken = stream.take(2 * subset.num_records)
    return [(payload, int(record)) for payload, record in taken.as_numpy_iterator()]


@pytest.mark.parametrize(
    "choice", [{}, {"classes": ("cat", "ant"), "balance": "sampling"}], ids=str
)
def test_the_order_is_the_same_from_files_memory_and_disk(
    dataset: DataSet, tmp_path: pathlib.Path, choice: dict[str, Any]
) -> None:
    subset = choose(dataset, **choice)
    expected = _stream(subset, READ_OPTIONS, start=5)
    assert _stream(subset, IN_MEMORY, start=5) == expected
    if not choice:  # a copy of a shard is filtered like any other shard
        assert _stream(subset, _on_disk(tmp_path), start=5) == expected
    once = list(order.ordered_records(subset, READ_OPTIONS).as_numpy_iterator())
    assert list(order.ordered_records(subset, IN_MEMORY).as_numpy_iterator()) == once


def test_shards_are_read_into_memory_once(tmp_path: pathlib.Path) -> None:
    subset = choose(make_set(tmp_path, [[0, 1], [2]]))
    stream = order.training_records(subset, IN_MEMORY, 0)
    for shard in subset.split.shards:
        os.remove(shard.path)
    for _ in range(2):
        assert len(list(stream.take(9))) == 9


def test_the_same_subset_is_loaded_once_in_a_process(tmp_path: pathlib.Path) -> None:
    """Validation comes after every epoch, and the verdict on speed reads once more."""
    subset = choose(make_set(tmp_path, [[0, 1], [2]]))
    expected = _stream(subset, IN_MEMORY)
    kept = [pathlib.Path(shard.path).read_bytes() for shard in subset.split.shards]
    for shard in subset.split.shards:
        os.remove(shard.path)
    assert _stream(dataclasses.replace(subset), IN_MEMORY) == expected
    # Another subset, and one with other shards, are read anew.
    with pytest.raises(tf.errors.NotFoundError):
        _stream(choose(subset.dataset, classes=("bee",)), IN_MEMORY)
    for shard, content in zip(subset.split.shards, kept, strict=True):
        pathlib.Path(shard.path).write_bytes(content)
    assert _stream(subset, IN_MEMORY) == expected


def test_filtered_records_take_no_memory(tmp_path: pathlib.Path) -> None:
    subset = choose(make_set(tmp_path, [[0, 1, 0]]), classes=("bee",))
    source = memory_cache.memory_source(subset, IN_MEMORY)
    assert source.fetch is not None
    payloads = source.fetch(tf.constant([0, 1, 2, -1], tf.int64)).numpy()
    assert [bool(payload) for payload in payloads] == [False, True, False, False]


def test_a_split_larger_than_free_memory_is_refused(dataset: DataSet) -> None:
    subset = choose(dataset)
    memory_cache.check_memory(subset, free_bytes=2 * subset.split.num_bytes)
    with pytest.raises(UserError, match="--cache received 'memory', .* use --cache disk"):
        memory_cache.check_memory(subset, free_bytes=subset.split.num_bytes)


def test_free_memory_is_that_of_the_container_where_it_is_less(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_cache, "_CGROUP", str(tmp_path / "none"))
    machine = memory_cache.free_memory_bytes()
    assert machine is not None and machine > 1e6
    monkeypatch.setattr(memory_cache, "_CGROUP", str(tmp_path))
    (tmp_path / "memory.current").write_text("300\n")
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory_cache.free_memory_bytes() == 700
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_cache.free_memory_bytes() == pytest.approx(machine, rel=0.5)
