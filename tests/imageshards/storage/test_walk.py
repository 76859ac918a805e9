import os

import pytest

from imageshards import storage
from imageshards.storage import local


def found(folder, **how):
    below = len(str(folder)) + 1
    return [(entry.path[below:], entry.kind) for entry in storage.walk(str(folder), **how)]


def test_a_walk_follows_links_except_to_folders_above_and_names_what_is_no_file(tmp_path):
    inside = tmp_path / "in"
    for name in ("a/x", "a-b", "b/y"):
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "z").touch()
    for name, target in (("a/top", ".."), ("b/out", "../../out"), ("b/up", "/"), ("dangling", "?")):
        (inside / name).symlink_to(target)
    (tmp_path / "out" / "back").symlink_to("../in")
    (inside / "self").symlink_to("self")
    os.mkfifo(inside / "pipe")
    whole = [
        ("a-b", "file"), ("a/top", "loop"), ("a/x", "file"), ("b/out/back", "loop"),
        ("b/out/z", "file"), ("b/up", "loop"), ("b/y", "file"), ("dangling", "missing"),
        ("pipe", "special"), ("self", "missing"),
    ]  # fmt: skip
    assert found(inside, in_order=True) == whole and sorted(found(inside)) == sorted(whole)
    some = found(inside, enters=lambda path: not path.endswith("/b"), in_order=True)
    assert some == [*whole[:3], ("b", "folder"), *whole[-3:]]
    files = ["a-b", "a/x", "b/out/z", "b/y", "pipe"]
    for enters, skipped in ((lambda path: True, ""), (None, "b/out/z")):
        listed = [file.path for file in storage.files_below(str(inside), enters)]
        assert listed == [f"{inside}/{name}" for name in files if name != skipped]
    ((path, kind, _, error),) = storage.walk(f"{tmp_path}/absent")
    assert kind == "unreadable" and isinstance(error, FileNotFoundError)
    assert list(storage.files_below(f"{tmp_path}/absent")) == []


def test_links_that_multiply_end_a_walk(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "MAX_FOLLOWED_LINKS", 1000)
    for level in range(40):  # 2 ** 40 paths
        (tmp_path / f"{level}").mkdir()
        for name in "ab":
            (tmp_path / f"{level}" / name).symlink_to(f"../{level + 1}")
    with pytest.raises(OSError, match="too many links to folders"):
        list(storage.files_below(f"{tmp_path}/0", lambda path: True))


def test_a_walk_is_not_limited_by_the_depth_of_python_s_stack(tmp_path):
    folders = [tmp_path]
    for _ in range(1200):
        folders.append(folders[-1] / "d")
        folders[-1].mkdir()
    file = folders[-1] / "x"
    file.touch()
    assert found(tmp_path) == [(str(file.relative_to(tmp_path)), "file")]
    file.unlink()
    for folder in reversed(folders[1:]):  # pytest's own removal is recursive
        folder.rmdir()
