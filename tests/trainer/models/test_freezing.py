import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import replica_run
from tests.support.errors import refused
from tests.support.replica_run import BATCH_SIZE, CONFIGS, averaged, batch, digest, start, train
from trainer.dataset.spec import ImageSpec, MeanStd, ModelInputs
from trainer.models import model
from trainer.models.freezing import Frozen, schedule_after
from trainer.models.keras_internals import last_learning_rate, without_loss_scale

HERE = tf.distribute.get_strategy()
INPUTS = ModelInputs((32, 32), ImageSpec((32, 32), False, 3, (0.5,) * 3, (0.25,) * 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*replica_run.OPTIMIZERS, "float16", "several"])
@pytest.mark.one_row
def test_the_head_trains_first_and_then_everything_as_if_it_were_compiled_again(name):
    config = CONFIGS.get(name, dataclasses.replace(CONFIGS["adamw"], accumulate_steps=2))
    network = start(HERE, config)
    state = [variable.path for variable in model.state_variables(network)]
    schedule = schedule_after(config, BATCH_SIZE, 4)
    frozen = Frozen(network, "all", 2, schedule)
    *body, head = [layer for layer in network.layers if layer.weights]

    def changed():
        before = [digest(layer.get_weights()) for layer in (*body, head)]
        train(HERE, network, [batch(0), batch(1)])
        after = [digest(layer.get_weights()) for layer in (*body, head)]
        return [one != other for one, other in zip(before, after, strict=True)]

    tf.config.run_functions_eagerly(True)
    try:
        frozen.on_epoch_begin(0)
        frozen.on_epoch_begin(1)
        assert changed() == [False] * len(body) + [True]
        weights = [layer.get_weights() for layer in body]
        with averaged(network):  # of those that are frozen the average is theirs
            for layer, values in zip(body, weights, strict=True):
                for one, other in zip(layer.get_weights(), values, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-6)
        frozen.on_epoch_begin(2)
        inner = without_loss_scale(network.optimizer)
        assert not any(np.any(variable.numpy()) for variable in inner.variables)
        assert all(changed())
    finally:
        tf.config.run_functions_eagerly(False)
    assert [variable.path for variable in model.state_variables(network)] == state
    # The second step, or with accumulated batches the last of two, of the rates from there on.
    rates = [0.1 * config.learning_rate * (1 + math.cos(math.pi * s / 4)) / 2 for s in range(4)]
    assert [float(schedule(step)) for step in range(4)] == pytest.approx(rates)
    assert last_learning_rate(network.optimizer) == pytest.approx(rates[1])


def test_run_resumed_after_unfreezing_keeps_the_optimizer_state():
    network = start(HERE, CONFIGS["plain"])
    frozen = Frozen(network, "all", 2, schedule_after(CONFIGS["plain"], BATCH_SIZE, 4))
    network.optimizer.iterations.assign(3)
    frozen.on_epoch_begin(3)
    assert int(network.optimizer.iterations.numpy()) == 3


def test_frozen_layers_are_counted_as_in_model_layers_without_the_head():
    network = model.build_model("MobileNet", INPUTS, model.Head(3))
    network.compile("sgd")
    (body,) = [layer for layer in network.layers if isinstance(layer, keras.Model)]
    Frozen(network, 10)
    assert not any(layer.trainable for layer in body.layers[:10])
    assert all(layer.trainable for layer in body.layers[10:])
    with refused("freeze", "200"):
        Frozen(network, 200)
    behind = keras.layers.Dense(4)(network.output)
    network = keras.Model(network.input, keras.layers.Dense(2)(behind))
    network.compile("sgd")
    Frozen(network, "all")
    trained = [v.path.split("/")[0] for v in network.trainable_variables]
    assert len(trained) == 4 and all(name.startswith("dense") for name in trained)
    # The head of values is the layer with weights before their unit.
    network = model.build_model("cnn", INPUTS, model.Head(1, "values", MeanStd((5.0,), (2.0,))))
    network.compile("sgd")
    Frozen(network, "all")
    kernel, bias = network.trainable_variables
    assert (kernel.shape, bias.shape) == ((256, 1), (1,))
