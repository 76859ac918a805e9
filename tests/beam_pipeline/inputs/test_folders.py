"""Finding files: odd names, links, and what is no file."""

from __future__ import annotations

import os
import pathlib

import pytest

from beam_pipeline.inputs import folders, layout
from beam_pipeline.inputs.folders import Skipped
from imageshards.errors import UserError


def put(root: pathlib.Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode("utf-8", "surrogateescape"))


def below(root, found):
    """Path below the root → its size, or why it is passed over."""
    prefix = f"{root}/"
    result = {}
    for path, size, _ in found:
        path = path.removeprefix("teststore://")
        assert path.startswith(prefix) and path not in result
        result[path.removeprefix(prefix)] = size.reason if isinstance(size, Skipped) else size
    return result


def test_folders_pipes_and_broken_links_are_not_files(tmp_path):
    put(tmp_path, "a.jpg", ".hidden/x.jpg", "folder.jpg/x.jpg")
    os.mkfifo(tmp_path / "fifo.jpg")
    (tmp_path / "broken.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "self.jpg").symlink_to("self.jpg")
    (tmp_path / "to_fifo.jpg").symlink_to("fifo.jpg")
    (tmp_path / "to_file.jpg").symlink_to("a.jpg")
    assert below(tmp_path, folders.files_below(str(tmp_path))) == {
        "a.jpg": 5, "to_file.jpg": 5, "folder.jpg/x.jpg": 16,
        ".hidden": "hidden", "fifo.jpg": "special_file", "to_fifo.jpg": "special_file",
        "broken.jpg": -1, "self.jpg": -1,
    }  # fmt: skip
    times = {path: mtime_ns for path, _, mtime_ns in folders.files_below(str(tmp_path))}
    assert times[f"{tmp_path}/a.jpg"] == os.stat(tmp_path / "a.jpg").st_mtime_ns


@pytest.mark.parametrize("target", [".", "..", "../..", "inner"])
def test_links_to_folders_are_followed_but_not_in_circles(tmp_path, target):
    root = tmp_path / "in"
    put(root, "a/inner/x.jpg", "b/y.jpg")
    (root / "a" / "link").symlink_to(target)
    found = below(root, folders.files_below(str(root / "a")))
    if target == "inner":
        assert found == {"a/inner/x.jpg": 13, "a/link/x.jpg": 13}
    else:
        assert found == {"a/inner/x.jpg": 13, "a/link": "link_to_a_folder_above"}


def test_a_file_deleted_while_it_is_listed_is_still_listed(tmp_path, monkeypatch):
    put(tmp_path, "a.jpg", "b.jpg")
    found = folders.files_below(str(tmp_path))
    first, _, _ = next(found)
    (tmp_path / {"a.jpg": "b.jpg", "b.jpg": "a.jpg"}[os.path.basename(first)]).unlink()
    assert [size for _, size, _ in found] == [-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_without_rights_is_one_sentence(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    os.seteuid(65534)
    try:
        with pytest.raises(UserError, match="closed.*Permission denied.*permissions"):
            list(folders.files_below(str(tmp_path / "closed")))
    finally:
        os.seteuid(0)


def test_hidden_folders_and_files_are_no_class_folders(tmp_path):
    put(tmp_path, "b/x", "a/x", ".hidden/x", "__MACOSX/x", "file")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "linked").symlink_to("a")
    assert [name for name, _ in folders.subfolders(str(tmp_path))] == ["a", "b", "linked"]
    skipped = [found.reason for found in folders.files_outside_folders(str(tmp_path))]
    assert sorted(skipped) == [
        "hidden", "outside_class_folders", "outside_class_folders", "system_file",
    ]  # fmt: skip


def test_names_of_file_systems_and_nas_devices_are_passed_over_at_every_depth(tmp_path):
    put(tmp_path, "a/x.jpg", "a/Thumbs.db", "a/@eaDir/x.jpg", "lost+found/x.jpg", "#recycle/y.jpg")
    found = below(tmp_path, folders.files_below(str(tmp_path)))
    assert found == {
        "a/x.jpg": 7, "a/Thumbs.db": 11,
        "a/@eaDir": "system_file", "lost+found": "system_file", "#recycle": "system_file",
    }  # fmt: skip
    assert [name for name, _ in folders.subfolders(str(tmp_path))] == ["a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_without_permissions_is_passed_over_below_the_input_but_not_at_its_top(tmp_path):
    put(tmp_path, "open/x.jpg", "shut/y.jpg")
    for path in (tmp_path, *tmp_path.parents):  # another user has to get here
        if path.stat().st_uid == os.getuid() and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o055)
    (tmp_path / "shut").chmod(0)
    os.seteuid(65534)
    try:
        found = list(folders.files_below(str(tmp_path)))
        with pytest.raises(UserError, match="cannot be listed"):
            list(folders.files_below(str(tmp_path / "shut")))
    finally:
        os.seteuid(0)
    assert [path for path, size, _ in found if size == 10] == [str(tmp_path / "open" / "x.jpg")]
    skipped = [str(size) for _, size, _ in found if isinstance(size, Skipped)]
    assert skipped == ["unreadable_folder", f"unreadable_folder: {tmp_path / 'shut'}"]


JPGS = {"a.jpg", "b.jpg", "c[1].jpg", "dir.jpg", "broken.jpg"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.jpg", JPGS),
        ("?.jpg", {"a.jpg", "b.jpg"}),
        ("[ab].jpg", {"a.jpg", "b.jpg"}),
        ("[!a].jpg", {"b.jpg"}),
        ("*/*.jpg", {"sub/d.jpg", "link/d.jpg", "dir.jpg/e.jpg"}),
        ("sub/*", {"sub/d.jpg"}),
        ("**.jpg", {*JPGS, "sub/d.jpg", "link/d.jpg", "dir.jpg/e.jpg"} - {"dir.jpg"}),
        ("s*/d.jpg", {"sub/d.jpg"}),
        ("*.gif", set()),
    ],
)
def test_globs_are_read_as_beam_reads_them(tmp_path, pattern, names):
    put(tmp_path, "a.jpg", "b.jpg", "c[1].jpg", "sub/d.jpg", "dir.jpg/e.jpg", "f.txt", ".h/i.jpg")
    (tmp_path / "link").symlink_to("sub")
    (tmp_path / "broken.jpg").symlink_to("nowhere")  # rejected later, so that it is not lost
    found = below(tmp_path, folders.files_matching(f"{tmp_path}/{pattern}"))
    assert set(found) == names
    assert found.get("dir.jpg", "directory") == "directory"
    assert found.get("broken.jpg", -1) == -1


def test_a_glob_does_not_enter_folders_that_it_cannot_match(tmp_path, monkeypatch):
    put(tmp_path, "a.jpg", "deep/b.jpg")
    entered = []
    scan = folders._scan

    def enter(path):
        entered.append(path)
        return scan(path)

    monkeypatch.setattr(folders, "_scan", enter)
    list(folders.files_matching(f"{tmp_path}/*.jpg"))
    assert entered == [str(tmp_path)]


@pytest.mark.parametrize(
    ("pattern", "root"),
    [("/a/b/*.jpg", "/a/b"), ("/a/b[12]/c/*", "/a"), ("/*.jpg", "/"), ("*.jpg", "."),
     ("gs://b/c/**", "gs://b/c")],
)  # fmt: skip
def test_the_root_of_a_glob_is_above_all_it_can_match(pattern, root):
    assert layout.glob_root(pattern) == root
