"""What Keras's callbacks and arguments do in `Model.fit` they do in `ims.fit`, on the same batches.

The ideas are those of Keras's own tests of its callbacks.
"""

import functools
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import callbacks
from keras.optimizers import SGD, Adam

import imageshards as ims
from imageshards.errors import UserError
from tests.support.errors import refused
from tests.support.tiny_models import linear
from tests.support.trainer_data import make_dataset, rewrite_shard

pytestmark = pytest.mark.slow

EPOCHS, STEPS = 4, 4


class Counts(keras.layers.Layer):
    """Counts its calls in training, as the canary of Keras's tests of BackupAndRestore."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1)
        return x


def compiled(optimizer: Any = None, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(3)  # before its random layer is made
    return linear(optimizer or SGD(0.05), Counts(), keras.layers.Dropout(0.2), **options)


class Recorder(keras.callbacks.Callback):
    """Every call of a hook: its name, its numbers, the names of its figures, and `params` then."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.figures: list[float] = []
        for name in (name for name in dir(self) if name.startswith("on_")):
            setattr(self, name, functools.partial(self._called, name))

    def _called(self, name: str, *numbers: Any, logs: Any = None) -> None:
        if numbers and not isinstance(numbers[-1], int):
            numbers, logs = numbers[:-1], numbers[-1]
        self.calls.append((name, numbers, [*(logs or {})], dict(self.params)))
        self.figures += (logs or {}).values()


def _written(folder: pathlib.Path) -> list[Any]:
    """The files of callbacks; of logs the first column, of events the figures and their steps."""
    found: list[Any] = []
    for path in sorted(folder.rglob("*.*")):
        if path.suffix == ".csv":
            found += [line.partition(",")[0] for line in path.read_text().splitlines()]
        elif path.suffix == ".v2":
            for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
                event = tf.compat.v1.Event.FromString(record)
                found += [(path.parent.name, one.tag, event.step) for one in event.summary.value]
        else:
            found.append(path.name)
    return found


def _saver(folder: pathlib.Path, name: str, **options: Any) -> keras.callbacks.Callback:
    path = folder / f"{name}.weights.h5"
    return keras.callbacks.ModelCheckpoint(path, save_weights_only=True, **options)


# Options of a model; and callbacks that do not meet, and write to a folder.
CASES: dict[str, Callable[[pathlib.Path], list[Any]]] = {
    "EarlyStopping": lambda folder: [
        {},
        callbacks.EarlyStopping(
            "loss", mode="max", patience=1, restore_best_weights=True, start_from_epoch=1
        ),
    ],
    "ReduceLROnPlateau, ModelCheckpoint, TensorBoard": lambda folder: [
        {},
        callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=9.0, cooldown=1),
        _saver(folder, "best-{epoch}-{val_loss:.3f}", save_best_only=True),
        _saver(folder, "step-{epoch}-{batch}", save_freq=3),
        callbacks.TensorBoard(folder / "events", update_freq=2, write_graph=False),
    ],
    "LearningRateScheduler, CSVLogger, SwapEMAWeights": lambda folder: [
        # The penalty of the outputs is another one for every batch.
        {"penalty": "l2", "optimizer": Adam(0.01, use_ema=True, ema_momentum=0.6)},
        callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
        callbacks.CSVLogger(folder / "log.csv"),
        callbacks.SwapEMAWeights(swap_on_epoch=True),
    ],
    "TerminateOnNaN": lambda folder: [{"optimizer": SGD(1e38)}, callbacks.TerminateOnNaN()],
}


@pytest.fixture(scope="module")
def batches(data: Any, train: Any) -> tuple[Any, Any]:
    """The same for Keras: to train on, without end, and to validate."""
    stacked = zip(*itertools.islice(train.as_numpy(), EPOCHS * STEPS), strict=False)
    endless = tf.data.Dataset.from_tensor_slices(tuple(map(np.stack, stacked))).repeat()
    # Five batches, of which none is filled up.
    return endless, data.evaluation(batch_size=1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_row
def test_callbacks_act_as_in_keras_fit(train, batches, tmp_path, case):
    found = []
    for name in ("ours", "theirs"):
        (folder := tmp_path / name).mkdir()
        of_model, *given = CASES[case](folder)
        model, recorder = compiled(**of_model), Recorder()
        options: dict[str, Any] = {"steps_per_epoch": STEPS, "epochs": EPOCHS, "verbose": 0}
        options["callbacks"] = [*given, recorder]
        if name == "ours":
            history = ims.fit(model, train, validation_data=batches[1], **options)
        else:
            history = model.fit(batches[0], validation_data=batches[1].dataset(), **options)
        found.append((history, recorder, _written(folder)))
    (ours, mine, written), (theirs, other, expected) = found
    assert (ours.epoch, [*ours.history], written) == (theirs.epoch, [*theirs.history], expected)
    assert (len(ours.epoch) < EPOCHS) == (case in ("EarlyStopping", "TerminateOnNaN"))
    assert mine.calls == other.calls
    assert mine.figures == pytest.approx(other.figures, rel=1e-5, nan_ok=True)
    _check_close(ours, theirs)


HOOKS = "train_begin epoch_begin train_batch_begin train_batch_end test_begin test_batch_begin"
HOOKS += " test_batch_end test_end epoch_end train_end"


def _at(hooks: str, act: Callable[[int], None]) -> keras.callbacks.Callback:
    """Calls `act` with the number of each call of these hooks."""
    numbers, callback = itertools.count(), keras.callbacks.Callback()
    for hook in hooks.split():
        setattr(callback, f"on_{hook}", lambda *_, **__: act(next(numbers)))
    return callback


def _compare_to_keras(train: Any, batches: Any, make: Callable[[keras.Model], Any]) -> None:
    """Trains two epochs with a callback here and in Keras, and compares."""
    options: dict[str, Any] = {"steps_per_epoch": 2, "epochs": 2, "verbose": 0}
    (endless, _), (model, other) = batches, (linear(SGD(0.05), run_eagerly=True) for _ in range(2))
    valid = ims.open(train.subset.dataset.data).evaluation(batch_size=5)
    ours = ims.fit(model, train, validation_data=valid, callbacks=[make(model)], **options)
    options |= {"validation_data": valid.dataset(), "callbacks": [make(other)]}
    theirs = other.fit(endless, **options)
    assert ours.epoch == theirs.epoch
    assert int(model.optimizer.iterations) == int(other.optimizer.iterations)
    _check_close(ours, theirs)


STOPS = "train_begin epoch_begin train_batch_end test_begin epoch_end train_end"


@pytest.mark.parametrize("hook", STOPS.split())
@pytest.mark.one_row
def test_a_callback_may_stop_the_training_at_any_hook(train, batches, hook):
    def stops_at_second_call(model: keras.Model) -> Any:
        def stop(call: int) -> None:
            model.stop_training = call == (hook not in ("train_begin", "train_end"))

        return _at(hook, stop)

    _compare_to_keras(train, batches, stops_at_second_call)


def test_the_rate_that_a_callback_sets_at_any_hook_holds_from_the_next_step_on(train, batches):
    def sets_rates(model: keras.Model) -> Any:
        def slow_down(call: int) -> None:
            model.optimizer.learning_rate = 0.05 / (1 + call)

        return _at(HOOKS, slow_down)

    _compare_to_keras(train, batches, sets_rates)


def _check_close(ours: Any, theirs: Any) -> None:
    for figure, values in theirs.history.items():
        assert ours.history[figure] == pytest.approx(values, rel=1e-4, nan_ok=True), figure
    for mine, other in zip(ours.model.get_weights(), theirs.model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_epochs_are_numbered_and_validated_as_keras_does(train: Any, batches: Any) -> None:
    endless, validation = batches
    options: dict[str, Any] = {"steps_per_epoch": 2, "initial_epoch": 1, "epochs": 5, "verbose": 0}
    options["validation_freq"] = [1, 4]
    ours = ims.fit(compiled(), train, validation_data=validation, **options)
    # The stream goes on where the first epoch would have left it.
    theirs = compiled().fit(endless.skip(2), validation_data=validation.dataset(), **options)
    assert ours.epoch == theirs.epoch == [1, 2, 3, 4]
    assert len(ours.history["val_loss"]) == 1
    _check_close(ours, theirs)


def hot(images: Any, labels: Any, seeds: Any) -> tuple[Any, Any]:
    """A mixed label, whose largest share is that of its class."""
    return images, 0.1 + 0.6 * tf.one_hot(labels, 3)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.one_row
def test_class_weight_weighs_as_keras_does(data: Any, mixed: bool) -> None:
    train = data.train(batch_size=8, augment=hot if mixed else "none")
    options: dict[str, Any] = {"steps_per_epoch": 3, "verbose": 0}
    options["class_weight"] = {0: 0.0, 1: 0.5, 2: 3.0}
    ours, theirs = compiled(), compiled()
    if mixed:
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        for model in (ours, theirs):
            model.compile("sgd", loss, weighted_metrics=["accuracy"], jit_compile=False)
    _check_close(ims.fit(ours, train, **options), theirs.fit(train.dataset(), **options))


@pytest.mark.long
def test_a_layer_counts_fifteen_steps_after_a_kill(train, undisturbed, tmp_path):
    options: dict[str, Any] = {"steps_per_epoch": 5, "epochs": 3, "verbose": 0}
    options |= {"checkpoint_dir": tmp_path / "run", "checkpoint_steps": 1}
    files, killed = tmp_path / "files", compiled()

    def kill(batch: int, logs: Any) -> None:
        if int(killed.optimizer.iterations) >= 12:
            raise RuntimeError("killed")

    kills = keras.callbacks.LambdaCallback(on_train_batch_end=kill)
    with pytest.raises(RuntimeError, match="killed"):
        ims.fit(killed, train, callbacks=[*_writers(files), kills], **options)
    model = compiled()
    _check_equal(ims.fit(model, train, callbacks=_writers(files), **options), undisturbed[0])
    for folder in (files, undisturbed[1]):
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["2-2.weights.h5", "3-4.weights.h5"]
    for change, sentence in (
        ({"steps_per_epoch": 4}, "steps_per_epoch received 4, .* with 5"),
        ({"class_weight": {0: 1, 1: 1, 2: 2}}, "class_weight received 1.0,1.0,2.0, but"),
        ({"initial_epoch": 4, "epochs": 5}, "initial_epoch received 4, .* 3 epochs"),
    ):
        with pytest.raises(UserError, match=f"^{sentence}"):
            ims.fit(model, train, **options | change)


def _writers(folder: pathlib.Path) -> list[keras.callbacks.Callback]:
    """What writes files at every seventh step."""
    folder.mkdir(exist_ok=True)
    return [_saver(folder, "{epoch}-{batch}", save_freq=7)]


@pytest.fixture(scope="module")
def undisturbed(train: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, pathlib.Path]:
    """The history of three epochs of five steps, one by one; and the files of its callbacks."""
    files = tmp_path_factory.mktemp("undisturbed")
    options: dict[str, Any] = {"steps_per_epoch": 5, "epochs": 3, "verbose": 0}
    return ims.fit(compiled(), train, callbacks=_writers(files), **options), files


def _check_equal(found: Any, expected: Any) -> None:
    assert int(found.model.layers[2].calls) == int(expected.model.layers[2].calls) == 15
    assert (found.epoch, found.history) == (expected.epoch, expected.history)
    np.testing.assert_equal(found.model.get_weights(), expected.model.get_weights())


def test_steps_are_taken_one_by_one_whatever_the_model_says(train, undisturbed, tmp_path):
    waiting, metrics = ims.WaitingTime(8), ims.MetricsFile(tmp_path / "metrics.jsonl")
    history = ims.fit(
        compiled(steps_per_execution=3), train, callbacks=[metrics, waiting],
        checkpoint_dir=tmp_path / "run", steps_per_epoch=5, epochs=3, checkpoint_steps=4,
        keep_checkpoints=9, verbose=0,
    )  # fmt: skip
    saved = sorted(int(path.name[5:13]) for path in (tmp_path / "run/checkpoints").glob("*.npz"))
    assert saved == [4, 5, 8, 10, 12, 15]
    assert [record["step"] for record in metrics.history] == [5, 10, 15]
    # All but the first step, which traces.
    measured = [history.history.pop(name) for name in ("images_per_second", "wait_fraction")]
    assert (waiting.images, measured[0][0] > 0) == (5 * 8, True)
    _check_equal(history, undisturbed[0])


@pytest.mark.long
def test_broken_records_are_left_out_as_if_they_had_never_been(tmp_path):
    folder = make_dataset(tmp_path / "d", {"train": 22}, num_shards=1, size_px=((12, 12),))
    file = folder / "train-00000-of-00001.tfrecord"
    records = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
    for number in (3, 15):
        records[number] = b""
    rewrite_shard(folder, file.name, records)
    broken = ims.open(folder, skip_broken=2).train(batch_size=8, augment="none")
    options: dict[str, Any] = {"steps_per_epoch": 4, "epochs": 2, "verbose": 0}
    unsaved = ims.fit(compiled(), broken, **options)
    found = ims.fit(compiled(), broken, checkpoint_dir=tmp_path / "run", **options)
    assert (tmp_path / "run" / "broken.json").read_text().count('"reason"') == 2
    assert found.history == unsaved.history
    np.testing.assert_equal(found.model.get_weights(), unsaved.model.get_weights())
    # Keras trains the same on batches that never had these records.
    batches = itertools.islice(broken.as_numpy(), 8)
    without = [tuple(part[weights > 0] for part in one) for *one, weights in batches]
    forms = tuple(tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in without[0])
    generated = tf.data.Dataset.from_generator(lambda: iter(without), output_signature=forms)
    _check_close(unsaved, compiled().fit(generated, **options))
    with refused("data", ", record "):
        refusing = ims.open(folder).train(batch_size=8, augment="none")
        ims.fit(compiled(), refusing, **options)


class Refuses(Counts):
    def call(self, x: Any, training: bool = False) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(self.calls.value, 2)]):
            self.calls.assign_add(1)
            return tf.identity(x)


def test_an_error_inside_a_step_is_not_reported_as_a_broken_record(train: Any) -> None:
    model = linear("sgd", Refuses())
    with pytest.raises(tf.errors.InvalidArgumentError, match="assert"):
        ims.fit(model, train, steps_per_epoch=4, verbose=0)
    assert int(model.layers[2].calls) == 2
