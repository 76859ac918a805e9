"""A few steps of training as the loop does them, on one replica or on two.

`python -m tests.support.replica_run REPLICAS CHECK…` prints one JSON object; TensorFlow allows one
strategy per process.
"""

import contextlib
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.support.commands import run_forked
from trainer.config import OptimizerConfig
from trainer.dataset.spec import ImageSpec, ModelInputs

INPUTS = ModelInputs((16, 16), ImageSpec((16, 16), False, 3, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)))
BATCH_SIZE = 8
TOTAL_STEPS = 6
NUM_CLASSES = 3
# With momentum, with two moments, and with steps of a whole matrix.
OPTIMIZERS = ("sgd", "adamw")


def run_checks(replicas: int, *checks: str) -> Any:
    """What another process prints of `checks`."""
    done = run_forked("tests.support.replica_run", replicas, *checks)
    if done.returncode:
        raise AssertionError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def batch(step: int, soft: bool = False) -> tuple[Any, ...]:
    rng = np.random.default_rng(step)
    labels: Any = rng.integers(0, NUM_CLASSES, BATCH_SIZE)
    if soft:
        labels = rng.dirichlet(np.ones(NUM_CLASSES), BATCH_SIZE).astype(np.float32)
    pictures = rng.integers(0, 256, (BATCH_SIZE, 16, 16, 3), np.uint8)
    return pictures, labels, rng.uniform(0.5, 1.5, BATCH_SIZE).astype(np.float32)


def start(strategy, config, name="tests.support.tiny_models:dense"):
    import keras

    from trainer.models import model
    from trainer.models.step import build_variables

    keras.utils.set_random_seed(5)
    with strategy.scope():
        head = model.Head(NUM_CLASSES)
        network = model.build_model(name, INPUTS, head, precision=config.precision)
        model.compile_model(network, head, config, BATCH_SIZE, TOTAL_STEPS)
    build_variables(network, strategy, batch(0))
    return network


def make_step(strategy: Any, network: Any) -> Any:
    from trainer.models.step import make_train_step

    step = make_train_step(network, strategy)
    return lambda one: step({"inputs": {"image": one[0]}, "label": one[1], "weight": one[2]})


def feed(strategy: Any, step: Any, batches: Sequence[tuple[Any, ...]]) -> None:
    """Takes a step with each of `batches`, which are all of one size."""
    import tensorflow as tf

    whole = tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))
    data = tf.data.Dataset.from_tensor_slices(whole).batch(len(batches[0][1]), True)
    for one in strategy.experimental_distribute_dataset(data):
        step(one)


def train(strategy: Any, network: Any, batches: Sequence[tuple[Any, ...]]) -> None:
    feed(strategy, make_step(strategy, network), batches)


@contextlib.contextmanager
def averaged(network: Any) -> Iterator[None]:
    """The weights with which a run validates."""
    from trainer.training.callbacks import AveragedWeights

    callback = AveragedWeights()
    callback.set_model(network)
    callback.on_test_begin()
    yield
    callback.on_test_end()


def values(network: Any) -> Any:
    """Copies of everything that is to be kept: (path, array) of every variable."""
    from trainer.training.saved_run import state_values

    return [(path, array.copy()) for path, array in state_values(network)]


def digest(arrays: Sequence[Any]) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


def weights(network: Any) -> list[float]:
    flat = [variable.numpy().ravel() for variable in network.trainable_variables]
    return [float(x) for x in np.concatenate(flat)]


def continuation(strategy, config, soft=False, rebuild=False):
    """Six steps undisturbed; and the last three again, from the state that was kept after three.

    With `rebuild` the kept state is put into a new model. The same model, which stands at step six,
    takes half the time: any state that was not kept shows there as well.
    """
    from trainer.models.model import state_variables
    from trainer.training.checkpoint import restore

    batches = [batch(step, soft) for step in range(TOTAL_STEPS)]
    network = start(strategy, config)
    step = make_step(strategy, network)
    feed(strategy, step, batches[:3])
    kept = values(network)
    feed(strategy, step, batches[3:])
    straight = digest([array for _, array in values(network)])
    if rebuild:
        network = start(strategy, config)
        step = make_step(strategy, network)
    restore(state_variables(network), kept)
    feed(strategy, step, batches[3:])
    return [straight, digest([array for _, array in values(network)])]


BASE = OptimizerConfig(learning_rate=0.01, warmup_steps=2, schedule="cosine")
AVERAGED = {"weight_decay": 0.1, "ema": 0.9}
SMOOTHED = {"optimizer": "sgd", "label_smoothing": 0.1}
CHANGES: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", **AVERAGED},
    "adamw": {"optimizer": "adamw", **AVERAGED},
    "bfloat16": {"precision": "bfloat16", **SMOOTHED},
    "float16": {"optimizer": "adamw", "precision": "float16", **AVERAGED},
    "plain": SMOOTHED,
    "clipped": {"clipnorm": 0.05, **SMOOTHED},
}
CONFIGS = {name: dataclasses.replace(BASE, **changes) for name, changes in CHANGES.items()}


@contextlib.contextmanager
def _eagerly(is_eager: bool = True) -> Iterator[None]:
    import tensorflow as tf

    tf.config.run_functions_eagerly(is_eager)
    yield
    tf.config.run_functions_eagerly(False)


def _check_same(strategy: Any, name: str) -> Any:
    """The weights after training without dropout, which replicas draw differently."""
    network = start(strategy, CONFIGS[name], "tests.support.replica_run:no_dropout")
    # Two replicas take seconds to trace: `plain` is, the other optimizers take the same steps.
    with _eagerly(name != "plain"):
        train(strategy, network, [batch(step) for step in range(3)])
    return weights(network)


def no_dropout(inputs: Any, num_classes: int) -> Any:
    """`dense` without what replicas do by themselves: dropout, moments of their share."""
    from keras import layers

    class Spare(layers.Layer):
        """Has a weight that gets no gradient."""

        def build(self, shape: Any) -> None:
            self.add_weight(shape=(2,), name="spare")

        def call(self, x: Any) -> Any:
            return x

    # No bias that the statistics take off again: its gradient is noise, which Adam blows up.
    x = layers.Flatten()(layers.Conv2D(4, 3, strides=4, use_bias=False)(inputs["image"]))
    x = layers.BatchNormalization(synchronized=True)(layers.Dense(8, use_bias=False)(x))
    x = Spare()(layers.Dense(8, activation="tanh")(x))
    return layers.Dense(num_classes)(x)


def _check_resume(strategy: Any, name: str) -> Any:
    return continuation(strategy, CONFIGS[name])


def _check_frozen(strategy: Any, name: str) -> Any:
    """The weights after steps in which the head alone, and steps in which everything trained."""
    from trainer.models.freezing import Frozen, schedule_after

    network = start(strategy, CONFIGS[name], "tests.support.replica_run:no_dropout")
    frozen = Frozen(network, "all", 1, schedule_after(CONFIGS[name], BATCH_SIZE, TOTAL_STEPS - 2))
    with _eagerly():
        for epoch in range(2):
            frozen.on_epoch_begin(epoch)
            train(strategy, network, [batch(2 * epoch + step) for step in range(2)])
    return weights(network)


def _check_masks(strategy: Any, name: str) -> Any:
    """The dropout masks of every replica in two steps."""
    import keras
    import tensorflow as tf

    from trainer.models.strategy import separate_replicas

    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=3)
        picture = keras.Input((64,))
        network = keras.Model(picture, layer(picture))
        separate_replicas(network)

    @tf.function
    def draw() -> Any:
        return strategy.run(lambda: network(tf.ones([1, 64]), training=True))

    masks = [strategy.experimental_local_results(draw()) for _ in range(2)]
    return [[mask.numpy().ravel().tolist() for mask in step] for step in masks]


def _check_statistics(strategy: Any, name: str) -> Any:
    """The moving means of every replica after a step, and after they were averaged."""
    from trainer.models.strategy import average_statistics

    network = start(strategy, CONFIGS["plain"])
    (norm,) = [layer for layer in network.layers if hasattr(layer, "moving_mean")]
    with _eagerly():
        train(strategy, network, [batch(0)])
    found = []
    for _ in range(3):
        found.append([part.numpy().tolist() for part in norm.moving_mean.value.values])
        average_statistics(network, lambda name, arrays: arrays)
    return found


def _check_overflow(strategy: Any, name: str) -> Any:
    import keras

    with strategy.scope():
        network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=4.0)
        network.compile(scaled, loss="mse", jit_compile=False)
        network.optimizer.build(network.trainable_variables)
    pictures = np.ones((4, 2), np.float32)
    pictures[3] = np.inf
    train(strategy, network, [(pictures, np.ones((4, 1), np.float32), np.ones(4, np.float32))])
    finite = all(np.isfinite(v.numpy()).all() for v in network.trainable_variables)
    return [bool(finite), float(network.optimizer.dynamic_scale.numpy())]


def _check_augment(strategy: Any, level: str) -> Any:
    """All pictures, labels and weights after augmentation on the device, in one list."""
    import tensorflow as tf

    from tests.support.augment_pictures import batch as pictures_batch
    from tests.support.augment_pictures import smooth_picture
    from trainer.augment import pixels
    from trainer.strengths import Augment

    whole = pictures_batch(np.stack([smooth_picture((40, 48), i) for i in range(8)]), start=16)
    data = tf.data.Dataset.from_tensors(whole).unbatch().batch(8, drop_remainder=True)

    def augment(some: Any) -> Any:
        chosen, pairs = Augment.of(level), pixels.Pairs(NUM_CLASSES, lambda share: 2)
        return pixels.augment_batch(some, chosen, 9, (32, 32), pairs, [127.5] * 3)

    # Not traced, which takes seconds for two replicas: test_augment_batch has graphs of slices.
    distributed = next(iter(strategy.experimental_distribute_dataset(data)))
    shares = strategy.run(augment, args=(distributed,))
    found = [shares["inputs"]["image"], shares["label"], shares["weight"]]
    parts = [strategy.experimental_local_results(value) for value in found]
    image, label, weight = (tf.concat(values, 0).numpy() for values in parts)
    return [*image.ravel().tolist(), *label.ravel().tolist(), *weight.tolist()]


def check(strategy: Any, what: str) -> Any:
    kind, _, name = what.partition(":")
    return globals()[f"_check_{kind}"](strategy, name)


if __name__ == "__main__":
    from trainer.models.strategy import make_strategy

    chosen = make_strategy(int(sys.argv[1]), BATCH_SIZE)
    print(json.dumps({what: check(chosen, what) for what in sys.argv[2:]}))
