"""Records are taken out of a data set: exact counts, even shards, and nothing lost by a kill."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import pytest

from beam_pipeline.commit import removal
from beam_pipeline.remove import main
from beam_pipeline.verify import command as verify
from imageshards import storage
from imageshards.index import read_index
from imageshards.manifest import load_manifest, shards_of
from imageshards.tfrecord import read_records
from tests.support.builds import build, class_folders
from tests.support.dataset_factory import Dataset
from tests.support.store_servers import store_server

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> pathlib.Path:
    """A data set of 5 and 2 shards, with report and index."""
    folder = tmp_path_factory.mktemp("built")
    photos = class_folders(folder / "photos", {"cat": 40, "dog": 40})
    flags = ["--image_size", "16", "--splits", "train=0.8,test=0.2"]
    shards = ["--num_shards", "train=5,test=2"]
    assert build("--input", photos, "--output", folder / "set", *flags, *shards) == 0
    return folder / "set"


@pytest.fixture
def made(built, tmp_path) -> pathlib.Path:
    shutil.copytree(built, tmp_path / "set")
    return tmp_path / "set"


def keys_in(folder: pathlib.Path | str, split: str, shard: int) -> list[str]:
    """The keys of a shard, in order."""
    entry = load_manifest(str(folder))["splits"][split]["shards"][shard]
    table = read_index(str(folder), load_manifest(str(folder)), split, ["key", "shard"])
    return [row["key"] for row in table.to_pylist() if row["shard"] == entry["file"]]


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def payloads_of(folder: str) -> list[bytes]:
    manifest = load_manifest(folder)
    return [
        record.payload
        for _, entry in shards_of(manifest)
        for record in read_records(
            storage.join(folder, entry["file"]), manifest.get("compression", "none")
        )
    ]


def remove(folder: pathlib.Path | str, keys: list[str], path: pathlib.Path) -> int:
    path.write_text("".join(f"{key}\n" for key in keys))
    return main([str(folder), "--keys", str(path)])


def test_only_the_shards_that_hold_the_keys_are_written_again(made, built, tmp_path, capsys):
    shards = load_manifest(str(made))["splits"]["train"]["shards"]
    fuller = [n for n, shard in enumerate(shards) if shard["num_records"] == 14][:2]
    keys = [keys_in(made, "train", fuller[0])[3], keys_in(made, "train", fuller[1])[-1]]
    assert remove(made, keys, tmp_path / "keys") == 0
    said = capsys.readouterr().out
    assert f"{made}: 2;" in said and "again: 2 of 7" in said
    before, after = files_of(built), files_of(made)
    changed = {name for name in before if name.endswith("rd") and before[name] != after[name]}
    assert changed == {f"train-0000{n}-of-00005.tfrecord" for n in fuller}
    manifest, old = load_manifest(str(made)), load_manifest(str(built))
    assert manifest["listed"] == old["listed"] - 2 and manifest["removed"] == 2
    assert manifest["splits"]["test"] == old["splits"]["test"]
    assert manifest["fingerprint"] != old["fingerprint"]
    assert len(payloads_of(str(built))) == len(payloads_of(str(made))) + 2
    assert set(payloads_of(str(made))) < set(payloads_of(str(built)))
    left = read_index(str(made), manifest)["key"].to_pylist()
    assert sorted([*left, *keys]) == sorted(read_index(str(built), old)["key"].to_pylist())
    assert verify.verify(str(made)).ok
    assert not (made / ".staging").exists()
    assert not any(key in text for key in keys for text in [after["report/index.html"].decode()])


def test_shards_stay_even_by_records_of_fuller_ones(made, tmp_path, capsys):
    assert remove(made, keys_in(made, "train", 0)[:6], tmp_path / "keys") == 0
    assert "even: 0" not in capsys.readouterr().out
    counts = [s["num_records"] for s in load_manifest(str(made))["splits"]["train"]["shards"]]
    assert max(counts) - min(counts) <= 1
    assert verify.verify(str(made)).ok


def test_the_folder_may_be_the_current_one_and_what_stays_is_told(
    made, tmp_path, monkeypatch, capsys
):
    (made / "duplicates").mkdir()
    key = keys_in(made, "test", 0)[0]
    monkeypatch.chdir(made)
    assert remove(".", [key], tmp_path / "keys") == 0
    assert f"{made}/duplicates still has the keys" in capsys.readouterr().out
    assert json.loads((made / "croissant.json").read_text())["name"] == "set"


def test_a_second_removal_adds_up(made, tmp_path):
    for count in (1, 2):
        assert remove(made, [keys_in(made, "test", 0)[0]], tmp_path / "keys") == 0
        assert load_manifest(str(made))["removed"] == count
    assert verify.verify(str(made)).ok


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"index": True}])
def test_data_sets_without_index_and_compressed_ones(tmp_path, options):
    made = Dataset(tmp_path / "set", **options)
    before = payloads_of(str(made.directory))
    assert remove(made.directory, ["cat/0.jpg", "dog/7.jpg"], tmp_path / "keys") == 0
    after = payloads_of(str(made.directory))
    assert len(after) == len(before) - 2 and set(after) < set(before)
    manifest = load_manifest(str(made.directory))
    assert manifest["splits"]["train"]["num_records"] == 16
    assert all(("index" in entry) == bool(made.index) for _, entry in shards_of(manifest))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["cat/0.jpg", "x", "w"], "2 of 3 keys that .* has not, 'w' among them.*image/filename"),
        ([f"{'dog' if n % 2 else 'cat'}/{n}.jpg" for n in range(16)], "would leave 2 records.*'tr"),
    ],
)
def test_what_cannot_be_removed_changes_nothing(tmp_path, capsys, keys, words):
    made = Dataset(tmp_path / "set")
    before = files_of(made.directory)
    assert remove(made.directory, keys, tmp_path / "keys") == 2
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(capsys.readouterr().err)
    assert files_of(made.directory) == before


def test_other_mistakes_are_sentences(tmp_path, capsys):
    assert remove(tmp_path / "no", ["a"], tmp_path / "keys") == 2
    assert "which does not exist" in capsys.readouterr().err and not (tmp_path / "no").exists()
    made = Dataset(tmp_path / "set")
    (made.directory / ".staging").mkdir()
    (made.directory / ".staging" / "job.json").write_text("{}")
    assert remove(made.directory, ["cat/0.jpg"], tmp_path / "keys") == 2
    assert "a build has not ended" in capsys.readouterr().err
    assert (made.directory / ".staging" / "job.json").exists()


class Killed(BaseException):
    pass


def killed_at(monkeypatch, name: str, calls: int) -> None:
    """The n-th call of a function of the removal is its last."""
    original, count = getattr(removal, name), 0

    def last(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == calls:
            raise Killed
        return original(*args)

    monkeypatch.setattr(removal, name, last)


STEPS = [
    ("_write", 2), ("_commit", 1), ("move_staged", 1), ("move_staged", 3), ("write_manifest", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "calls"), STEPS)
def test_the_same_command_finishes_what_was_killed(made, built, tmp_path, monkeypatch, name, calls):
    keys = keys_in(made, "train", 0)[:4] + keys_in(made, "test", 1)[:1]
    undisturbed = tmp_path / "undisturbed" / "set"  # croissant.json has the folder's name
    shutil.copytree(built, undisturbed)
    assert remove(undisturbed, keys, tmp_path / "keys") == 0
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed_at(patched, name, calls)
        remove(made, keys, tmp_path / "keys")
    assert remove(made, keys, tmp_path / "keys") == 0
    one, other = files_of(made), files_of(undisturbed)
    assert {n for n in one if not n.startswith("report")} == {
        n for n in other if not n.startswith("report")
    }
    assert all(one[name] == other[name] for name in one if not name.startswith("report"))


def test_what_a_stopped_removal_left_is_only_there_to_be_finished(
    made, tmp_path, monkeypatch, capfd
):
    keys = keys_in(made, "train", 0)[:4]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed_at(patched, "move_staged", 2)
        remove(made, keys, tmp_path / "keys")
    assert not (made / "dataset_info.json").exists() and not (made / "features.json").exists()
    capfd.readouterr()
    photos = class_folders(tmp_path / "photos", {"cat": 2, "dog": 2})
    small = ["--image_size", "16"]
    for command in (
        lambda: build("--input", photos, "--output", made, *small),
        lambda: build("--input", made, "--output", tmp_path / "other", *small),
        lambda: verify.main([str(made)]),
    ):
        assert command() == 2
        said = capfd.readouterr().err
        assert f"stopped: run imageshards remove {made} --keys KEYS again" in said
    assert remove(made, keys, tmp_path / "keys") == 0
    assert verify.verify(str(made)).ok


def test_another_command_finishes_it_first(made, tmp_path, monkeypatch, capsys):
    first, second = keys_in(made, "train", 0)[:2]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed_at(patched, "write_manifest", 1)
        remove(made, [first], tmp_path / "keys")
    assert remove(made, [second], tmp_path / "keys") == 0
    assert f"that was stopped in {made}: 1 record removed" in capsys.readouterr().err
    left = read_index(str(made), load_manifest(str(made)))["key"].to_pylist()
    assert not {first, second} & set(left) and load_manifest(str(made))["removed"] == 2


def test_a_removal_that_was_killed_is_forgotten_when_the_data_set_is_another(
    made, tmp_path, monkeypatch
):
    first, second = keys_in(made, "train", 0)[:2]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed_at(patched, "_commit", 1)
        remove(made, [first], tmp_path / "keys")
    manifest = json.loads((made / "manifest.json").read_text())
    (made / "manifest.json").write_text(json.dumps(manifest | {"fingerprint": "another"}))
    assert remove(made, [second], tmp_path / "keys") == 0
    left = read_index(str(made), load_manifest(str(made)))["key"].to_pylist()
    assert first in left and second not in left


@pytest.mark.slow
def test_a_data_set_in_a_store(made, tmp_path, monkeypatch):
    with store_server("s3") as running, running.environment():
        stored = f"{running.bucket()}/set"
        storage.copy_folder(str(made), stored)
        keys = keys_in(made, "train", 0)[:6]
        with monkeypatch.context() as patched, pytest.raises(Killed):
            killed_at(patched, "move_staged", 2)
            remove(stored, keys, tmp_path / "keys")
        assert remove(stored, keys, tmp_path / "keys") == 0
        assert remove(made, keys, tmp_path / "keys") == 0
        assert load_manifest(stored) == load_manifest(str(made))
        assert payloads_of(stored) == payloads_of(str(made))
        assert read_index(stored, load_manifest(stored)) == read_index(
            str(made), load_manifest(str(made))
        )
