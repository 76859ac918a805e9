"""What the tests of GPUs do inside one process: `python -m tests.gpu.scenarios NAME …`.

The last printed line is a JSON value. TensorFlow allows one strategy over several devices in each
process.
"""

import json
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import imageshards as ims
from tests.support.tiny_models import linear
from trainer.models.metrics import Accuracy
from trainer.models.optimizer import CrossEntropy
from trainer.models.strategy import shared_strategy

GPU = "/GPU:0"


def _strategy(kind: str) -> Any:
    if kind == "mirrored":
        return tf.distribute.MirroredStrategy()
    return tf.distribute.OneDeviceStrategy(GPU) if kind == "one" else tf.distribute.get_strategy()


def fit(data: str, *kinds: str) -> Any:
    """The history of `ims.fit` in each kind of strategy, and what evaluation and Keras say."""
    opened, found = ims.open(data), {}
    train = opened.train(batch_size=8, augment="none", seed=1)
    val = opened.evaluation(batch_size=8)
    for kind in kinds:
        with (strategy := _strategy(kind)).scope():
            model = linear("sgd")
        history = ims.fit(model, train, validation_data=val, epochs=2, verbose=0).history
        parts = [getattr(v.value, "values", (v.value,)) for v in model.variables]
        devices = {part.device[-5:] for of_one in parts for part in of_one}
        found[kind] = history | {"devices": sorted(devices), "evaluate": ims.evaluate(model, val)}
        # A saved model would be evaluated in the same strategy, not in another one beside it.
        replicas = strategy.num_replicas_in_sync
        found[kind]["shares"] = replicas == 1 or shared_strategy(None, 8) is strategy
        passes: Any = {"steps_per_epoch": 2, "validation_data": val.dataset(), "verbose": 0}
        found[kind]["keras"] = sorted(model.fit(train.dataset(), **passes).history)
    return found


def two_strategies(data: str) -> Any:
    """What `ims.fit` says of models that were made in two strategies, of one form and of two."""
    train, said = ims.open(data).train(batch_size=8, augment="none"), []
    for more in ([], [], [keras.layers.Dense(5)]):
        with _strategy("mirrored").scope():
            model = linear("sgd", *more)
        try:
            ims.fit(model, train, steps_per_epoch=2, verbose=0)
            said.append("")
        except ims.UserError as e:
            said.append(str(e))
    return said


class Steps(keras.callbacks.Callback):
    """Notes when epochs, steps, validations and their batches begin, in µs; reads no logs."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[str, list[int]] = {}

    def _note(self, name: str) -> None:
        self.times.setdefault(name, []).append(time.monotonic_ns() // 1000)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._note("epoch")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._note("step")

    def on_test_begin(self, logs: Any = None) -> None:
        self._note("validation")

    def on_test_end(self, logs: Any = None) -> None:
        self._note("validated")


def _convolutions() -> keras.Model:
    """A network for pictures of 64 px, whose convolution may keep a fake GPU busy."""
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(4, 3, 8)]
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((64, 64, 3)), *layers])
    # Keras's own accuracy copies a mask of the logits to the host and back.
    model.compile("sgd", CrossEntropy(3), weighted_metrics=[Accuracy()], jit_compile=False)
    return model


def traced(data: str, kind: str, augment: str, augment_on: str, steps: str, batches: str) -> Any:
    """When the parts of two epochs of `ims.fit` begin; a trace has what the devices do."""
    opened = ims.open(data)
    train = opened.train(batch_size=8, augment=augment, augment_on=augment_on, image_size=64)
    val = opened.evaluation(batch_size=int(batches), image_size=64)
    with _strategy(kind).scope():
        model = _convolutions()
    noted = Steps()
    ims.fit(
        model, train, validation_data=val, epochs=2, steps_per_epoch=int(steps), verbose=0,
        callbacks=[noted],
    )  # fmt: skip
    return noted.times


def waiting(data: str, kind: str, fetch_ms: str, reads: str, cache: str = "none") -> Any:
    """The figures of an epoch whose batches come every `fetch_ms`; a callback may read the loss."""
    opened = ims.open(data)

    def slowly(image: Any, label: Any) -> Any:
        def wait(label: np.ndarray) -> np.ndarray:
            time.sleep(int(fetch_ms) / 1000)
            return label

        same = tf.numpy_function(wait, [label], label.dtype, stateful=False)
        return image, tf.ensure_shape(same, label.shape)

    asked: Any = {"cache": cache, "cache_folder": f"{data}-cache"} if cache != "none" else {}
    train = opened.train(batch_size=8, augment="none", image_size=64, threads=1, **asked)
    train = train.map(slowly)
    with _strategy(kind).scope():
        model = _convolutions()
    noted, figures = Steps(), ims.WaitingTime(8)
    read = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: logs["loss"])
    callbacks = [figures, noted, *[read] * (reads == "reads")]
    history = ims.fit(model, train, steps_per_epoch=12, epochs=2, verbose=0, callbacks=callbacks)
    return {"times": noted.times, **history.history}


def augmented(data: str, augment: str) -> Any:
    """How far the pictures of the GPU are from those of the host, and their labels."""
    asked: Any = {"batch_size": 8, "seed": 3, "image_size": 48, "augment": augment}
    opened = ims.open(data)
    train = opened.train(**asked, augment_on="device")
    (shipped,) = train.batches().take(1)
    with tf.device(GPU):
        made = tf.function(train.augmentation.device)(shipped)
    image, label = made["inputs"]["image"], made["label"]
    ((images, labels),) = opened.train(**asked).dataset().take(1).as_numpy_iterator()
    difference = np.abs(image.numpy().astype(int) - images.astype(int)).mean()
    off = np.abs(label.numpy().astype(float) - labels).max()
    return {"device": image.device[-5:], "pixels": float(difference), "labels": float(off)}


class Finder(keras.Model):
    """Finds one box: its `train_step` takes boxes as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(4)
        self.distance = keras.metrics.Mean(name="loss")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.layer(keras.ops.mean(keras.ops.cast(x, "float32") / 255, (1, 2)))

    def train_step(self, data: Any) -> Any:
        x, boxes, _ = data
        with tf.GradientTape() as tape:
            distance = tf.reduce_mean(tf.abs(self(x) - boxes["boxes"][:, 0]))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(distance, variables), variables)
        self.distance.update_state(distance)
        return {"loss": self.distance.result()}


def boxes(data: str, kind: str) -> Any:
    """The losses of a model of boxes that move on the host, and on the device."""
    losses, models = [], []
    with _strategy(kind).scope():
        for _ in range(2):
            keras.utils.set_random_seed(3)
            models.append(Finder())
            models[-1](np.zeros((1, 16, 16, 3)))
            models[-1].compile("sgd", jit_compile=False)
    for model, side in zip(models, ("host", "device"), strict=True):
        train = ims.open(data).train(
            batch_size=8, target="bounding_boxes", augment="light", augment_on=side,
            sequence_length=3, min_box_visibility=0.0,
        )  # fmt: skip
        losses.append(ims.fit(model, train, steps_per_epoch=3, verbose=0).history["loss"][0])
    return losses


def serve(folder: str, *files: str) -> Any:
    """What a served model says of pictures, in a process that sees a GPU or none."""
    loaded = tf.saved_model.load(folder)
    encoded = [tf.io.read_file(file) for file in files]
    said = loaded.signatures["serving_default"](image_bytes=tf.stack(encoded))
    return said["probabilities"].numpy().tolist()


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
