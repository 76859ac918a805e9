import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import imageshards as ims
from tests.support.builds import class_folders
from tests.support.errors import refused
from tests.support.target_sets import make_targets, read_columns

SIDE_PX = 16


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> pathlib.Path:
    """24 records to train on, 10 to validate."""
    return make_targets(tmp_path_factory.mktemp("outputs") / "set", {"train": 3, "validation": 1})


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: Any) -> ims.Data:
    folder = tmp_path_factory.mktemp("unlabelled")
    photos = class_folders(folder / "photos", {"a": 12, "b": 4})
    how: dict[str, Any] = {"image_size": SIDE_PX, "label": "none", "splits": {"train": 1.0}}
    ims.build(photos, folder / "set", **how)
    return ims.open(folder / "set")


def test_labels_of_several_targets_come_by_name(made: pathlib.Path) -> None:
    records = read_columns(made, "train")
    targets = ["label", "rgb", "words"]
    train = ims.open(made).train(batch_size=8, target=targets, augment="strong", seed=1)
    assert not train.mixes
    for batch in train.batches().take(3).as_numpy_iterator():
        assert {*batch["label"]} == {*targets}
        for place, number in enumerate(batch["record"]):
            record = records[number]
            assert batch["label"]["label"][place] == record["image/class/label"][0]
            np.testing.assert_array_equal(batch["label"]["rgb"][place], np.float32(record["rgb"]))
            words = [w.decode() in ("blue", "green", "red") for w in {*record["words"]}]
            assert batch["label"]["words"][place].sum() == len(words)
    scales = train.target_mean_std
    assert isinstance(scales, dict) and [*scales] == ["rgb"]
    assert scales["rgb"].mean == pytest.approx(np.mean([r["rgb"] for r in records], 0), rel=1e-5)
    assert [train.element_spec[1][name].shape for name in targets] == [(8,), (8, 3), (8, 3)]


def test_a_record_that_lacks_any_of_the_targets_is_left_out(made: pathlib.Path) -> None:
    train = ims.open(made).train(batch_size=2, target=["label", "gap", "hole"], augment="none")
    assert (train.num_records, train.subset.missing_target) == (22, 2)


def test_first_target_decides_classes_and_balance(made: pathlib.Path) -> None:
    data = ims.open(made)
    asked: dict[str, Any] = {"classes": ["light", "dark"], "balance": "weights"}
    train = data.train(batch_size=8, target=["name", "bright"], **asked)
    assert (train.classes, train.class_weight) == (("light", "dark"), None)
    records = read_columns(made, "train")
    batch = next(train.batches().as_numpy_iterator())
    names = [records[number]["name"][0].decode() for number in batch["record"]]
    assert [("light", "dark")[i] for i in batch["label"]["name"]] == names
    weights = dict(zip(train.classes, train.subset.class_weights or (), strict=True))
    np.testing.assert_allclose(batch["weight"], [weights[name] for name in names], rtol=1e-6)


@pytest.mark.parametrize("asked", [{}, {"skip_broken": 1}])
@pytest.mark.one_row
def test_without_a_target_a_dataset_gives_inputs_alone(unlabelled: Any, asked: Any) -> None:
    data = ims.open(unlabelled.config.data, **asked)
    with refused("target", "target=None"):
        data.train(batch_size=4)
    train = data.train(batch_size=4, target=None)
    pictures: Any = next(train.as_numpy())
    if asked:
        pictures, label, weights = pictures
        assert label is None and weights.tolist() == [1.0] * 4
    assert pictures.shape == (4, SIDE_PX, SIDE_PX, 3)
    val = ims.open(unlabelled.config.data).evaluation(batch_size=4, split="train", target=None)
    assert sum(len(pictures) for pictures in val.as_numpy()) == 16
    assert (train.classes, train.class_weight) == ((), None)
    assert "nothing" in repr(train)
    part = next(train.as_numpy(process_index=1, process_count=2))
    part = part[0] if asked else part
    np.testing.assert_array_equal(part, pictures[2:])


def _two_outputs() -> Any:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((SIDE_PX, SIDE_PX, 3))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(inputs))
    outputs = {name: keras.layers.Dense(3, name=name)(x) for name in ("label", "rgb")}
    model = keras.Model(inputs, outputs)
    label_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss, metrics = {"label": label_loss, "rgb": "mse"}, {"label": "accuracy", "rgb": "mae"}
    model.compile(keras.optimizers.Adam(0.05), loss=loss, metrics=metrics)
    return model


def _doubled(inputs: Any, label: Any) -> Any:
    return inputs, label | {"rgb": 2 * label["rgb"]}


def _undone(inputs: Any, label: Any) -> Any:
    return inputs, label | {"rgb": label["rgb"] / 2}


def test_a_model_of_two_outputs_trains_validates_and_resumes_exactly(made, tmp_path):
    data, targets = ims.open(made), ["label", "rgb"]
    train = data.train(batch_size=8, target=targets, augment="none", seed=1)
    train = train.map(_doubled).map(_undone)
    val = data.evaluation(batch_size=8, target=targets).map(_doubled).map(_undone)
    how: dict[str, Any] = {"validation_data": val, "epochs": 3, "verbose": 0, "checkpoint_steps": 1}
    whole = _two_outputs()
    history = ims.fit(whole, train, **how).history
    found = whole.evaluate(val.dataset(), verbose=0, return_dict=True)
    for name in ("label_accuracy", "rgb_mae", "loss"):
        assert history[f"val_{name}"][-1] == pytest.approx(found[name], rel=1e-5)
    how["checkpoint_dir"] = tmp_path / "run"
    left = [1, 2]
    crash = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: left.pop())
    with pytest.raises(IndexError):
        ims.fit(_two_outputs(), train, **how, callbacks=[crash])
    resumed = _two_outputs()
    ims.fit(resumed, train, **how)
    np.testing.assert_equal(resumed.get_weights(), whole.get_weights())


@pytest.mark.long
def test_an_autoencoder_trains_on_pictures_without_labels(unlabelled: Any) -> None:
    def halves(pictures: Any) -> Any:
        scaled = tf.cast(pictures, tf.float32) / 255
        return scaled, scaled

    train = unlabelled.train(batch_size=8, target=None, augment="none", seed=1).map(halves)
    val = unlabelled.evaluation(batch_size=8, target=None, split="train").map(halves)
    model = keras.Sequential([keras.Input((SIDE_PX, SIDE_PX, 3)), keras.layers.Conv2D(3, 1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    how: dict[str, Any] = {"epochs": 20, "verbose": 0, "allow_overlap": True}
    losses = ims.fit(model, train, validation_data=val, **how).history["val_loss"]
    assert losses[-1] < losses[0] / 4
    inputs, label = next(train.as_numpy())
    np.testing.assert_array_equal(inputs, label)


def test_a_model_with_a_loss_of_its_own_trains_without_labels(unlabelled: Any) -> None:
    inputs = keras.Input((SIDE_PX, SIDE_PX, 3))
    model = keras.Sequential([inputs, keras.layers.Flatten(activity_regularizer="l2")])
    model.add(keras.layers.Dense(1, activity_regularizer="l2"))
    model.compile("sgd")
    train = unlabelled.train(batch_size=8, target=None, augment="none")
    assert "loss" in ims.fit(model, train, epochs=1, verbose=0).history


def test_targets_and_functions_that_cannot_be_are_refused(made):
    data = ims.open(made)
    targets: list[Any] = [[], ["label", "label"], ["rgb", "nothing"], ["image/encoded"]]
    for target in targets:
        with refused("target"):
            data.train(batch_size=4, target=target)
    functions: list[tuple[Any, str]] = [
        (lambda inputs, label: (inputs, label, label), "3 values"),
        (lambda inputs, label: (inputs[:2], label), "(2, 16, 16, 3)"),
        ("rolled", "'rolled'"),
    ]
    for function, said in functions:
        with refused("map", said):
            data.train(batch_size=8).map(function).dataset()


@pytest.mark.long
def test_functions_run_on_the_host_after_augmentation(made: pathlib.Path) -> None:
    data = ims.open(made)
    with refused("map", "augment_on='device'"):
        data.train(batch_size=8, augment_on="device").map(_doubled)
    plain = data.train(batch_size=8, augment="strong", seed=1)
    seen = plain.map(lambda x, y: (x, y))
    np.testing.assert_equal(next(seen.as_numpy()), next(plain.as_numpy()))
    assert seen.element_spec[1].shape == (8, len(data.classes))


def test_a_run_knows_its_functions_by_their_source(made: pathlib.Path, tmp_path: Any) -> None:
    train = ims.open(made).train(batch_size=8, target=["label", "rgb"], augment="none")
    how: dict[str, Any] = {"epochs": 1, "verbose": 0, "checkpoint_dir": tmp_path / "run"}
    ims.fit(_two_outputs(), train.map(_doubled), **how)
    with refused("map", "_undone", "_doubled"):
        ims.fit(_two_outputs(), train.map(_undone), **how | {"epochs": 2})
    with refused("map", "none"):
        ims.fit(_two_outputs(), train, **how | {"epochs": 2})
    ims.fit(_two_outputs(), train.map(_doubled), **how | {"epochs": 2})
