import pytest

import imageshards as ims
from tests.support.dataset_factory import Dataset
from tests.support.target_sets import make_targets


def test_descriptions_of_batches_are_one_line(tmp_path):
    made = Dataset(tmp_path / "set").directory
    data = ims.open(made)
    train = data.train(batch_size=4, image_size=(8, 12), classes=["dog"])
    assert repr(train) == (
        f"<imageshards TrainingData {str(made)!r} train: 9 records, 1 class, batch size 4, "
        "pictures 8 x 12 pixels>"
    )
    val = data.evaluation(batch_size=5, where="image/class/label==1")
    assert repr(val) == (
        f"<imageshards EvaluationData {str(made)!r} validation: 6 records, 2 classes, batch size "
        "5, pictures 16 x 16 pixels>"
    )


@pytest.mark.parametrize(
    ("target", "fact"),
    [("bright", "target bright, 1 number"), ("rgb", "target rgb, 3 numbers"), ("words", "")],
)
def test_a_line_names_what_a_model_learns(tmp_path, target, fact):
    data = ims.open(make_targets(tmp_path, {"train": 2, "validation": 1}))
    line = repr(data.train(batch_size=2, target=target))
    assert fact in line and ("target" in line) == bool(fact)
