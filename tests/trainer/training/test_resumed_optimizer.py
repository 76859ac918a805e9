import pathlib
from typing import Any

import keras
import numpy as np
import pytest
from keras.optimizers import SGD, Adam, AdamW
from keras.optimizers.schedules import CosineDecay, LearningRateSchedule

import imageshards as ims
from tests.support.tiny_models import linear
from trainer.training.resumed_optimizer import describe_optimizer, notes, refusal

RATE_NOTE = (
    "note: the learning rate stays 0.001, that of the checkpoint, not 1e-05 of model.compile; to "
    "change it from the next epoch on, use the callback "
    "keras.callbacks.LearningRateScheduler(lambda epoch: 1e-05)\n"
)


class Halves(LearningRateSchedule):
    """A schedule of the user's own, which cannot be saved."""

    def __call__(self, step: Any) -> Any:
        return 0.1 * 0.5 ** keras.ops.cast(step, "float32")


def fit(train: Any, optimizer: Any, folder: pathlib.Path, epochs: int, *callbacks: Any) -> Any:
    """The model after a run, perhaps a resumed one."""
    options: dict[str, Any] = {"checkpoint_dir": folder, "callbacks": callbacks, "verbose": 0}
    return ims.fit(linear(optimizer), train, epochs=epochs, **options).model


def rate_of(model: keras.Model) -> float:
    return float(np.asarray(model.optimizer.learning_rate))


def test_the_rate_of_the_checkpoint_trains_on_and_is_named(train, tmp_path, capsys):
    undisturbed = fit(train, Adam(1e-3), tmp_path / "one", 2)
    fit(train, Adam(1e-3), tmp_path / "two", 1)
    assert not capsys.readouterr().err
    resumed = fit(train, Adam(1e-5), tmp_path / "two", 2)
    assert capsys.readouterr().err == RATE_NOTE
    assert rate_of(resumed) == rate_of(undisturbed)
    np.testing.assert_equal(resumed.get_weights(), undisturbed.get_weights())
    # Each time, also of a finished run: the run was started with the other one.
    fit(train, Adam(1e-5), tmp_path / "two", 2)
    assert capsys.readouterr().err == RATE_NOTE
    fit(train, Adam(1e-3), tmp_path / "two", 3)
    assert not capsys.readouterr().err
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-5)
    model = fit(train, Adam(1e-5), tmp_path / "two", 4, scheduler)
    assert capsys.readouterr().err == RATE_NOTE
    assert rate_of(model) == pytest.approx(1e-5)
    assert rate_of(fit(train, Adam(1e-5), tmp_path / "two", 5)) == pytest.approx(1e-5)
    assert not capsys.readouterr().err  # both are the same now


def test_a_rate_that_a_callback_has_changed_is_no_other_one(train, tmp_path, capsys):
    halves = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    assert rate_of(fit(train, Adam(1e-3), tmp_path, 3, halves)) < 0.0005
    fit(train, Adam(1e-3), tmp_path, 4, halves)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (SGD(CosineDecay(0.1, 10)), SGD(CosineDecay(0.2, 10)), "CosineDecay(initial_learning_rat"),
        (SGD(0.1, clipnorm=2.0), SGD(0.1), "started with: clipnorm None in place of 2.0\n"),
        (Adam(1e-3, name="mine"), AdamW(1e-5, name="mine"), f"the run was started\n{RATE_NOTE}"),
        (SGD(Halves()), SGD(Halves()), ""),
    ],
    ids=["schedule", "clipnorm", "class of the same name", "schedule that cannot be saved"],
)
def test_other_settings_of_the_optimizer_are_said(train, tmp_path, capsys, first, second, told):
    fit(train, first, tmp_path, 1)
    model = fit(train, second, tmp_path, 2)
    said = capsys.readouterr().err
    assert told in said and bool(told) == bool(said)
    assert int(model.optimizer.iterations) == 5


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (Adam(1e-3), SGD(0.1), "compiled with SGD, .* started with Adam"),
        (SGD(0.1), SGD(0.1, momentum=0.9), "SGD with momentum 0.9, .* SGD with momentum 0.0"),
        (SGD(0.5), SGD(CosineDecay(0.5, 10)), "learning_rate Cosine.* SGD with learning_rate 0.5"),
    ],
    ids=["class", "momentum", "schedule"],
)
def test_an_optimizer_with_other_variables_is_refused(train, tmp_path, first, second, told):
    fit(train, first, tmp_path, 1)
    with pytest.raises(ims.UserError, match=f"^model received .*{told}") as caught:
        fit(train, second, tmp_path, 2)
    assert "another checkpoint_dir, or start over with overwrite=True" in str(caught.value)


def test_a_checkpoint_of_an_older_release_says_nothing():
    model = linear(Adam(1e-5))
    compiled = describe_optimizer(model)
    assert refusal(None, compiled, model, []) is None
    assert [*notes(None, compiled, model)] == []
