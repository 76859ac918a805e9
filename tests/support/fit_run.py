"""Keras's plain `fit` on any number of replicas: `python -m tests.support.fit_run FOLDER REPLICAS`.

Prints the history, what the trained model scores on the validation pictures, and what
`ims.evaluate` says of these, and of the split without some records, as one JSON object; TensorFlow
allows one strategy per process.
"""

import json
import pathlib
import shutil
import sys
import tempfile
from typing import Any

import numpy as np

from tests.support.external_sets import flip_byte, records_of

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
    from trainer.reader.broken_records import BrokenRecords

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
        _compile(model)
    history = model.fit(
        train.dataset(), steps_per_epoch=train.steps_per_epoch, epochs=2,
        validation_data=val.dataset(), verbose=0,
    ).history  # fmt: skip

    class Own(keras.Model):
        """Has a step that returns some of its metrics."""

        def test_step(self, data: Any) -> Any:
            logs = super().test_step(data)
            return {name: logs[name] for name in ("accuracy", "crossentropy")}

    with strategy.scope():
        own = Own(model.inputs, model.outputs)
        _compile(own)
    build_variables(own, strategy, train.element_spec)
    broken = BrokenRecords(len(BROKEN), val.subset.dataset)
    of_all = Evaluator(model, strategy, val, broken)
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        some = ims.open(copy).evaluation(batch_size=BATCH_SIZE, image_size=16)
        paths = [pathlib.Path(path) for path in some.subset.split.paths]
        places = [(path, record.offset_bytes) for path in paths for record in records_of(path)]
        for path, offset in map(places.__getitem__, BROKEN):
            flip_byte(path, offset + 30)
        of_some = Evaluator(own, strategy, some, broken).run()
    return {
        "history": history,
        "penalty": float(sum(np.asarray(one) for one in model.losses)),
        "weights": np.concatenate([np.ravel(w) for w in model.get_weights()]).tolist(),
        "unbroken": {"validation": of_some, **_scores(model, val, without=BROKEN)},
        "validation": of_all.run(),
        **_scores(model, val),
    }


def _compile(model: Any) -> None:
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    same = keras.metrics.SparseCategoricalCrossentropy("crossentropy", from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"], weighted_metrics=[same])


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
