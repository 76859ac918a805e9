import builtins
from typing import assert_type

import pytest

import imageshards as ims
from tests.support.dataset_factory import Dataset


@pytest.mark.process
def test_all_public_names_exist_and_a_star_import_shadows_no_builtin():
    assert not {*ims.__all__} & {*dir(builtins)} and callable(ims.open)
    assert {*ims.__all__} <= {*dir(ims)}
    for name in ims.__all__:
        assert getattr(ims, name) is not None, name
    with pytest.raises(AttributeError, match="'imageshards' has no attribute 'absent'"):
        ims.absent  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_know_the_type_of_an_opened_dataset(tmp_path):
    """What `assert_type` says is held by mypy, in `make lint`."""
    Dataset(tmp_path)
    data = assert_type(ims.open(tmp_path), ims.Data)
    train = assert_type(data.train(batch_size=2, image_size=16), ims.TrainingData)
    val = assert_type(data.evaluation(batch_size=2, image_size=16), ims.EvaluationData)
    assert assert_type(train.steps_per_epoch, int) == 9 and isinstance(val, ims.EvaluationData)
