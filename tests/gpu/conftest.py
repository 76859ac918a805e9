"""The datasets that the tests of GPUs train on, and the trace of a fake GPU."""

import pathlib

import pytest

from tests.support.trainer_data import make_dataset


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("gpu") / "small"
    return make_dataset(path, {"train": 22, "validation": 6}, size_px=((12, 12),))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Pictures that are larger than anything else that a step copies."""
    path = tmp_path_factory.mktemp("gpu") / "large"
    return make_dataset(path, {"train": 44, "validation": 18}, size_px=((64, 64),))
