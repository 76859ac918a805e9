"""A resumed `ims.fit` says which learning rate and which optimizer train."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import imageshards as ims

pytest.importorskip("tensorflow")

import keras
from keras.optimizers import SGD, Adam, AdamW
from keras.optimizers.schedules import CosineDecay, LearningRateSchedule


class Halves(LearningRateSchedule):
    """A schedule of the user's own, which cannot be saved."""

    def __call__(self, step: Any) -> Any:
        return 0.1 * 0.5 ** keras.ops.cast(step, "float32")


@pytest.fixture(scope="module")
def train(shapes: pathlib.Path) -> ims.TrainingData:
    return ims.open(shapes).train(batch_size=8, augment="none")


def fit(
    train: ims.TrainingData,
    optimizer: keras.optimizers.Optimizer,
    folder: pathlib.Path,
    epochs: int,
    *callbacks: Any,
) -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((12, 12, 3)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    ims.fit(
        model, train, epochs=epochs, checkpoint_dir=folder, callbacks=list(callbacks), verbose=0
    )
    return model


def rate_of(model: keras.Model) -> float:
    return float(np.asarray(model.optimizer.learning_rate))


RATE_NOTE = (
    "note: the learning rate stays 0.001, that of the checkpoint, not 1e-05 of model.compile; to "
    "change it from the next epoch on, use the callback "
    "keras.callbacks.LearningRateScheduler(lambda epoch: 1e-05)\n"
)


def test_the_rate_of_the_checkpoint_trains_on_and_is_named(train, tmp_path, capsys):
    undisturbed = fit(train, Adam(1e-3), tmp_path / "one", 2)
    fit(train, Adam(1e-3), tmp_path / "two", 1)
    assert not capsys.readouterr().err
    resumed = fit(train, Adam(1e-5), tmp_path / "two", 2)
    assert capsys.readouterr().err == RATE_NOTE
    assert rate_of(resumed) == rate_of(undisturbed)
    for mine, theirs in zip(resumed.get_weights(), undisturbed.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    # Each time, also of a finished run: the run was started with the other one.
    fit(train, Adam(1e-5), tmp_path / "two", 2)
    assert capsys.readouterr().err == RATE_NOTE
    fit(train, Adam(1e-3), tmp_path / "two", 3)
    assert not capsys.readouterr().err


def test_the_callback_that_the_note_names_changes_the_rate(train, tmp_path, capsys):
    fit(train, Adam(1e-3), tmp_path, 1)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-5)
    model = fit(train, Adam(1e-5), tmp_path, 3, scheduler)
    assert capsys.readouterr().err == RATE_NOTE
    assert rate_of(model) == pytest.approx(1e-5)
    assert rate_of(fit(train, Adam(1e-5), tmp_path, 4)) == pytest.approx(1e-5)
    assert not capsys.readouterr().err  # both are the same now


@pytest.mark.parametrize(
    "callback",
    [
        lambda: keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9.0, cooldown=0),
        lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
    ],
    ids=["ReduceLROnPlateau", "LearningRateScheduler"],
)
def test_a_rate_that_a_callback_has_changed_is_no_other_one(train, tmp_path, capsys, callback):
    assert rate_of(fit(train, Adam(1e-3), tmp_path, 3, callback())) < 0.0005
    fit(train, Adam(1e-3), tmp_path, 4, callback())
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (
            lambda: SGD(CosineDecay(0.1, 10)),
            lambda: SGD(CosineDecay(0.2, 10)),
            "learning_rate CosineDecay(initial_learning_rate=0.2, decay_steps=10, alpha=0.0, "
            "warmup_target=None, warmup_steps=0) in place of CosineDecay(initial_learning_rate=0.1",
        ),
        (
            lambda: SGD(0.1, clipnorm=2.0, name="mine"),
            lambda: SGD(0.1, name="mine"),
            "note: from now on the optimizer has other settings of model.compile than the run was "
            "started with: clipnorm None in place of 2.0\n",
        ),
        (
            lambda: Adam(1e-3, name="mine"),
            lambda: AdamW(1e-5, name="mine"),
            "note: the optimizer is AdamW of model.compile from now on, with the state of Adam, "
            f"with which the run was started\n{RATE_NOTE}",
        ),
    ],
    ids=["schedule", "clipnorm", "class of the same name"],
)
def test_settings_that_are_no_variables_are_those_of_compile_which_is_said(
    train, tmp_path, capsys, first, second, told
):
    fit(train, first(), tmp_path, 1)
    model = fit(train, second(), tmp_path, 2)
    assert told in capsys.readouterr().err
    assert int(model.optimizer.iterations) == 5


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (lambda: Adam(1e-3), lambda: SGD(0.1), "compiled with SGD, .* started with Adam, which"),
        (
            lambda: SGD(0.1), lambda: SGD(0.1, momentum=0.9),
            "compiled with SGD with momentum 0.9, .* with SGD with momentum 0.0, which has other",
        ),
        (
            lambda: SGD(0.5), lambda: SGD(CosineDecay(0.5, 10)),
            "compiled with SGD with learning_rate CosineDecay.* SGD with learning_rate 0.5, which",
        ),
        (lambda: SGD(0.5), lambda: SGD(0.5, name="mine"), "compiled with SGD with name mine, .*"),
    ],
    ids=["class", "momentum", "schedule", "name"],
)  # fmt: skip
def test_an_optimizer_with_other_variables_is_refused_by_its_name(
    train, tmp_path, first, second, told
):
    fit(train, first(), tmp_path, 1)
    with pytest.raises(ims.UserError, match=f"^model received one {told}") as caught:
        fit(train, second(), tmp_path, 2)
    assert "another checkpoint_dir, or overwrite to start over" in str(caught.value)


def test_a_schedule_that_cannot_be_saved_is_never_compared(train, tmp_path, capsys):
    fit(train, SGD(Halves()), tmp_path, 1)
    fit(train, SGD(Halves()), tmp_path, 2)
    assert not capsys.readouterr().err


def test_a_checkpoint_of_an_older_release_says_nothing(train, tmp_path, capsys):
    fit(train, Adam(1e-3), tmp_path, 1)
    for path in (tmp_path / "checkpoints").iterdir():
        with np.load(path) as held:
            arrays = dict(held)
        state = json.loads(arrays.pop("state").item())
        assert state.pop("optimizer")["class"] == "Adam"
        with open(path, "wb") as file:
            np.savez(file, state=np.array(json.dumps(state).encode()), **arrays)
    model = fit(train, Adam(1e-5), tmp_path, 2)
    assert rate_of(model) == pytest.approx(1e-3) and not capsys.readouterr().err
