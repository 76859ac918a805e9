import os
import pathlib
from unittest import mock

import pytest

from imageshards.errors import UserError
from imageshards.storage import absolute_place, place
from tests.support.errors import refused
from trainer.dataset.open import pixels_home


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("~", "/home/somebody"),
        (pathlib.Path("~/b"), "/home/somebody/b"),
        ("a/../b/", "a/../b/"),
        ("./~/b", "./~/b"),
        ("file:///data/a%20b", "/data/a b"),
        ("FILE:/data/b", "/data/b"),
        ("file://localhost/data", "/data"),
        ("gs://bucket/~/a%20b/", "gs://bucket/~/a%20b/"),
        (pathlib.Path("s3://bucket/a"), "s3://bucket/a"),
    ],
)
def test_home_folders_and_uris_of_files_become_paths(monkeypatch, given, found):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert place("--data", given) == found


def test_absolute_places_and_unknown_home_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_place("--input", "a/../b/") == os.path.join(tmp_path, "b")
    assert absolute_place("--input", "s3://bucket/a/../b/") == "s3://bucket/a/../b"
    with pytest.raises(
        UserError, match="^--data received '~nobody-here/x', but .* folder of nobody"
    ):
        place("--data", "~nobody-here/x")
    (tmp_path / "~nobody-here").mkdir()
    assert place("--data", "~nobody-here/x") == "~nobody-here/x"


def test_a_missing_home_folder_is_an_error(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    # As in a container for a user of which it knows the number only.
    monkeypatch.setattr("pwd.getpwuid", mock.Mock(side_effect=KeyError))
    for asked in (lambda: place("cache_folder", "~/x"), pixels_home):
        with refused("cache_folder", "'~/", "no home folder of yours"):
            asked()


@pytest.mark.parametrize("given", [" ", 5, None, b"bytes", ["a"]])
def test_a_value_that_is_no_path_is_refused(given):
    with pytest.raises(UserError, match="^--data received .*; expected a path"):
        place("--data", given)
