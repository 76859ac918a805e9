import imageshards as ims
from tests.support.dataset_factory import Dataset


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
