import json
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras.callbacks import LambdaCallback
from keras.optimizers import SGD

import imageshards as ims
from tests.support.tiny_models import linear
from trainer.models.freezing import Frozen
from trainer.training import callbacks
from trainer.training.callbacks import MetricsFile, WaitingTime

STEPS = 4


def _fit(train: Any, optimizer: Any, *callbacks: Any, epochs: int = 2) -> None:
    steps: dict[str, Any] = {"steps_per_epoch": STEPS, "epochs": epochs, "verbose": 0}
    linear(optimizer).fit(train.dataset(), callbacks=list(callbacks), **steps)


@pytest.mark.parametrize(
    ("steps", "wait_sec"),
    [
        # (until the batch is there, end of the step); time passes while a batch is fetched.
        pytest.param([(0.3, 0.3)] * 4, 0.9, id="devices without a queue"),
        pytest.param([(1, 9), (1, 17), (1, 25), (1, 33)], 0.0, id="slow devices"),
        pytest.param([(4, 5), (4, 9), (4, 13), (4, 17)], 9.0, id="slow batches"),
        pytest.param([(4, 10), (8, 13), (1, 16), (4, 20)], 2.0 + 0.0 + 1.0, id="in turn"),
    ],
)
def test_devices_wait_from_the_end_of_a_step_until_the_next_batch(monkeypatch, steps, wait_sec):
    now_sec, waiting = 0.0, WaitingTime(8)
    monkeypatch.setattr("time.perf_counter", lambda: now_sec)
    monkeypatch.setattr(callbacks, "_end_of_step", lambda logs: float(logs["loss"]))
    for number, (fetch_sec, end_sec) in enumerate(steps):
        begun_sec, now_sec = now_sec, now_sec + fetch_sec
        waiting.measure(begun_sec, now_sec, {"loss": tf.constant(end_sec)}, number > 0)
    waiting.pause()
    now_sec += 100.0  # a checkpoint or a validation
    waiting.pause()
    assert waiting.wait_sec == pytest.approx(wait_sec)
    # The first step traces: nothing of it counts.
    assert waiting.images == 3 * 8
    assert waiting.train_sec == pytest.approx(sum(fetch for fetch, _ in steps[1:]))


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
@pytest.mark.one_row
def test_the_file_has_the_rate_of_the_last_change_of_weights(train, tmp_path, accumulated, rates):
    # Step s (from 0) has 8 - s.
    schedule = keras.optimizers.schedules.PolynomialDecay(8.0, 8, 0.0)
    metrics = MetricsFile(str(tmp_path / "m.jsonl"))
    _fit(train, SGD(schedule, gradient_accumulation_steps=accumulated), metrics)
    assert [r["learning_rate"] for r in metrics.history] == rates


def test_layers_that_a_callback_frees_train_from_then_on(train):
    rates = keras.optimizers.schedules.PolynomialDecay(0.1, 9)
    model = linear(SGD(rates), keras.layers.Dense(4))
    model.optimizer.build(model.trainable_variables)
    body = model.layers[-2]
    kernels = [body.kernel.numpy()]
    note = LambdaCallback(on_epoch_end=lambda epoch, logs: kernels.append(body.kernel.numpy()))
    frozen = Frozen(model, "all", 1, rates)
    ims.fit(model, train, epochs=2, callbacks=[frozen, note], verbose=0)
    assert [not (kernel == kernels[0]).all() for kernel in kernels] == [False, False, True]
