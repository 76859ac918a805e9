import json
import pathlib
from typing import Any

import numpy as np
import pytest

import imageshards as ims
from imageshards.adoption.command import adopt
from tests.support.commands import run_forked
from tests.support.trainer_data import make_dataset

pytestmark = pytest.mark.process


def _fitted(folder: pathlib.Path, replicas: int) -> dict[str, Any]:
    """What `tests.support.fit_run` prints, after it was checked."""
    done = run_forked("tests.support.fit_run", folder, replicas)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ran out of data" not in done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    history = told["history"]
    assert [len(values) for values in history.values()] == [2] * len(history)
    assert told["num_records"] == 11
    assert history["val_accuracy"][-1] == pytest.approx(told["accuracy"], abs=1e-6)
    assert history["val_crossentropy"][-1] == pytest.approx(told["loss"], rel=1e-5)
    # A penalty is not a mean over examples.
    whole = pytest.approx(told["loss"] + told["penalty"], rel=1e-5)
    assert told["penalty"] > 0 and history["val_loss"][-1] == whole
    assert told["validation"]["loss"] == whole
    assert told["validation"]["accuracy"] == pytest.approx(told["accuracy"], abs=1e-6)
    # Broken records count nowhere.
    unbroken = told["unbroken"]
    assert unbroken["validation"] == {
        "crossentropy": pytest.approx(unbroken["loss"], rel=1e-5),
        "accuracy": pytest.approx(unbroken["accuracy"], abs=1e-6),
    }
    return told


@pytest.mark.long
def test_fit_validates_every_record_once_and_trains_the_same_on_four_replicas(tmp_path):
    # Neither split fills its last batch of 8, and validation's has fewer records than replicas.
    make_dataset(tmp_path, {"train": 20, "validation": 11}, size_px=((16, 16),))
    one, four = _fitted(tmp_path, 1), _fitted(tmp_path, 4)
    np.testing.assert_allclose(four["weights"], one["weights"], atol=1e-5)
    assert four["history"]["loss"] == pytest.approx(one["history"]["loss"], rel=1e-4)


def test_a_folder_of_tfds_is_opened(tmp_path: pathlib.Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")

    class OpenedShapes(tfds.core.GeneratorBasedBuilder):  # type: ignore[name-defined]
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            image = tfds.features.Image(shape=(16, 16, 3), encoding_format="jpeg")
            features = {"image": image, "label": tfds.features.ClassLabel(names=["cat", "dog"])}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager: Any) -> Any:
            return {"train": self._generate_examples(5), "test": self._generate_examples(3)}

        def _generate_examples(self, count: int) -> Any:
            for i in range(count):
                yield i, {"image": np.full((16, 16, 3), 40 * i + 9, np.uint8), "label": i % 2}

    OpenedShapes(data_dir=str(tmp_path / "tfds")).download_and_prepare()
    folder = tmp_path / "tfds" / "opened_shapes"
    with pytest.raises(ims.UserError, match=f"^path received .* by imageshards adopt {folder}"):
        ims.open(folder)
    adopt(str(folder))  # its one version
    data = ims.open(folder)
    assert (data.classes, data.splits) == (("cat", "dog"), {"train": 5, "test": 3})
    ((pictures, labels),) = data.evaluation(batch_size=3, split="test").as_numpy()
    assert sorted(zip(labels, pictures[:, 0, 0, 0] // 40, strict=True)) == [(0, 0), (0, 2), (1, 1)]
