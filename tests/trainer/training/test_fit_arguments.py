import signal
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.callbacks import LambdaCallback
from keras.optimizers import SGD

import imageshards as ims
from imageshards.errors import UserError
from tests.support.errors import refused
from tests.support.tiny_models import StopAfter, linear
from trainer.models import strategy
from trainer.training.fit import _check


def test_wrong_arguments_are_refused(data, train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "thesis.tex").write_text("years of work")
    made_later = linear()
    made_later.second = keras.optimizers.Adam()
    without_source = data.train(batch_size=8, augment=eval("lambda *given: given[:2]"))
    mapped = data.train(batch_size=8).map(eval("lambda *given: given"))
    balanced = data.train(batch_size=8, balance="weights")
    two_classes = data.evaluation(batch_size=8, classes=["square", "circle"])
    trained_on = data.evaluation(batch_size=8, split="train")
    rows: list[tuple[str, dict[str, Any]]] = [
        ("epochs received '3'", {"epochs": "3"}),
        ("steps_per_epoch received 0", {"steps_per_epoch": 0}),
        ("validation_freq received '1'", {"validation_freq": ["1"]}),
        ("class_weight received {0: 1, 2: 1}", {"class_weight": {0: 1, 2: 1}}),
        ("class_weight received .*-1", {"class_weight": {0: 1, 1: 1, 2: -1}}),
        ("class_weight .* balance='weights'", {"train": balanced, "class_weight": {0: 1}}),
        ("callbacks received B", {"callbacks": keras.callbacks.BackupAndRestore("b.weights.h5")}),
        ("checkpoint_dir .*'nowhere://run'", {"checkpoint_dir": "nowhere://run"}),
        (r"train received \w+; expected .*\.train\(…\)", {"train": train.dataset()}),
        (r"validation_data received \w+; .*\.evaluation\(…\)", {"validation_data": train}),
        ("validation_data received .*square, circle", {"validation_data": two_classes}),
        ("validation_data received 'train' with 22 records", {"validation_data": trained_on}),
        ("model received .*not compiled", {"model": keras.Sequential()}),
        ("model received tensorflow", {"model": tf.Module()}),
        ("augment received <lambda>", {"train": without_source, "checkpoint_dir": "run"}),
        ("map received <lambda>", {"train": mapped, "checkpoint_dir": "run"}),
        ("model received .*'second'", {"model": made_later, "checkpoint_dir": "run"}),
        (r"checkpoint_dir .*thesis\.tex", {"checkpoint_dir": "others", "overwrite": True}),
    ]
    for sentence, change in rows:
        with pytest.raises(UserError, match=f"^{sentence}"):
            ims.fit(**{"model": linear(), "train": train} | change)
    assert [path.name for path in (tmp_path / "others").iterdir()] == ["thesis.tex"]


def test_an_uneven_batch_and_another_keras_are_refused(train, monkeypatch):
    with refused("batch_size", "8", "3 replicas"):
        _check(linear(), train, None, 3)
    monkeypatch.setattr(keras, "__version__", "3.16.0")
    with refused("", "3.16.0", "3.15"):
        ims.fit(linear(), train)


def test_keras_with_channels_first_is_told_that_pictures_have_them_last(train, data, monkeypatch):
    model = linear()
    monkeypatch.setattr(keras.config, "image_data_format", lambda: "channels_first")
    said = "Keras's image_data_format is 'channels_first'"
    with refused("", said, "set_image_data_format"):
        ims.fit(model, train)
    for described in (train, data.evaluation(batch_size=8)):
        with pytest.warns(UserWarning, match=said) as warned:
            described.dataset()
        # `warned` also holds what the garbage collector warns of, wherever it happens to run
        assert [each.filename for each in warned if said in str(each.message)] == [__file__]


@pytest.mark.parametrize(
    ("optimizer", "jit_compile", "word"),
    [
        (SGD(gradient_accumulation_steps=2), False, "gradient_accumulation_steps=2"),
        (SGD(use_ema=True, ema_overwrite_frequency=3), False, "ema_overwrite_f"),
        (SGD(), True, "jit_compile"),
        (keras.optimizers.LossScaleOptimizer(SGD(clipnorm=1.0)), False, "clipping and float16"),
    ],
)
def test_several_replicas_refuse_unsupported_settings_of_keras(train, optimizer, jit_compile, word):
    model = linear(optimizer, jit_compile=jit_compile)
    _check(model, train, None, 1)
    with refused("replicas", word):
        _check(model, train, None, 2)


def test_fit_says_that_a_gpu_is_not_seen(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(strategy, "NVIDIA_DRIVER", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ims.fit(linear(), train, steps_per_epoch=1, verbose=0)
    assert "note: TensorFlow sees no GPU of this machine" in capsys.readouterr().err


def _two_views(images: Any, labels: Any, seeds: Any) -> tuple[Any, Any]:
    return tf.concat([images, tf.reverse(images, [2])], -1), labels


class Views(keras.Model):
    """Takes a picture; its step takes two views of each picture as six channels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = keras.layers.Dense(2)
        self.distance = keras.metrics.Mean(name="loss")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.embed(keras.ops.mean(keras.ops.cast(x, "float32"), (1, 2)))

    def train_step(self, data: Any) -> Any:
        one, other = (self(view, training=True) for view in tf.split(data[0], 2, -1))
        self.distance.update_state(tf.abs(one - other))
        return {"loss": self.distance.result()}


def test_a_function_decides_the_shape_of_pictures_and_a_built_model_takes_them_apart(data):
    train = data.train(batch_size=8, augment=_two_views)
    assert train.image_shape == (12, 12, 6)
    model = Views()
    model(np.zeros((1, 12, 12, 3)))
    model.compile(jit_compile=False)
    history = ims.fit(model, train, steps_per_epoch=2, verbose=0).history
    assert history["loss"][0] == pytest.approx(0.0, abs=1e-4)


def test_terminate_on_nan_ends_quietly_and_nan_weights_are_not_saved(train, tmp_path, capsys):
    def fit(*callbacks: Any) -> Any:
        model = linear()

        def explode(batch: int, logs: Any) -> None:
            if batch == 1:
                model.optimizer.learning_rate = float("inf")

        explodes = LambdaCallback(on_train_batch_begin=explode)
        options: dict[str, Any] = {"checkpoint_dir": tmp_path, "checkpoint_steps": 1, "verbose": 0}
        return ims.fit(model, train, epochs=4, callbacks=[explodes, *callbacks], **options)

    assert len(fit(keras.callbacks.TerminateOnNaN()).history["loss"]) < 4
    told = capsys.readouterr().err
    assert told.count("became infinite or not a number between the steps 2 and 2 (last good") == 1
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000001.npz"]
    with refused("", "learning rate", "the steps 2 and 2") as caught:
        fit()
    assert "--" not in str(caught.value)


@pytest.mark.long
def test_keras_fit_works_before_and_after(data: Any, train: Any) -> None:
    model, waiting = linear(SGD(0.01, clipnorm=1.0)), ims.WaitingTime(8)
    validation = data.evaluation(batch_size=8)
    steps = {"steps_per_epoch": 2, "verbose": 0}
    model.fit(train.dataset(), **steps)
    own = model.train_function
    # As Ctrl-C in a notebook.
    pressed = LambdaCallback(on_train_batch_end=lambda _, logs: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        ims.fit(model, train, callbacks=[waiting, pressed], verbose=0)
    found = ims.fit(model, train, validation_data=validation, callbacks=[waiting], verbose=0)
    assert np.isfinite(found.history["val_loss"]).all() and found.history["accuracy"]
    assert found.history["images_per_second"][0] > 0 and 0 <= found.history["wait_fraction"][0] <= 1
    assert model.train_function is own
    found = model.fit(train.dataset(), **steps)
    assert np.isfinite(found.history["loss"]).all()


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.one_row
def test_a_signal_at_the_end_of_an_epoch_waits_for_no_further_step(train, tmp_path, epochs):
    stops = LambdaCallback(on_epoch_end=lambda *_: signal.raise_signal(signal.SIGTERM))
    options: dict[str, Any] = {"epochs": epochs, "steps_per_epoch": 1, "verbose": 0}
    with pytest.raises(KeyboardInterrupt, match="^SIGTERM: saved; .* to resume after step 1"):
        ims.fit(linear(), train, checkpoint_dir=tmp_path, callbacks=[stops], **options)


def test_hooks_end_before_a_checkpoint_reads_the_state_of_callbacks(train: Any) -> None:
    threads: set[int] = set()
    watching = LambdaCallback(on_train_batch_end=lambda _, logs: threads.add(threading.get_ident()))
    watching.async_safe = True  # Keras may call its hooks beside the training
    ims.fit(linear(), train, callbacks=[watching], steps_per_epoch=2, verbose=0)
    assert threads == {threading.get_ident()}


def test_a_run_that_a_callback_ended_says_how_to_go_on(train, tmp_path, capsys):
    model, run = linear(), tmp_path / "run"

    def fit(epochs: int, **more: Any) -> Any:
        options = {"steps_per_epoch": 1, "checkpoint_dir": run, "verbose": 0, **more}
        history = ims.fit(model, train, epochs=epochs, callbacks=[StopAfter()], **options)
        return history.epoch, capsys.readouterr().err

    assert fit(5) == ([0, 1], "")
    epochs, said = fit(6)
    assert epochs == [0, 1] and "after step 2 of 6, so nothing is trained" in said
    assert "start over with overwrite=True" in said
    assert fit(6, checkpoint_dir=tmp_path / "more", initial_epoch=2) == ([2, 3, 4, 5], "")
    assert fit(6, overwrite=True) == ([0, 1], "")


def test_a_run_without_a_step_keeps_the_weights_that_have_no_average_yet(train):
    model = linear(SGD(0.1, use_ema=True))
    before = model.get_weights()
    ims.fit(model, train, epochs=2, initial_epoch=2, verbose=0)
    assert all(map(np.array_equal, before, model.get_weights()))


def test_places_below_home_are_found(train, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    # A number of NumPy is one of Python's.
    given: dict[str, Any] = dict.fromkeys(("epochs", "steps_per_epoch"), np.int64(1))
    given |= {"validation_freq": np.int64(1), "checkpoint_dir": "~/run"}
    ims.fit(linear(), train, callbacks=[ims.MetricsFile("~/metrics.jsonl")], verbose=0, **given)
    assert [*tmp_path.glob("run/checkpoints/*.npz")] and (tmp_path / "metrics.jsonl").exists()
