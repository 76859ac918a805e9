"""The data set that the tests of this room train on."""

from __future__ import annotations

import pathlib

import pytest

from tests.support.trainer_data import make_data_set


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """22 pictures to train on, 5 to validate: with batches of 8 epochs end with steps 2, 5, 8."""
    path = tmp_path_factory.mktemp("training") / "shards"
    return make_data_set(path, {"train": 22, "validation": 5}, size_px=((12, 12),), hot=True)
