"""Copies of shards on a local disk: made once, checked, and refused where there is no room."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import pytest

from imageshards import storage
from imageshards.errors import UserError
from imageshards.tfrecord import read_records, write_records
from tests.support.reader_sets import choose, make_set, record_of
from trainer.cluster.connection import noted_work
from trainer.dataset.spec import ReadOptions
from trainer.reader.shard_cache import cache_on_disk


def _on_disk(folder: pathlib.Path) -> ReadOptions:
    return ReadOptions(threads=2, cache="disk", cache_folder=str(folder))


def test_shards_are_copied_once_and_used_again(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    subset = choose(make_set(tmp_path / "set", [[0, 1], [2]]))
    read_options = _on_disk(tmp_path / "cache")
    before_work = noted_work()
    first = cache_on_disk(subset, read_options)
    assert noted_work() == before_work + 2  # told to the other hosts
    assert "copying 2 shards" in capfd.readouterr().err
    before = {shard.path: os.stat(shard.path).st_mtime_ns for shard in first.split.shards}
    assert all(path.startswith(str(tmp_path / "cache")) for path in before)
    for shard in subset.split.shards:
        os.remove(shard.path)
    assert cache_on_disk(subset, read_options) == first
    assert {path: os.stat(path).st_mtime_ns for path in before} == before
    assert not capfd.readouterr().err
    assert sum(len(list(read_records(shard.path))) for shard in first.split.shards) == 3


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(
    tmp_path: pathlib.Path,
) -> None:
    subset = choose(make_set(tmp_path / "set", [[0, 1]]))
    read_options = _on_disk(tmp_path / "cache")
    path = pathlib.Path(cache_on_disk(subset, read_options).split.shards[0].path)
    path.unlink()
    left, mine = (path.with_name(f"{path.name}.{digit * 32}.part") for digit in "ab")
    noted = path.with_name("notes.part")
    for file in (left, noted):
        file.touch()

    def make() -> str:
        mine.touch()
        return str(mine)

    _, lock = storage.hold_scratch(make)
    cache_on_disk(subset, read_options)
    assert {*path.parent.iterdir()} == {path, mine, noted}
    os.close(lock)


def test_a_copy_of_another_size_or_build_is_made_again(tmp_path: pathlib.Path) -> None:
    subset = choose(make_set(tmp_path / "set", [[0, 1]]))
    read_options = _on_disk(tmp_path / "cache")
    path = pathlib.Path(cache_on_disk(subset, read_options).split.shards[0].path)
    whole = path.read_bytes()
    rebuilt = dataclasses.replace(subset.dataset, fingerprint="0" * 64)
    again = cache_on_disk(dataclasses.replace(subset, dataset=rebuilt), read_options)
    assert again.split.shards[0].path != str(path)
    path.write_bytes(whole[:-9])
    cache_on_disk(subset, read_options)
    assert path.read_bytes() == whole
    assert os.listdir(path.parent) == [path.name]


def test_shards_of_one_name_in_two_folders_have_copies_of_their_own(tmp_path: pathlib.Path) -> None:
    one = choose(make_set(tmp_path / "a", [[0]]))
    other = choose(make_set(tmp_path / "b", [[1]]))
    both = dataclasses.replace(one.split, shards=(one.split.shards[0], other.split.shards[0]))
    near = cache_on_disk(dataclasses.replace(one, split=both), _on_disk(tmp_path / "cache"))
    contents = [pathlib.Path(shard.path).read_bytes() for shard in near.split.shards]
    assert contents == [pathlib.Path(s.path).read_bytes() for s in both.shards]


def test_a_shard_that_is_missing_or_of_another_size_is_left_to_the_reader(
    tmp_path: pathlib.Path,
) -> None:
    subset = choose(make_set(tmp_path / "set", [[0, 1], [2], [0]]))
    gone, grown, whole = subset.split.shards
    os.remove(gone.path)
    write_records(grown.path, [record_of(0, 0), record_of(1, 1)])
    near = cache_on_disk(subset, _on_disk(tmp_path / "cache"))
    assert near.split.shards[:2] == (gone, grown)
    assert near.split.shards[2].path != whole.path
    assert len(os.listdir(os.path.dirname(near.split.shards[2].path))) == 1


def test_a_folder_that_cannot_be_filled_is_refused_in_a_sentence(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subset = choose(make_set(tmp_path / "set", [[0]]))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--cache received 'disk', but .* cannot be filled"):
        cache_on_disk(subset, _on_disk(tmp_path / "file"))
    with pytest.raises(UserError, match="no folder"):
        cache_on_disk(subset, ReadOptions(threads=1, cache="disk"))
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match=r"are needed, 0.00 GB are free.* --cache none"):
        cache_on_disk(subset, _on_disk(tmp_path / "cache"))
