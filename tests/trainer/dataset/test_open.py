"""A run reads one data set, whose path may have commas."""

from __future__ import annotations

import pathlib

import pytest

from imageshards.errors import UserError
from tests.support.trainer_data import make_data_set
from trainer.config import ReadConfig
from trainer.dataset.open import open_dataset


def test_a_comma_in_a_path_is_an_ordinary_character(tmp_path: pathlib.Path) -> None:
    for name in ("a", "b", "a,b"):
        make_data_set(tmp_path / name, {"train": 3}, num_shards=1)
    assert open_dataset(ReadConfig(f"{tmp_path}/a,b")).data == f"{tmp_path}/a,b"


def test_two_data_sets_are_refused_with_the_command_that_joins_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a", "b"):
        make_data_set(tmp_path / name, {"train": 3}, num_shards=1)
    with pytest.raises(UserError) as caught:
        open_dataset(ReadConfig("~/a, ~/b"))
    a, b = tmp_path / "a", tmp_path / "b"
    assert str(caught.value) == (
        f"--data received {a}, {b}, but a run reads one data set; expected one, as "
        f"imageshards build --input {a} --input {b} --output ALL joins them."
    )
    # One of them is no data set.
    for data in (f"{a},{tmp_path}/c", f"{a},", f"{a},{'x' * 300}"):
        with pytest.raises(UserError, match="^--data received '"):
            open_dataset(ReadConfig(data))
