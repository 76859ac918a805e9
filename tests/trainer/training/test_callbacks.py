import json
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras.optimizers import SGD

from imageshards.errors import UserError
from tests.support.errors import refused
from tests.support.tiny_models import linear
from trainer.models.step import Execution
from trainer.training.callbacks import MetricsFile, NaNGuard, WaitingTime

STEPS = 4


def _fit(train: Any, optimizer: Any, *callbacks: Any, epochs: int = 2) -> None:
    steps: dict[str, Any] = {"steps_per_epoch": STEPS, "epochs": epochs, "verbose": 0}
    linear(optimizer).fit(train.dataset(), callbacks=list(callbacks), **steps)


class _Fetches(Execution):
    """Says of each step that its batch took so long to come."""

    def take(self, batches: Any, steps: int) -> dict[str, Any]:
        self.calls += 1
        return {"loss": tf.constant(1.0)}


def test_fetching_during_a_step_does_not_count_as_waiting(train: Any) -> None:
    with refused("callbacks", "WaitingTime"):  # Keras's own fit says nothing of waiting.
        _fit(train, "sgd", WaitingTime(8))
    waiting, execution = WaitingTime(8), _Fetches(lambda batch: {})
    execution.fetch_sec = 0.3
    waiting.take(execution, None, 1)  # it traces: nothing of it counts
    assert (waiting.wait_sec, waiting.train_sec, waiting.images) == (0.0, 0.0, 0)
    waiting.take(execution, None, 1)  # nothing runs on a device meanwhile
    assert waiting.wait_sec == pytest.approx(0.3)
    waiting.running_sec = 0.1  # the step goes on after it was handed over
    execution.fetch_sec = 0.08
    waiting.take(execution, None, 1)
    assert waiting.wait_sec == pytest.approx(0.3)
    execution.fetch_sec = 0.25
    waiting.take(execution, None, 3)
    assert waiting.wait_sec == pytest.approx(0.3 + 0.15)
    assert waiting.images == (1 + 1 + 3) * 8 and waiting.train_sec > 0


def test_metrics_file_has_an_object_per_epoch_also_of_a_resumed_run(train, tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    metrics = MetricsFile(str(path), ["loss", "val_loss"])
    slower = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9.0)
    _fit(train, SGD(0.1), metrics, slower, epochs=3)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found == metrics.history
    assert [(r["epoch"], r["step"]) for r in found] == [(n, n * STEPS) for n in (1, 2, 3)]
    assert list(found[0]) == ["epoch", "step", "loss", "val_loss", "accuracy", "learning_rate"]
    assert found[0]["val_loss"] is None
    # That of the epoch's last step, after which the callback lowers it.
    assert [r["learning_rate"] for r in found] == pytest.approx([0.1, 0.1, 0.01])
    again = MetricsFile(str(path))
    again.load_state_dict(json.loads(json.dumps(metrics.state_dict())))
    again.set_model(linear())
    again.on_epoch_end(1, {"loss": float("inf")})  # the second one, which had been cut short
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r["epoch"] for r in found] == [1, 2]
    assert found[0] == metrics.history[0] and found[1]["loss"] is None


@pytest.mark.parametrize(
    ("accumulated", "rates"),
    [(None, [5, 1]), (2, [5, 1]), (3, [6, 3]), (5, [None, 4])],
    ids=["each", "second", "third", "fifth"],
)
def test_the_file_has_the_rate_of_the_last_change_of_weights(train, tmp_path, accumulated, rates):
    # Step s (from 0) has 8 - s.
    schedule = keras.optimizers.schedules.PolynomialDecay(8.0, 8, 0.0)
    metrics = MetricsFile(str(tmp_path / "m.jsonl"))
    _fit(train, SGD(schedule, gradient_accumulation_steps=accumulated), metrics)
    assert [r["learning_rate"] for r in metrics.history] == rates


def test_a_nan_loss_ends_keras_fit_with_a_clear_error(train):
    with pytest.raises(UserError, match="^the loss became (nan|inf)$"):
        _fit(train, SGD(1e38), NaNGuard(UserError), epochs=9)
    _fit(train, "sgd", NaNGuard(UserError))
