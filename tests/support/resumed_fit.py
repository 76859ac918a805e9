"""`ims.fit` on a compiled model of a user's own, perhaps killed.

python -m tests.support.resumed_fit DATA RUN REPLICAS HOOK:STEP   # prints one JSON object

HOOK is a hook of Keras's callbacks, without `on_`, where SIGKILL comes after STEP steps, or `no`;
or the signal that comes then instead. Nothing is saved where RUN is `none`.
`apart` moves the weights of the last replica away from those of the others, and prints what two
runs, one of them without a folder, say of it.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import imageshards as ims
from trainer.models.strategy import make_strategy

BATCH_SIZE = 8


class Learner(keras.Model):
    """Has a step and a metric of its own, and a random layer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.scale = keras.layers.Rescaling(1 / 255)
        self.flat = keras.layers.Flatten()
        self.hidden = keras.layers.Dense(8, activation="relu")
        self.norm = keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.3)
        self.head = keras.layers.Dense(num_classes)
        self.brightness = keras.metrics.Mean(name="brightness")

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.norm(self.hidden(self.flat(self.scale(x))), training=training)
        return self.head(self.drop(x, training=training))

    def train_step(self, data: Any) -> Any:
        self.brightness.update_state(keras.ops.mean(keras.ops.cast(data[0], "float32")))
        return super().train_step(data)


class Counter(keras.callbacks.Callback):
    """Remembers something that Keras knows nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.sums = np.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.sums = state["steps"], state["sums"]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.sums = self.sums + [logs["loss"], logs["brightness"]]


class AtStep(keras.callbacks.Callback):
    """Does something in a hook after a step."""

    def __init__(self, hook: str, step: int, act: Callable[[Any], None]) -> None:
        super().__init__()
        self._step, self._act = step, act
        setattr(self, f"on_{hook}", self._called)

    def _called(self, *_: Any, **__: Any) -> None:
        if int(self.model.optimizer.iterations.numpy()) == self._step:
            self._act(self.model)


def compiled(num_classes: int) -> keras.Model:
    """The user's model: its step, averaged weights, a rate that a callback changes."""
    keras.utils.set_random_seed(7)
    model = Learner(num_classes)
    model.compile(
        optimizer=keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        jit_compile=False,
    )
    return model


def move_last_replica(model: keras.Model) -> None:
    """What a faulty step on one replica does."""
    last = model.trainable_variables[-1].value.values[-1]
    last.assign_add(1e-6 * np.ones(last.shape))


def main() -> int:
    data_path, run, replicas, kill = sys.argv[1:5]
    strategy = make_strategy(int(replicas), BATCH_SIZE)
    hook, _, step = kill.partition(":")
    data = ims.open(data_path)
    # Other tests resume augmentation, whose graph takes half a second of each process.
    train = data.train(batch_size=BATCH_SIZE, seed=3, augment="none")
    validation = data.evaluation(batch_size=BATCH_SIZE)
    with strategy.scope():
        model = compiled(len(data.classes))
    if hook == "apart":
        ends, apart = [], AtStep("train_batch_end", int(step), move_last_replica)
        for folder in (None, run):
            with strategy.scope():
                model = compiled(len(data.classes))
            try:
                ims.fit(model, train, checkpoint_dir=folder, callbacks=[apart], verbose=0)
            except ims.UserError as e:
                ends.append(str(e))
        print(json.dumps(ends))
        return 0
    counter = Counter()
    stopping = keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True)
    slower = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=9.0, cooldown=0)
    is_signal = hook.startswith("SIG")
    signum = signal.Signals[hook] if is_signal else signal.SIGKILL
    hook = "train_batch_end" if is_signal else hook
    killer = AtStep(hook, int(step or 0), lambda model: os.kill(os.getpid(), signum))
    history = ims.fit(
        model, train, validation_data=validation, epochs=2, checkpoint_steps=1,
        checkpoint_dir=None if run == "none" else run,
        callbacks=[counter, stopping, slower, killer], verbose=0,
    )  # fmt: skip
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
    found = {
        "digest": digest, "history": history.history, "epochs": history.epoch,
        "steps": counter.steps, "sums": counter.sums.tolist(), "best_epoch": stopping.best_epoch,
        "rate": float(model.optimizer.learning_rate.numpy()),
    }  # fmt: skip
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
