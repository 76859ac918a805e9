"""Finding files: odd names, links, and what is no file."""

import os
import unicodedata
from unittest import mock

import pytest

from beam_pipeline.inputs import folders
from beam_pipeline.inputs.folders import PathFilter, Skipped
from imageshards.storage import local
from tests.support.listings import listed, put
from tests.support.stores import store_uri

ALL = {"a/x.jpg", "a/x_s.jpg", "a/old/x.jpg", "b/old/x.jpg", "b/x"}


def files_below(root, *globs):
    return folders.files_below(str(root), PathFilter(str(root), globs))


def files_matching(root, pattern):
    return folders.files_matching(f"{root}/{pattern}", PathFilter(str(root)))


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
    assert below(tmp_path, files_below(tmp_path)) == {
        "a.jpg": 5, "to_file.jpg": 5, "folder.jpg/x.jpg": 16, ".hidden": "hidden",
        "fifo.jpg": "special_file", "to_fifo.jpg": "special_file", "broken.jpg": -1, "self.jpg": -1,
    }  # fmt: skip
    a_jpg = (f"{tmp_path}/a.jpg", 5, os.stat(tmp_path / "a.jpg").st_mtime_ns)
    assert a_jpg in files_below(tmp_path)


@pytest.mark.parametrize("target", [".", "..", "../..", "inner"])
def test_links_to_folders_are_followed_but_not_in_circles(tmp_path, target):
    root = tmp_path / "in"
    put(root, "a/inner/x.jpg", "b/y.jpg")
    (root / "a" / "link").symlink_to(target)
    link = {"a/link/x.jpg": 13} if target == "inner" else {"a/link": "link_to_a_folder_above"}
    assert below(root, files_below(root / "a")) == {"a/inner/x.jpg": 13} | link


def test_a_file_deleted_while_it_is_listed_is_still_listed(tmp_path, monkeypatch):
    put(tmp_path, "a.jpg", "b.jpg")
    found = files_below(tmp_path)
    first, _, _ = next(found)
    (tmp_path / {"a.jpg": "b.jpg", "b.jpg": "a.jpg"}[os.path.basename(first)]).unlink()
    assert [size for _, size, _ in found] == [-1]


def test_hidden_and_system_files_are_neither_classes_nor_pictures(tmp_path):
    system = "lost+found @eaDir #recycle $RECYCLE.BIN $Recycle.Bin __MACOSX @Recycle".split()
    names = [*system, "System Volume Information", ".hidden", ".Trashes"]
    put(tmp_path, *(f"{n}/x.jpg" for n in names), *(f"a/{n}/x.jpg" for n in names), "stray.jpg")
    put(tmp_path, "a/x.jpg", "a/._x.jpg", "a/Thumbs.db", "a/lost+found too/x.jpg")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "linked").symlink_to("a/lost+found too")
    passed_over = {"hidden": 5, "system_file": 17}
    refs, skipped = listed(tmp_path)
    found = {"a/x.jpg": "a", "a/lost+found too/x.jpg": "a", "linked/x.jpg": "linked"}
    assert {key: ref.label for key, ref in refs.items()} == found
    assert skipped == passed_over | {"outside_class_folders": 1, "not_an_image_name": 1}
    refs, skipped = listed(f"{tmp_path}/**", label="none")
    assert refs.keys() == {*found, "stray.jpg"}
    assert skipped == passed_over | {"not_an_image_name": 1}


def test_in_a_store_each_file_is_passed_over_by_the_same_names(tmp_path):
    put(tmp_path, "b/x.jpg", "b/@eaDir/x.jpg", "b/.hidden/x.jpg", "#recycle/b/x.jpg")
    uri = store_uri(tmp_path)
    expected = {
        "b/x.jpg": 7, "b/@eaDir/x.jpg": "system_file", "b/.hidden/x.jpg": "hidden",
        "#recycle/b/x.jpg": "system_file",
    }  # fmt: skip
    assert below(tmp_path, files_below(uri)) == expected
    assert below(tmp_path, files_matching(uri, "**.jpg")) == expected
    assert below(tmp_path, files_matching(uri, "b/*.jpg")) == {"b/x.jpg": 7}


@pytest.mark.parametrize("where", [str, store_uri])
@pytest.mark.parametrize(
    ("globs", "left"),
    [
        (["*_s.jpg"], ALL - {"a/x_s.jpg"}),
        (["old/"], ALL - {"a/old/x.jpg", "b/old/x.jpg"}),
        (["/old"], ALL),
        (["a/old"], ALL - {"a/old/x.jpg"}),
        (["*/old/*"], ALL - {"a/old/x.jpg", "b/old/x.jpg"}),
        (["**/x"], ALL - {"b/x"}),
        (["a", "x"], {"b/old/x.jpg"}),
        (["a/*"], {"b/old/x.jpg", "b/x"}),
        (["[ab]/?.jpg"], ALL - {"a/x.jpg"}),
        (["X.JPG"], ALL),
    ],
)
def test_globs_leave_out_files_and_what_is_in_folders(tmp_path, where, globs, left):
    put(tmp_path, *ALL)
    found = below(tmp_path, files_below(where(tmp_path), *globs))
    assert {name for name, size in found.items() if isinstance(size, int)} == left
    assert left == ALL or set(found.values()) >= {"excluded_by_glob"}


def test_a_glob_matches_a_name_in_either_form_of_unicode(tmp_path):
    nfc, nfd = (unicodedata.normalize(form, "Čmelák") for form in ("NFC", "NFD"))
    put(tmp_path, f"{nfc}/x.jpg", f"{nfd}/x.jpg")
    for glob in (nfc, nfd):
        found = below(tmp_path, files_below(tmp_path, glob))
        assert found == {nfc: "excluded_by_glob", nfd: "excluded_by_glob"}


JPGS = {"a.jpg", "b.jpg", "c[1].jpg", "dir.jpg", "broken.jpg"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.jpg", JPGS),
        ("?.jpg", {"a.jpg", "b.jpg"}),
        ("[ab].jpg", {"a.jpg", "b.jpg"}),
        ("[!a].jpg", {"b.jpg"}),
        ("*/*.jpg", {"sub/d.jpg", "link/d.jpg", "dir.jpg/e.jpg", ".h"}),
        ("sub/*", {"sub/d.jpg"}),
        ("**.jpg", {*JPGS, "sub/d.jpg", "link/d.jpg", "dir.jpg/e.jpg", ".h"} - {"dir.jpg"}),
        ("s*/d.jpg", {"sub/d.jpg"}),
        ("*.gif", set()),
    ],
)
def test_globs_are_read_as_beam_reads_them(tmp_path, pattern, names):
    put(tmp_path, "a.jpg", "b.jpg", "c[1].jpg", "sub/d.jpg", "dir.jpg/e.jpg", "f.txt", ".h/i.jpg")
    (tmp_path / "link").symlink_to("sub")
    (tmp_path / "broken.jpg").symlink_to("nowhere")  # rejected later, so that it is not lost
    found = below(tmp_path, files_matching(tmp_path, pattern))
    assert set(found) == names
    assert found.get("dir.jpg", "directory") == "directory"
    assert found.get("broken.jpg", -1) == -1


def test_a_glob_does_not_enter_folders_that_it_cannot_match(tmp_path, monkeypatch):
    put(tmp_path, "a.jpg", "deep/b.jpg")
    scan = mock.Mock(side_effect=local._scan)
    monkeypatch.setattr(local, "_scan", scan)
    list(files_matching(tmp_path, "*.jpg"))
    scan.assert_called_once_with(str(tmp_path), False)
