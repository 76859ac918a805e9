"""The dataset that the tests of this folder train on."""

import pathlib

import pytest

import imageshards as ims
from tests.support.trainer_data import make_dataset


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """22 pictures to train on, 5 to validate: with batches of 8 epochs end with steps 2, 5, 8."""
    path = tmp_path_factory.mktemp("training") / "shards"
    return make_dataset(path, {"train": 22, "validation": 5}, size_px=((12, 12),))


@pytest.fixture(scope="session")
def data(shapes: pathlib.Path) -> ims.Data:
    return ims.open(shapes)


@pytest.fixture(scope="session")
def train(data: ims.Data) -> ims.TrainingData:
    """Batches of 8, not augmented."""
    return data.train(batch_size=8, augment="none")
