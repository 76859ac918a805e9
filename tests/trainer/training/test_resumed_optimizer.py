"""A resumed `ims.fit` says which learning rate and which optimizer train."""

import pathlib
from typing import Any

import numpy as np
import pytest

import imageshards as ims

pytest.importorskip("tensorflow")

import keras
from keras.optimizers import SGD, Adam, AdamW
from keras.optimizers.schedules import CosineDecay, LearningRateSchedule

from tests.support.errors import refused
from tests.support.tiny_models import linear


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


@pytest.mark.long
def test_the_rate_of_the_checkpoint_is_kept_and_named_in_a_note(train, tmp_path, capsys):
    undisturbed = fit(train, Adam(1e-3), tmp_path / "one", 2)
    fit(train, Adam(1e-3), tmp_path / "two", 1)
    assert not capsys.readouterr().err
    resumed = fit(train, Adam(1e-5), tmp_path / "two", 2)
    told = capsys.readouterr().err
    assert "(learning_rate 1e-05 in place of 0.001)" in told
    assert rate_of(resumed) == rate_of(undisturbed)
    np.testing.assert_equal(resumed.get_weights(), undisturbed.get_weights())
    # The callback that the note names changes the rate, for good.
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-5)
    assert "LearningRateScheduler" in told
    assert rate_of(fit(train, Adam(1e-3), tmp_path / "two", 3, scheduler)) == pytest.approx(1e-5)
    assert rate_of(fit(train, Adam(1e-3), tmp_path / "two", 4)) == pytest.approx(1e-5)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (
            SGD(CosineDecay(0.1, 10)), SGD(CosineDecay(0.2, 10)),
            "in place of CosineDecay(initial_learning_rate=0.1",
        ),
        (SGD(0.1, clipnorm=2.0), SGD(0.1), "(clipnorm None in place of 2)"),
        (Adam(1e-3, name="mine"), AdamW(1e-5, name="mine"), "(class AdamW in place of Adam, "),
        (SGD(Halves()), SGD(Halves()), ""),
    ],
    ids=["schedule", "clipnorm", "class of the same name", "schedule that cannot be saved"],
)  # fmt: skip
@pytest.mark.one_row
def test_changed_settings_of_the_optimizer_are_named_in_a_note(
    train, tmp_path, capsys, first, second, told
):
    fit(train, first, tmp_path, 1)
    model = fit(train, second, tmp_path, 2)
    said = capsys.readouterr().err
    assert told in said and bool(told) == bool(said)
    assert int(model.optimizer.iterations) == 5


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (Adam(1e-3), SGD(0.1), "class SGD in place of Adam, "),
        (SGD(0.1), SGD(0.1, momentum=0.9), "(momentum 0.9 in place of 0)"),
        (SGD(0.5), SGD(CosineDecay(0.5, 10)), "learning_rate CosineDecay("),
    ],
    ids=["class", "momentum", "schedule"],
)
@pytest.mark.one_row
def test_an_optimizer_with_other_variables_is_refused(train, tmp_path, capsys, first, second, told):
    fit(train, first, tmp_path, 1)
    with refused("output", "another checkpoint_dir, or start over with overwrite=True"):
        fit(train, second, tmp_path, 2)
    assert told in capsys.readouterr().err
