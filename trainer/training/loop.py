"""The training loop: steps, epochs, checkpoints; it can be stopped and resumed at any step."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from imageshards.errors import UserError
from imageshards.progress import progress_bar
from trainer.dataset.spec import Batch
from trainer.models.model import model_input, state_variables
from trainer.reader.stream import TrainingStream, next_batch
from trainer.training.checkpoint import Checkpoints, RunState, values_of
from trainer.training.metrics import (
    StepClock,
    epoch_line,
    epoch_record,
    finite,
    wait_for_idle_cores,
    write_metrics,
)
from trainer.training.signals import StopRequest

# Images that are read to measure what one of them costs.
SAMPLE_IMAGES = 256


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The epochs of a run, each by the step it ends with.

    Batches are cut from one endless stream, so an epoch's leftover records open the next one:
    after E epochs all but the last < `batch_size` records were seen E times.

    Attributes:
        num_records: In one pass over the data.
        batch_size: Global batch.
        total_steps: Of the whole run, which may end within an epoch.
    """

    num_records: int
    batch_size: int
    total_steps: int

    @property
    def count(self) -> int:
        """Number of epochs, the last one perhaps cut short."""
        return self.of_step(self.total_steps - 1) + 1

    def end(self, epoch: int) -> int:
        """The step with which `epoch` (from 0) ends, or with which the run ends within it."""
        return min(self.total_steps, self.full_end(epoch))

    def full_end(self, epoch: int) -> int:
        """The step with which `epoch` would end: floor((epoch + 1) * records / batch)."""
        return (epoch + 1) * self.num_records // self.batch_size

    def of_step(self, step: int) -> int:
        """The epoch (from 0) that the step after `step` steps belongs to."""
        # The first whose end is beyond `step`: (epoch + 1) * records >= (step + 1) * batch.
        return -(-(step + 1) * self.batch_size // self.num_records) - 1


def total_steps(epochs: int, steps: int | None, num_records: int, batch_size: int) -> int:
    """Steps of a whole run: `steps` where given, else those of `epochs`."""
    return steps if steps is not None else epochs * num_records // batch_size


def make_train_step(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    prepare: Callable[[Batch], Batch] | None,
    jit_compile: bool = False,
) -> Callable[[Batch], tf.Tensor]:
    """A function that trains on one distributed global batch.

    Args:
        model: Compiled, with its optimizer built.
        strategy: Whose replicas share the batch.
        prepare: What each replica does to its share first, for example augmentation.
        jit_compile: Compiles the step with XLA.

    Returns:
        Batch → float32 [3]: the sums over the batch of the examples' weighted losses, of
        the weights of those classified correctly, and of all weights.
    """
    replicas = strategy.num_replicas_in_sync

    # XLA knows no projective transform: what `prepare` does stays outside of what it compiles.
    @tf.function(autograph=False, reduce_retracing=True, jit_compile=jit_compile or None)
    def learn(inputs: Any, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            # Per example, because Keras divides a mean by the number of replicas on its own.
            loss = tf.reduce_sum(weights * model.loss.call(labels, logits))
            penalties = [tf.cast(penalty, tf.float32) for penalty in model.losses]
            # The optimizer adds up the replicas' gradients: each brings its share.
            mean = loss / tf.cast(tf.shape(weights)[0], tf.float32)
            scaled = model.optimizer.scale_loss(tf.add_n([mean, *penalties]) / replicas)
        gradients = tape.gradient(scaled, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        correct = tf.cast(tf.equal(tf.argmax(logits, -1), _class_ids(labels)), tf.float32)
        return tf.stack([loss, tf.reduce_sum(weights * correct), tf.reduce_sum(weights)])

    # Where nothing is compiled, one graph less is one graph less to trace.
    compute = learn if jit_compile else learn.python_function

    def on_replica(batch: Batch) -> tf.Tensor:
        batch = prepare(batch) if prepare is not None else batch
        return compute(model_input(batch["inputs"]), batch["label"], batch["weight"])

    # Padded sequences change their length from batch to batch. As in Keras's own loop, nothing is
    # converted by autograph, which would take longer than tracing.
    @tf.function(autograph=False, reduce_retracing=True)
    def step(batch: Batch) -> tf.Tensor:
        sums = strategy.run(on_replica, args=(batch,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    return step


def _class_ids(labels: tf.Tensor) -> tf.Tensor:
    """Of mixed labels, the class with the largest share."""
    return tf.argmax(labels, -1) if labels.shape.rank == 2 else tf.cast(labels, tf.int64)


@dataclasses.dataclass
class Loop:
    """Trains `model` from `state` to the last of `epochs`.

    Attributes:
        model: Compiled, its optimizer built, its variables as `state` left them.
        train_step: One step; see `make_train_step`.
        stream: Batches.
        epochs: How long.
        state: The run's position and sums; updated with every step.
        checkpoints: Where it is saved.
        checkpoint_steps: Steps between two checkpoints, besides those at the ends of epochs.
        output: The run's folder, for metrics.jsonl.
        validate: Returns (val_loss, val_accuracy); None for no validation.
        observers: Called with every epoch's object.
    """

    model: keras.Model
    train_step: Callable[[Batch], tf.Tensor]
    stream: TrainingStream
    epochs: Epochs
    state: RunState
    checkpoints: Checkpoints
    checkpoint_steps: int
    output: str
    validate: Callable[[], tuple[float, float]] | None
    observers: tuple[Callable[[dict[str, Any]], None], ...] = ()

    def __post_init__(self) -> None:
        self._clock = StepClock()
        self._iterator: Iterator[Batch] | None = None
        # The sums of the last step, which may still be running on the devices.
        self._pending: tf.Tensor | None = None
        self._first = True

    def run(self) -> None:
        """Trains to the end.

        Raises:
            Stopped: SIGTERM or Ctrl-C came; the run is saved.
            UserError: Of the data, the disk, or a loss that is no number any more.
        """
        history = self.state.history
        self._reopen_epoch()
        write_metrics(self.output, history)
        with StopRequest() as stop:
            while len(history) < self.epochs.count:
                self._train_epoch(len(history), stop)
                self._finish_epoch(len(history), stop)

    def reader_cpu_sec(self) -> float | None:
        """CPU seconds, of all threads, that the reader needs for one image.

        It makes batches in advance. Measured from the moment when these are complete until they
        are complete again, so exactly as many batches were made as were drawn.

        Returns:
            None where a record cannot be read.
        """
        batch_size = self.epochs.batch_size
        count = max(1, SAMPLE_IMAGES // batch_size)
        try:
            iterator = self._iterator or self.stream.iterator(self.state.step)
            next_batch(iterator)
            wait_for_idle_cores()
            started_sec = time.process_time()
            for _ in range(count):
                next_batch(iterator)
            wait_for_idle_cores()
        except tf.errors.OpError:
            return None
        return (time.process_time() - started_sec) / (count * batch_size)

    def _reopen_epoch(self) -> None:
        """Removes the last line of metrics.jsonl where `--steps` had cut its epoch short."""
        state = self.state
        if not state.history or state.step >= self.epochs.total_steps:
            return
        if state.step < self.epochs.full_end(len(state.history) - 1):
            state.history.pop()

    def _train_epoch(self, epoch: int, stop: StopRequest) -> None:
        state, clock, batch_size = self.state, self._clock, self.epochs.batch_size
        start, end = self.epochs.end(epoch - 1) if epoch else 0, self.epochs.end(epoch)
        clock.reset(state.train_sec, state.wait_sec)
        with progress_bar(
            desc=f"epoch {epoch + 1}/{self.epochs.count}",
            initial=(state.step - start) * batch_size,
            total=(end - start) * batch_size,
            unit=" images",
            unit_scale=True,
        ) as bar:
            while state.step < end:
                loss = self._one_step(end)
                shown = f"loss {loss:.3f}, " if loss is not None else ""
                waited = clock.wait_sec / max(1e-9, clock.train_sec)
                bar.set_postfix_str(f"{shown}waited {waited:.0%}", refresh=False)
                bar.update(batch_size)
                if stop.requested:
                    self._save()
                    raise stop.stopped()
                if state.step % self.checkpoint_steps == 0 and state.step < end:
                    self._save()

    def _one_step(self, end: int) -> float | None:
        """Fetches a batch, starts a step with it, and collects what the step before measured."""
        state, clock = self.state, self._clock
        batch = self._fetch()
        probe = state.step % clock.PROBE_STEPS == 0
        if probe:
            self._collect_previous_step()
        started_sec = time.perf_counter()
        try:
            sums = self.train_step(batch)
            clock.dispatch_sec = time.perf_counter() - started_sec
            if probe:
                sums.numpy()
                clock.step_sec = time.perf_counter() - started_sec
            loss = self._collect_previous_step()
        except tf.errors.ResourceExhaustedError as e:
            raise UserError(
                f"--batch_size received {self.epochs.batch_size}, for which the devices have "
                "not enough memory; expected a smaller one, or a smaller --image_size."
            ) from e
        self._pending = sums
        state.step += 1
        clock.pause()
        if self._first and state.step < end:
            # This step also traced and compiled the graph, so its time says nothing of the speed.
            clock.reset(state.train_sec, state.wait_sec)
        else:
            state.images += self.epochs.batch_size
        self._first = False
        return loss

    def _fetch(self) -> Batch:
        while True:
            started_sec = time.perf_counter()
            try:
                if self._iterator is None:
                    self._iterator = self.stream.iterator(self.state.step)
                batch = next_batch(self._iterator)
            except tf.errors.OpError as e:
                self._collect_previous_step()
                self._iterator = None
                self.stream.handle_broken(e, self.state.step)
                continue
            self._clock.fetched(time.perf_counter() - started_sec)
            return batch

    def _collect_previous_step(self) -> float | None:
        """Waits for the step before, adds up what it measured, and returns its mean loss.

        One step behind, so that the devices have work while Python does this.
        """
        if self._pending is None:
            return None
        loss, correct, weight = (float(x) for x in self._pending.numpy())
        self._pending = None
        if not math.isfinite(loss):
            raise self._diverged(f"the loss became {loss}")
        before = self.state.sums
        self.state.sums = (before[0] + loss, before[1] + correct, before[2] + weight)
        return loss / weight if weight else 0.0

    def _save(self) -> None:
        self._collect_previous_step()
        state = self.state
        state.train_sec, state.wait_sec = self._clock.train_sec, self._clock.wait_sec
        arrays = values_of(state_variables(self.model))
        if not all(np.isfinite(a).all() for a in arrays if np.issubdtype(a.dtype, np.floating)):
            raise self._diverged("a weight became infinite or not a number")
        self.checkpoints.save(state, arrays)
        self._clock.resume()

    def _diverged(self, what: str) -> UserError:
        steps = self.checkpoints.steps()
        since = steps[-1] if steps else 0
        good = self.checkpoints.path(since) if steps else "none"
        return UserError(
            f"--learning_rate received a value for which {what} between the steps {since + 1} and "
            f"{max(since + 1, self.state.step)} (last good checkpoint: {good}); expected a run "
            "that converges: try a tenth of it, or --warmup_steps, in another --output or with "
            "--overwrite."
        )

    def _finish_epoch(self, epoch: int, stop: StopRequest) -> None:
        self._collect_previous_step()
        state = self.state
        # Before validation, so that a kill during validation costs no training.
        self._save()
        learning_rate = keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)
        record = epoch_record(epoch + 1, state, float(learning_rate))
        if self.validate is not None:
            with stop.interruptible():
                loss, accuracy = self.validate()
            record |= {"val_loss": finite(loss), "val_accuracy": finite(accuracy)}
            if math.isfinite(loss) and (state.best_value is None or loss < state.best_value):
                state.best_step, state.best_value = state.step, loss
        state.history.append(record)
        if state.step == self.epochs.full_end(epoch):
            state.sums, state.train_sec, state.wait_sec, state.images = (0.0, 0.0, 0.0), 0.0, 0.0, 0
        self.checkpoints.save_state(state)
        write_metrics(self.output, state.history)
        print(epoch_line(record, self.epochs.count), flush=True)
        for observe in self.observers:
            observe(record)
        self._clock.resume()
