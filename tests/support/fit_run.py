"""Keras's plain `fit` on any number of replicas: `python -m tests.support.fit_run FOLDER REPLICAS`.

Prints the history, what the trained model scores on the validation pictures, and what `ims.fit`
would say of that, and of the split without some records, as one JSON object; TensorFlow allows one
strategy per process.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np

BATCH_SIZE = 8
# Of four replicas the third gets none of the others.
BROKEN = (0, 4, 5, 9)


def fit(folder: str, replicas: int) -> dict[str, Any]:
    """Two epochs, and the validation's loss and accuracy counted by hand."""
    import keras

    import imageshards as ims
    from trainer.evaluation.evaluator import Evaluator
    from trainer.models.step import build_variables
    from trainer.models.strategy import make_strategy
    from trainer.reader.broken_records import BrokenRecordHandler

    strategy = make_strategy(replicas, BATCH_SIZE)
    data = ims.open(folder)
    train = data.train(batch_size=BATCH_SIZE, image_size=16, augment="none", seed=1)
    val = data.evaluation(batch_size=BATCH_SIZE, image_size=16)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        picture = keras.Input(train.image_shape)
        x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(picture))
        dense = keras.layers.Dense(len(train.classes), kernel_regularizer="l2")
        model = keras.Model(picture, dense(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        same = keras.metrics.SparseCategoricalCrossentropy("crossentropy", from_logits=True)
        metrics = {"metrics": ["accuracy"], "weighted_metrics": [same]}
        model.compile(keras.optimizers.SGD(0.01), loss, **metrics)
    history = model.fit(
        train.dataset(),
        steps_per_epoch=train.steps_per_epoch,
        epochs=2,
        validation_data=val.dataset(),
        verbose=0,
    ).history

    class Own(keras.Model):
        """Has a step that returns some of its metrics."""

        def test_step(self, data: Any) -> Any:
            logs = super().test_step(data)
            return {name: logs[name] for name in ("accuracy", "crossentropy")}

    with strategy.scope():
        own = Own(model.inputs, model.outputs)
        same = keras.metrics.SparseCategoricalCrossentropy("crossentropy", from_logits=True)
        own.compile(loss=loss, metrics=["accuracy"], weighted_metrics=[same])
    build_variables(own, strategy, train.element_spec)
    handler = BrokenRecordHandler(0, None, folder)
    masked = dataclasses.replace(val.subset, broken=frozenset(BROKEN))
    of_all, of_some = (
        Evaluator(one, strategy, dataclasses.replace(val, subset=subset), handler, own_step=True)
        for one, subset in ((model, val.subset), (own, masked))
    )
    return {
        "history": history,
        "penalty": float(sum(np.asarray(one) for one in model.losses)),
        "weights": np.concatenate([np.ravel(w) for w in model.get_weights()]).tolist(),
        "unbroken": {"validation": of_some.run(), **_scores(model, val, without=BROKEN)},
        "validation": of_all.run(),
        **_scores(model, val),
    }


def _scores(model: Any, val: Any, without: tuple[int, ...] = ()) -> dict[str, Any]:
    """What `model` says of the records, counted by hand."""
    right, losses = [], []
    for pictures, labels in val.as_numpy():
        logits = np.asarray(model(pictures), np.float64)
        logits -= np.log(np.exp(logits).sum(1, keepdims=True))
        right += list(logits.argmax(1) == labels)
        losses += list(-logits[np.arange(len(labels)), labels])
    counted = {"accuracy": np.delete(right, without), "loss": np.delete(losses, without)}
    return {"num_records": len(right)} | {k: float(np.mean(v)) for k, v in counted.items()}


if __name__ == "__main__":
    print(json.dumps(fit(sys.argv[1], int(sys.argv[2]))))
