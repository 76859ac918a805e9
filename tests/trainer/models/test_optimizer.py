import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import replica_run
from tests.support.errors import refused
from tests.support.replica_run import averaged
from trainer.config import OPTIMIZERS, OptimizerConfig
from trainer.dataset.spec import MeanStd
from trainer.models import optimizer

IN_DEVIATIONS: dict[str, Any] = {
    "mean_squared_error": np.square,
    "mean_absolute_error": np.abs,
    "huber": lambda errors: np.where(abs(errors) <= 1, errors**2 / 2, abs(errors) - 0.5),
    "log_cosh": lambda errors: np.log(np.cosh(errors)),
}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "linear"}, {0: 1.0, 50: 0.5, 99: 0.01}),
        ({"schedule": "cosine"}, {0: 1.0, 50: 0.5, 25: 0.853553, 99: 0.000247}),
        ({"warmup_steps": 4}, {0: 0.2, 1: 0.4, 3: 0.8, 4: 1.0, 99: 1.0}),
        ({"warmup_steps": 20, "schedule": "cosine"}, {0: 1 / 21, 19: 20 / 21, 20: 1.0, 60: 0.5}),
        ({"scale_learning_rate": True, "accumulate_steps": 4}, {0: 1.0}),
    ],
)
def test_the_learning_rate_of_a_step(options, expected):
    rates = optimizer.make_schedule(OptimizerConfig(learning_rate=1.0, **options), 64, 100)
    assert type(rates).__module__.startswith("keras.")  # so any Keras reads a saved optimizer
    for step, rate in expected.items():
        assert float(rates(step)) == pytest.approx(rate, abs=1e-6)


def test_a_warm_up_as_long_as_the_run_is_refused():
    with refused("warmup_steps", "9"):
        optimizer.make_optimizer(OptimizerConfig(warmup_steps=9), 32, 9)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft", [False, True])
def test_the_loss_is_the_weighted_mean_for_both_kinds_of_labels(smoothing, soft):
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (6, 4)).astype(np.float32)
    ids, weight = rng.integers(0, 4, 6), rng.uniform(0, 2, 6).astype(np.float32)
    shares = rng.dirichlet(np.ones(4), 6).astype(np.float32) if soft else np.eye(4)[ids]
    target = shares * (1 - smoothing) + smoothing / 4
    log_softmax = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = np.mean(weight * -(target * log_softmax).sum(1))
    loss = optimizer.CrossEntropy(4, smoothing)
    found = loss(shares if soft else ids, logits, sample_weight=weight)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert float(again(ids, logits)) == float(loss(ids, logits))


def _one_matrix(config, gradients):
    """A 2x2 matrix and a bias, both all ones, after the given gradients."""
    picture = keras.Input((2,))
    dense = keras.layers.Dense(2, kernel_initializer="ones", bias_initializer="ones")
    network = keras.Model(picture, dense(picture))
    network.optimizer = optimizer.make_optimizer(config, 32, 100)
    optimizer.exempt_from_decay(network.optimizer, network)
    network.optimizer.build(network.trainable_variables)
    for gradient in gradients:
        rows = np.broadcast_to(np.asarray(gradient, np.float32), (2, 2))
        network.optimizer.apply([tf.constant(rows), tf.constant(rows[0])])
    return network, [v.numpy() for v in network.trainable_variables]


@pytest.mark.parametrize("name", replica_run.OPTIMIZERS)
def test_weight_decay_is_decoupled_and_spares_the_bias(name):
    """A gradient of 0 leaves the decay alone to act: (1 - rate * decay) in every step."""
    config = OptimizerConfig(optimizer=name, learning_rate=0.1, weight_decay=0.5)
    _, (matrix, bias) = _one_matrix(config, [0.0, 0.0])
    np.testing.assert_allclose(matrix, 0.95**2, rtol=1e-5)
    np.testing.assert_allclose(bias, 1.0)
    _, (kept, _) = _one_matrix(dataclasses.replace(config, weight_decay=0.0), [0.0, 0.0])
    np.testing.assert_allclose(kept, 1.0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_the_options(name):
    options: dict[str, Any] = {"weight_decay": 0.5, "clipnorm": 0.6, "ema": 0.9}
    options |= {"momentum": 0.8} if name in ("sgd", "rmsprop") else {}
    config = OptimizerConfig(optimizer=name, learning_rate=0.1, **options)
    made = optimizer.make_optimizer(config, 32, 100)
    assert type(made).__name__.lower() == name
    assert (made.weight_decay, made.global_clipnorm, made.ema_momentum) == (0.5, 0.6, 0.9)
    assert getattr(made, "nesterov", True) and getattr(made, "momentum", 0.8) == 0.8
    assert float(made.learning_rate) == pytest.approx(0.1)


def test_accumulated_gradients_are_averaged_and_the_average_keeps_its_pace():
    plain = OptimizerConfig(optimizer="sgd", learning_rate=0.1, ema=0.5)
    three = dataclasses.replace(plain, accumulate_steps=3)
    np.testing.assert_allclose(_one_matrix(three, [1.0, 2.0])[1][0], 1.0)
    once, expected = _one_matrix(plain, [2.0, 5.0])
    thrice, found = _one_matrix(three, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    # Keras averages after each batch: three times in the life of the second step's weights.
    averages = []
    for network in (once, thrice):
        with averaged(network):
            averages.append(network.trainable_variables[0].numpy())
    np.testing.assert_allclose(averages[1], averages[0], rtol=1e-5)


def test_averaged_weights_replace_the_weights_for_a_validation():
    config = OptimizerConfig(optimizer="sgd", learning_rate=0.1, momentum=0.0, ema=0.9)
    network, last = _one_matrix(config, [1.0, 1.0, 1.0])
    with averaged(network):
        # 0.9 after the first step, with which the average begins; then 0.8 and 0.7.
        expected = 0.9 * (0.9 * 0.9 + 0.1 * 0.8) + 0.1 * 0.7
        np.testing.assert_allclose(network.trainable_variables[0], expected, rtol=1e-5)
    np.testing.assert_array_equal(network.trainable_variables[0], last[0])


def test_norms_of_any_shape_are_exempt_from_decay():
    picture = keras.Input((4, 6))
    x = keras.layers.LayerNormalization(axis=(1, 2))(picture)  # two variables of two dimensions
    x = keras.layers.BatchNormalization()(keras.layers.Conv1D(3, 2)(x))
    network = keras.Model(picture, keras.layers.Dense(2)(x))
    chosen = optimizer.make_optimizer(OptimizerConfig(weight_decay=0.1), 32, 10)
    optimizer.exempt_from_decay(chosen, network)
    chosen.build(network.trainable_variables)
    decayed = [v.path for v in network.trainable_variables if chosen._use_weight_decay(v)]
    assert [path.rpartition("/")[2] for path in decayed] == ["kernel", "kernel"]


@pytest.mark.parametrize("name", IN_DEVIATIONS)
def test_a_loss_of_values_is_of_errors_in_deviations(name):
    mean_std = MeanStd((340_000.0, 1e21), (90_000.0, 1e20))
    loss = optimizer.make_loss(OptimizerConfig(loss=name), "values", 2, mean_std)
    true = np.array([[300_000.0, 0.9e21], [400_000.0, 1e21]], np.float32)
    said = np.array([[300_000.0, 1.2e21], [265_000.0, 1.05e21]], np.float32)
    expected = IN_DEVIATIONS[name]((said - true) / np.array(mean_std.std)).mean(1)
    np.testing.assert_allclose(loss.call(true, said), expected, rtol=1e-5)
    weights = np.array([1.0, 3.0])
    assert float(loss(true, said, weights)) == pytest.approx((expected * weights).mean(), rel=1e-5)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    np.testing.assert_array_equal(again.call(true, said), loss.call(true, said))


def test_a_loss_of_values_without_a_unit_is_kerass_own():
    name = "mean_absolute_percentage_error"
    loss = optimizer.make_loss(OptimizerConfig(loss=name), "values", 1, MeanStd((5.0,), (2.0,)))
    true, said = np.array([[4.0], [1.0]], np.float32), np.array([[5.0], [3.0]], np.float32)
    np.testing.assert_array_equal(loss.call(true, said), getattr(keras.losses, name)(true, said))
