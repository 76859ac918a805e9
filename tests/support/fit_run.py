"""Keras's plain `fit` on one replica or two: `python -m tests.support.fit_run FOLDER REPLICAS`.

Prints the history, what the trained model scores on the validation pictures, and what `ims.fit`
would say of that, as one JSON object; TensorFlow allows one strategy per process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

BATCH_SIZE = 8


def fit(folder: str, replicas: int) -> dict[str, Any]:
    """Two epochs, and the validation's loss and accuracy counted by hand."""
    import keras

    import imageshards as ims
    from trainer.evaluation.evaluator import Evaluator
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
    right, losses = [], []
    for pictures, labels, _ in val.as_numpy():
        logits = np.asarray(model(pictures), np.float64)
        logits -= np.log(np.exp(logits).sum(1, keepdims=True))
        right += list(logits.argmax(1) == labels)
        losses += list(-logits[np.arange(len(labels)), labels])
    weights = np.concatenate([np.ravel(w) for w in model.get_weights()])
    broken = BrokenRecordHandler(0, None, folder)
    evaluator = Evaluator(model, strategy, val, broken, own_step=True)
    return {
        "history": history,
        "num_records": len(right),
        "accuracy": float(np.mean(right)),
        "loss": float(np.mean(losses)),
        "penalty": float(sum(np.asarray(one) for one in model.losses)),
        "validation": evaluator.run(),
        "weights": weights.tolist(),
    }


if __name__ == "__main__":
    print(json.dumps(fit(sys.argv[1], int(sys.argv[2]))))
