"""Models of a user's own, right and wrong: `--model tests.support.tiny_models:NAME`."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from keras import layers


def dense(inputs: Mapping[str, Any], num_classes: int) -> Any:
    """Everything that has a state of its own: matrices, statistics, dropout, a 4-D kernel."""
    x = layers.Flatten()(layers.Conv2D(4, 3, strides=4)(inputs["image"]))
    x = layers.BatchNormalization()(layers.Dense(8)(x))
    x = layers.Dropout(0.3)(layers.ReLU()(x))
    x = layers.Dense(8, activation="relu")(x)
    return layers.Dense(num_classes)(x)


def plain(inputs: Mapping[str, Any], num_classes: int) -> Any:
    return layers.Dense(num_classes)(layers.Flatten()(inputs["image"]))


def sequential(inputs: Mapping[str, Any], num_classes: int) -> keras.Model:
    """A model that is built when it is called."""
    return keras.Sequential([layers.Flatten(), layers.Dense(num_classes)])


def whole_model(inputs: Mapping[str, Any], num_classes: int) -> keras.Model:
    branches = [layers.Flatten()(tensor) for tensor in inputs.values()]
    return keras.Model(dict(inputs), layers.Dense(num_classes)(layers.Concatenate()(branches)))


def with_gap(inputs: Mapping[str, Any], num_classes: int) -> Any:
    branches = [layers.Flatten()(inputs["image"]), layers.Reshape((1,))(inputs["gap"])]
    return layers.Dense(num_classes)(layers.Concatenate()(branches))


def probabilities(inputs: Mapping[str, Any], num_classes: int) -> Any:
    return layers.Dense(num_classes, activation="softmax")(layers.Flatten()(inputs["image"]))


def probabilities_in_a_model(inputs: Mapping[str, Any], num_classes: int) -> keras.Model:
    return keras.Model(inputs["image"], probabilities(inputs, num_classes))


class Contrastive(keras.Model):
    """Makes no logits, needs no labels: two views of a picture are to be near each other."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = layers.Flatten()
        self.embed = layers.Dense(4)
        self.distance = keras.metrics.Mean(name="distance")

    def preprocess_samples(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """What KerasHub's models have: here pictures are halved."""
        return keras.ops.cast(x, "float32")[:, ::2, ::2] / 255.0, y, sample_weight

    def call(self, x: Any, training: bool = False) -> Any:
        return self.embed(self.flat(x))

    def _distances(self, data: Any) -> Any:
        one, other = self(data[0]), self(keras.ops.flip(data[0], 2))
        return keras.ops.sum(keras.ops.square(one - other), -1)

    def train_step(self, data: Any) -> Any:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with tf.GradientTape() as tape:
            distances = self._distances(data)
            loss = keras.ops.mean(distances) / replicas
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.distance.update_state(distances)
        return {"distance": self.distance.result()}

    def test_step(self, data: Any) -> Any:
        self.distance.update_state(self._distances(data), sample_weight=data[2])
        return {"distance": self.distance.result()}


def contrastive(inputs: Mapping[str, Any], num_classes: int) -> keras.Model:
    model = Contrastive()
    model.compile(optimizer=keras.optimizers.SGD(0.01), jit_compile=False)
    return model


def compiled(inputs: Mapping[str, Any], num_classes: int) -> keras.Model:
    """A classifier as Keras's guides have it: probabilities, and a layer that is not registered."""
    picture = keras.Input(inputs["image"].shape[1:], dtype="uint8")
    x = Halved()(layers.Flatten()(layers.Rescaling(1 / 255)(picture)))
    model = keras.Model(picture, layers.Dense(num_classes, activation="softmax")(x))
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(0.01), loss, weighted_metrics=["accuracy"])
    return model


def linear(optimizer: Any = "sgd", *more: layers.Layer, **options: Any) -> keras.Model:
    """Compiled: `more` layers, then logits of three classes; it begins the same each time."""
    keras.utils.set_random_seed(3)
    pixels = [keras.Input((12, 12, 3)), layers.Rescaling(1 / 255), layers.Flatten()]
    penalty = options.pop("penalty", None)
    logits = layers.Dense(3, kernel_regularizer=penalty, activity_regularizer=penalty)
    model = keras.Sequential([*pixels, *more, logits])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"jit_compile": False, "weighted_metrics": ["accuracy"]} | options
    model.compile(optimizer, loss, **options)
    return model


class Halved(layers.Layer):
    def call(self, x: Any) -> Any:
        return x / 2


class StopAfter(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.stop_training = True
            print("enough:", sorted(logs or {}))


def callbacks() -> list[keras.callbacks.Callback]:
    return [StopAfter(), keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9.0)]


class ZerosAtTheEnd(keras.callbacks.Callback):
    def on_train_end(self, logs: Any = None) -> None:
        for variable in self.model.trainable_variables:
            variable.assign(keras.ops.zeros_like(variable))


def zeros_at_the_end() -> list[keras.callbacks.Callback]:
    return [ZerosAtTheEnd()]


def broken_callbacks() -> list[Any]:
    return [StopAfter(), "early"]
