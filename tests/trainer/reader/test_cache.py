"""Records kept near: the same records in the same order, and no room that is not there."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import pytest

from imageshards.errors import UserError
from tests.support.reader_sets import READ_OPTIONS, choose, make_set, record_of, write_shard
from trainer.dataset.spec import DataSet, ReadOptions, Subset

tf = pytest.importorskip("tensorflow")

from trainer.reader import cache, order  # noqa: E402

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
    "choice", [{}, {"classes": ("cat", "ant")}, {"balance": "sampling"}], ids=str
)
def test_the_order_is_the_same_from_files_memory_and_disk(
    dataset: DataSet, tmp_path: pathlib.Path, choice: dict[str, Any]
) -> None:
    subset = choose(dataset, **choice)
    expected = _stream(subset, READ_OPTIONS, start=5)
    assert _stream(subset, IN_MEMORY, start=5) == expected
    assert _stream(subset, _on_disk(tmp_path), start=5) == expected
    once = list(order.ordered_records(subset, READ_OPTIONS).as_numpy_iterator())
    assert list(order.ordered_records(subset, IN_MEMORY).as_numpy_iterator()) == once


def test_memory_is_filled_once(tmp_path: pathlib.Path) -> None:
    subset = choose(make_set(tmp_path, [[0, 1], [2]]))
    stream = order.training_records(subset, IN_MEMORY, 0)
    for shard in subset.split.shards:
        os.remove(shard.path)
    for _ in range(2):
        assert len(list(stream.take(9))) == 9


def test_memory_holds_only_what_is_read(tmp_path: pathlib.Path) -> None:
    subset = choose(make_set(tmp_path, [[0, 1, 0]]), classes=("bee",))
    source = cache.memory_source(subset, IN_MEMORY)
    assert source.fetch is not None
    payloads = source.fetch(tf.constant([0, 1, 2, -1], tf.int64)).numpy()
    assert [bool(payload) for payload in payloads] == [False, True, False, False]


def test_a_split_larger_than_free_memory_is_refused(dataset: DataSet) -> None:
    subset = choose(dataset)
    cache.check_memory(subset, free_bytes=2 * subset.split.num_bytes)
    with pytest.raises(UserError, match="--cache received 'memory', .* use --cache disk"):
        cache.check_memory(subset, free_bytes=subset.split.num_bytes)


def test_free_memory_is_that_of_the_container_where_it_is_less(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_CGROUP", str(tmp_path / "none"))
    machine = cache.free_memory_bytes()
    assert machine is not None and machine > 1e6
    monkeypatch.setattr(cache, "_CGROUP", str(tmp_path))
    (tmp_path / "memory.current").write_text("300\n")
    (tmp_path / "memory.max").write_text("1000\n")
    assert cache.free_memory_bytes() == 700
    (tmp_path / "memory.max").write_text("max\n")
    assert cache.free_memory_bytes() == pytest.approx(machine, rel=0.5)


def test_shards_are_copied_once_and_used_again(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    subset = choose(make_set(tmp_path / "set", [[0, 1], [2]]))
    read_options = _on_disk(tmp_path / "cache")
    first = cache.on_disk(subset, read_options)
    assert "copying 2 shards" in capfd.readouterr().err
    before = {shard.path: os.stat(shard.path).st_mtime_ns for shard in first.split.shards}
    assert all(path.startswith(str(tmp_path / "cache")) for path in before)
    for shard in subset.split.shards:
        os.remove(shard.path)
    assert cache.on_disk(subset, read_options) == first
    assert {path: os.stat(path).st_mtime_ns for path in before} == before
    assert not capfd.readouterr().err
    assert len(_stream(subset, read_options)) == 6


def test_a_copy_of_another_size_is_made_again(tmp_path: pathlib.Path) -> None:
    subset = choose(make_set(tmp_path / "set", [[0, 1]]))
    read_options = _on_disk(tmp_path / "cache")
    path = pathlib.Path(cache.on_disk(subset, read_options).split.shards[0].path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    cache.on_disk(subset, read_options)
    assert path.read_bytes() == whole
    assert os.listdir(path.parent) == [path.name]


def test_a_rebuilt_data_set_is_copied_anew(tmp_path: pathlib.Path) -> None:
    subset = choose(make_set(tmp_path / "set", [[0]]))
    read_options = _on_disk(tmp_path / "cache")
    old = cache.on_disk(subset, read_options)
    rebuilt = dataclasses.replace(subset.dataset, fingerprint="0" * 64)
    new = cache.on_disk(dataclasses.replace(subset, dataset=rebuilt), read_options)
    assert new.split.shards[0].path != old.split.shards[0].path


def test_shards_of_one_name_in_two_folders_do_not_meet(tmp_path: pathlib.Path) -> None:
    one = choose(make_set(tmp_path / "a", [[0]]))
    other = choose(make_set(tmp_path / "b", [[1]]))
    both = dataclasses.replace(one.split, shards=(one.split.shards[0], other.split.shards[0]))
    near = cache.on_disk(dataclasses.replace(one, split=both), _on_disk(tmp_path / "cache"))
    contents = [pathlib.Path(shard.path).read_bytes() for shard in near.split.shards]
    assert contents == [pathlib.Path(s.path).read_bytes() for s in both.shards]


def test_a_shard_that_is_missing_or_of_another_size_is_left_to_the_reader(
    tmp_path: pathlib.Path,
) -> None:
    subset = choose(make_set(tmp_path / "set", [[0, 1], [2], [0]]))
    gone, grown, whole = subset.split.shards
    os.remove(gone.path)
    write_shard(pathlib.Path(grown.path), [record_of(0, 0), record_of(1, 1)])
    near = cache.on_disk(subset, _on_disk(tmp_path / "cache"))
    assert near.split.shards[:2] == (gone, grown)
    assert near.split.shards[2].path != whole.path
    assert len(os.listdir(os.path.dirname(near.split.shards[2].path))) == 1


def test_a_folder_that_cannot_be_filled_is_refused_in_a_sentence(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subset = choose(make_set(tmp_path / "set", [[0]]))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--cache received 'disk', but .* cannot be filled"):
        cache.on_disk(subset, _on_disk(tmp_path / "file"))
    with pytest.raises(UserError, match="no folder"):
        cache.on_disk(subset, ReadOptions(threads=1, cache="disk"))
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match=r"are needed, 0.00 GB are free.* --cache none"):
        cache.on_disk(subset, _on_disk(tmp_path / "cache"))
