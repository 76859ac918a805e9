"""`ims.fit` refuses what would fail later, and leaves the model to Keras as it was."""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import threading
import types
from typing import Any

import numpy as np
import pytest

import imageshards as ims
from imageshards.errors import UserError
from tests.support import tiny_models
from tests.support.errors import refused

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402

from trainer.models import optimizer, strategy  # noqa: E402
from trainer.training.fit import _check  # noqa: E402
from trainer.training.output_folder import hold_output  # noqa: E402
from trainer.training.saved_run import SavedRun  # noqa: E402


@pytest.fixture(scope="module")
def data(shapes: pathlib.Path) -> Any:
    return ims.open(shapes)


@pytest.fixture(scope="module")
def train(data: Any) -> Any:
    return data.train(batch_size=8)


def compiled(optimizer: Any = "sgd") -> keras.Model:
    picture = keras.Input((12, 12, 3))
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(picture))
    # Its penalty is another one for every batch.
    x = keras.layers.Dense(4, activity_regularizer="l2")(x)
    model = keras.Model(picture, keras.layers.Dense(3, kernel_regularizer="l2")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, weighted_metrics=["accuracy"], jit_compile=False)
    return model


@pytest.fixture(scope="module")
def wrong(shapes: pathlib.Path, data: Any) -> types.SimpleNamespace:
    """What is not meant."""
    made_later = compiled()
    made_later.second = keras.optimizers.Adam()
    return types.SimpleNamespace(
        classes=data.evaluation(batch_size=8, classes=["square", "circle"]),
        without_source=data.train(batch_size=8, augment=eval("lambda *given: given[:2]")),
        mapped=data.train(batch_size=8).map(eval("lambda *given: given")),
        made_later=made_later,
        balanced=data.train(batch_size=8, balance="weights"),
        backup=keras.callbacks.BackupAndRestore("backup.weights.h5"),
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t, w: {"epochs": 0}, "epochs received 0"),
        (lambda t, w: {"epochs": "3"}, "epochs received '3'"),
        (
            lambda t, w: {"initial_epoch": -1},
            "initial_epoch received -1",
        ),
        (lambda t, w: {"steps_per_epoch": 0}, "steps_per_epoch received 0"),
        (lambda t, w: {"validation_freq": 0}, "validation_freq received 0"),
        (lambda t, w: {"validation_freq": ["1"]}, "validation_freq received '1'"),
        (
            lambda t, w: {"class_weight": {0: 1, 2: 1}},
            "class_weight received {0: 1, 2: 1}",
        ),
        (lambda t, w: {"class_weight": {0: 1, 1: 1, 2: -1}}, "class_weight received .*-1"),
        (
            lambda t, w: {"train": w.balanced, "class_weight": {0: 1}},
            "class_weight received .* balance='weights'",
        ),
        (lambda t, w: {"callbacks": w.backup}, "callbacks received Backup"),
        (lambda t, w: {"checkpoint_steps": 0}, "checkpoint_steps received 0"),
        (lambda t, w: {"keep_checkpoints": 0}, "keep_checkpoints received 0"),
        (
            lambda t, w: {"checkpoint_dir": "nowhere://run"},
            "checkpoint_dir .*'nowhere://run'",
        ),
        (lambda t, w: {"train": t.dataset()}, r"train received \w+; expected .*\.train\(…\)"),
        (lambda t, w: {"validation_data": t}, r"validation_data received \w+; .*\.evaluation\(…\)"),
        (
            lambda t, w: {"validation_data": w.classes},
            "validation_data received .*square, circle",
        ),
        (lambda t, w: {"model": keras.Sequential()}, "model received .*not compiled"),
        (
            lambda t, w: {"model": tf.Module()},
            "model received tensorflow",
        ),
        (
            lambda t, w: {"train": w.without_source, "checkpoint_dir": "RUN"},
            "augment received <lambda>",
        ),
        (
            lambda t, w: {"train": w.mapped, "checkpoint_dir": "RUN"},
            "map received <lambda>",
        ),
        (
            lambda t, w: {"model": w.made_later, "checkpoint_dir": "RUN"},
            "model received .*'second'",
        ),
        (
            lambda t, w: {"checkpoint_dir": "HELD", "overwrite": True},
            "checkpoint_dir .*in use by another",
        ),
        (
            lambda t, w: {"checkpoint_dir": "OTHERS", "overwrite": True},
            r"checkpoint_dir .*thesis\.tex",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_meant_is_refused(
    train: Any, wrong: Any, tmp_path: pathlib.Path, change: Any, sentence: str
) -> None:
    folders = {name: tmp_path / name for name in ("RUN", "HELD", "OTHERS")}
    folders["OTHERS"].mkdir()
    (folders["OTHERS"] / "thesis.tex").write_text("years of work")
    given = {"model": compiled(), "train": train} | change(train, wrong)
    given["checkpoint_dir"] = folders.get(given.get("checkpoint_dir"), given.get("checkpoint_dir"))
    with hold_output(str(folders["HELD"])), pytest.raises(UserError, match=f"^{sentence}"):
        ims.fit(**given)
    assert [path.name for path in folders["OTHERS"].iterdir()] == ["thesis.tex"]


def test_an_uneven_batch_another_keras_and_another_backend_are_refused(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("batch_size", "8", "3 replicas"):
        _check(compiled(), train, None, 3)
    monkeypatch.setattr(keras, "__version__", "3.16.0")
    with refused("", "3.16.0", "3.15", "pip install 'keras=="):
        ims.fit(compiled(), train)
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with refused("KERAS_BACKEND", "'jax'"):
        ims.fit(compiled(), train)


def test_keras_with_channels_first_is_told_that_pictures_have_them_last(
    train: Any, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = compiled()
    monkeypatch.setattr(keras.config, "image_data_format", lambda: "channels_first")
    said = "Keras's image_data_format is 'channels_first'"
    with refused("", said, "set_image_data_format"):
        ims.fit(model, train)
    for described in (train, data.evaluation(batch_size=8)):
        with pytest.warns(UserWarning, match=said) as warned:
            described.dataset()
        # `warned` also holds what the garbage collector warns of, wherever it happens to run
        places = [each.filename for each in warned if said in str(each.message)]
        assert places == [__file__]


@pytest.mark.parametrize(
    ("optimizer", "jit_compile", "sentence"),
    [
        ({"gradient_accumulation_steps": 2}, False, "gradient_accumulation_steps=2"),
        (
            {"use_ema": True, "ema_overwrite_frequency": 3},
            False,
            "ema_overwrite_f",
        ),
        ({}, True, "jit_compile"),
        ({"clipnorm": 1.0, "loss_scale": True}, False, "clipping and float16"),
    ],
)
def test_what_keras_does_otherwise_on_several_replicas_is_refused_there_only(
    train: Any, optimizer: dict[str, Any], jit_compile: bool, sentence: str
) -> None:
    scaled = optimizer.pop("loss_scale", False)
    made: Any = keras.optimizers.SGD(**optimizer)
    model = compiled(keras.optimizers.LossScaleOptimizer(made) if scaled else made)
    model.jit_compile = jit_compile
    _check(model, train, None, 1)
    with refused("replicas", "the strategy of model received 2", sentence):
        _check(model, train, None, 2)


def test_xla_on_several_gpus_is_said_to_be_untested(
    train: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = compiled()
    model.jit_compile = True
    monkeypatch.setattr(optimizer, "gpu_count", lambda: 2)
    _check(model, train, None, 2)
    note = "note: jit_compile on 2 replicas is untested on GPUs\n"
    assert capsys.readouterr().err == note
    _check(model, train, None, 1)
    assert not capsys.readouterr().err


def test_fit_says_that_a_gpu_is_not_seen(
    train: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(strategy, "NVIDIA_DRIVER", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(strategy, "gpu_count", lambda: 0)
    ims.fit(compiled(), train, steps_per_epoch=1, verbose=0)
    assert "note: TensorFlow sees no GPU of this machine" in capsys.readouterr().err


class Recorder(keras.callbacks.Callback):
    """Every call of a hook, with its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        for name in (name for name in dir(self) if name.startswith("on_")):
            setattr(self, name, functools.partial(self._called, name))

    def _called(self, name: str, *numbers: Any, logs: Any = None) -> None:
        if numbers and not isinstance(numbers[-1], int):
            numbers, logs = numbers[:-1], numbers[-1]
        self.calls.append((name, numbers, logs or {}, dict(self.params)))


def test_hooks_are_called_as_keras_calls_them(data: Any, train: Any) -> None:
    # Five batches to validate, of which none is filled up.
    validation = data.evaluation(batch_size=1)
    ours, theirs = Recorder(), Recorder()
    for recorder in (ours, theirs):
        keras.utils.set_random_seed(3)
        model = compiled()
        options: dict[str, Any] = {"callbacks": [recorder], "verbose": 0}
        if recorder is ours:
            ims.fit(model, train, validation_data=validation, **options)
        else:
            options |= {"steps_per_epoch": 2, "validation_data": validation.dataset()}
            model.fit(train.dataset(), **options)
    assert [call[:2] for call in ours.calls] == [call[:2] for call in theirs.calls]
    for mine, other in zip(ours.calls, theirs.calls, strict=True):
        assert mine[2] == pytest.approx(other[2], rel=1e-5), mine[0]
        assert mine[3] == other[3]


class Explodes(keras.callbacks.Callback):
    """The second step ends in weights that are no numbers."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            self.model.optimizer.learning_rate = float("inf")


def test_terminate_on_nan_ends_quietly_and_what_is_no_number_is_not_saved(
    train: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(*callbacks: Any) -> Any:
        options: dict[str, Any] = {"checkpoint_dir": tmp_path, "checkpoint_steps": 1, "verbose": 0}
        return ims.fit(compiled(), train, epochs=4, callbacks=[Explodes(), *callbacks], **options)

    history = fit(keras.callbacks.TerminateOnNaN()).history
    assert len(history["loss"]) < 4
    told = capsys.readouterr().err
    assert told.count("became infinite or not a number between the steps 2 and 2 (last good") == 1
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000001.npz"]
    with refused("", "learning rate", "the steps 2 and 2") as caught:
        fit()
    assert "--" not in str(caught.value)


def test_keras_fit_works_before_and_after(data: Any, train: Any) -> None:
    model, waiting = compiled(keras.optimizers.SGD(0.01, clipnorm=1.0)), ims.WaitingTime(8)
    validation = data.evaluation(batch_size=8)
    steps = {"steps_per_epoch": 2, "verbose": 0}
    model.fit(train.dataset(), **steps)
    own = model.train_function
    with pytest.raises(KeyboardInterrupt):
        ims.fit(model, train, callbacks=[waiting, Interrupts()], verbose=0)
    found = ims.fit(model, train, validation_data=validation, callbacks=[waiting], verbose=0)
    assert np.isfinite(found.history["val_loss"]).all() and found.history["accuracy"]
    assert found.history["images_per_second"][0] > 0 and 0 <= found.history["wait_fraction"][0] <= 1
    assert model.train_function is own
    found = model.fit(train.dataset(), **steps)
    assert np.isfinite(found.history["loss"]).all()


class Interrupts(keras.callbacks.Callback):
    """As Ctrl-C in a notebook."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        raise KeyboardInterrupt


class StopsAtEnd(keras.callbacks.Callback):
    """A signal comes when an epoch is over."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_signal_at_the_end_of_an_epoch_waits_for_no_further_step(
    train: Any, tmp_path: pathlib.Path, epochs: int
) -> None:
    options: dict[str, Any] = {"epochs": epochs, "steps_per_epoch": 1, "verbose": 0}
    with pytest.raises(KeyboardInterrupt, match="^SIGTERM: saved; .* to resume after step 1"):
        ims.fit(compiled(), train, checkpoint_dir=tmp_path, callbacks=[StopsAtEnd()], **options)


class Remembers(keras.callbacks.Callback):
    """Plain values of every kind."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


class Forgets(keras.callbacks.Callback):
    """Has an attribute, and no way to tell that it is to be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0


def test_what_callbacks_remember_is_restored_or_said_to_be_forgotten(
    tmp_path: pathlib.Path, train: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = compiled()
    model._symbolic_build(data_batch=train.element_spec)
    by_epoch = {3: [0.5], "arrays": [np.arange(3), {"one": np.float32(1.5)}]}

    def watching(*callbacks: Any, network: keras.Model = model) -> SavedRun:
        saved = SavedRun(str(tmp_path), 1, 1, {})
        saved.attach(network, callbacks)
        return saved

    stopping, again = (keras.callbacks.EarlyStopping("loss", mode="min") for _ in range(2))
    stopping.wait, stopping.best, stopping.best_weights = 3, np.float32(0.5), [np.ones(2)]
    with watching(Remembers(steps=2, name="x", by_epoch=by_epoch), Forgets(), stopping) as saved:
        saved.save()
    other, silent = Remembers(), tiny_models.StopAfter()
    watching(other, Forgets(), silent, again).restore()
    assert (again.wait, again.best) == (3, 0.5) and again.best_weights[0].tolist() == [1, 1]
    np.testing.assert_equal(other.values, {"steps": 2, "name": "x", "by_epoch": by_epoch})
    told = capsys.readouterr().err
    assert told.startswith("note: Forgets begins anew, as it has no state_dict()")
    assert told.count("\n") == 1
    with refused("callbacks", "Remembers", "set among its"):
        unsaved = watching(Remembers(seen={1}))
        unsaved.state.step = 1
        unsaved.save()
    another = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    another.compile("sgd", "mse")
    with refused("output", "another output"):
        watching(network=another).restore()


class Threads(keras.callbacks.Callback):
    """Those that its hooks are called in; Keras may call them beside the training."""

    async_safe = True

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.add(threading.get_ident())


def test_a_hook_has_ended_before_a_checkpoint_asks_what_its_callback_remembers(train: Any) -> None:
    threads = Threads()
    ims.fit(compiled(), train, callbacks=[threads], steps_per_epoch=2, verbose=0)
    assert threads.found == {threading.get_ident()}


def test_a_run_that_a_callback_ended_says_how_to_go_on(
    train: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, run = compiled(), tmp_path / "run"

    def fit(folder: pathlib.Path, epochs: int, **more: Any) -> Any:
        options = {"steps_per_epoch": 1, "checkpoint_dir": folder, "verbose": 0, **more}
        return ims.fit(model, train, epochs=epochs, callbacks=[tiny_models.StopAfter()], **options)

    assert fit(run, 5).epoch == [0, 1]
    assert not capsys.readouterr().err
    assert fit(run, 6).epoch == [0, 1]
    assert capsys.readouterr().err == (
        "note: a callback ended this run in epoch 2, so nothing is trained; go on from its weights "
        "by initial_epoch=2 and another checkpoint_dir, or start over by overwrite=True\n"
    )
    assert fit(tmp_path / "more", 6, initial_epoch=2).epoch == [2, 3, 4, 5]
    assert fit(run, 6, overwrite=True).epoch == [0, 1]
    assert not capsys.readouterr().err


@pytest.mark.parametrize("form", ["~/run", "file://{home}/run", pathlib.Path("~/run")])
def test_checkpoints_go_to_every_form_of_a_place(
    train: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    given = form.format(home=tmp_path) if isinstance(form, str) else form
    ims.fit(compiled(), train, epochs=1, steps_per_epoch=1, verbose=0, checkpoint_dir=given)
    assert [*(tmp_path / "run" / "checkpoints").glob("step-*.npz")]
    metrics = ims.MetricsFile("~/metrics.jsonl")
    ims.fit(compiled(), train, epochs=1, steps_per_epoch=1, verbose=0, callbacks=[metrics])
    assert (tmp_path / "metrics.jsonl").exists()
