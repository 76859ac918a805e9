"""Runs Keras's `fit` from any step on, with its hooks, metrics and validation.

Unlike Keras's loop, this loop can continue inside an epoch, with any number of replicas.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.callbacks import Callback, CallbackList

from imageshards.errors import Arg
from trainer.evaluation.evaluator import Evaluator
from trainer.models.keras_internals import optimizers_of, reads_logs, restore_methods
from trainer.models.model import check_optimizers
from trainer.models.optimizer import use_average
from trainer.models.step import build_variables, logs_of_hosts, make_train_step
from trainer.models.strategy import average_statistics, device_errors, separate_replicas
from trainer.reader.stream import ReadError, next_batch
from trainer.training.callbacks import WaitingTime
from trainer.training.open_run import Run
from trainer.training.several_hosts import digest
from trainer.training.signals import Stopped, StopRequest


def make_ready(run: Run, model: keras.Model) -> None:
    """Creates every variable of a compiled model, so that a checkpoint can be restored."""
    if run.devices.num_replicas_in_sync > 1:
        separate_replicas(model)
    validates, weighs = run.validation is not None, run.train.weighs
    build_variables(model, run.devices, run.train.element_spec, validates, weighs)
    if run.saved.checkpoints is not None:
        check_optimizers(model)
    run.hosts.compare({"The model (SHA-256 of its variables' names and shapes)": digest(model)})


class Loop:
    """The training of a compiled model, with all of its variables, to the last epoch of a run.

    Callbacks are called in their order, and the checkpoint is saved after them. Averaged weights
    replace the model's weights at the end, as in Keras. `fit` describes `callbacks`, `verbose` and
    `validation_freq`. `class_weight` has a weight for each label, or none.
    """

    def __init__(
        self,
        run: Run,
        model: keras.Model,
        callbacks: Sequence[Callback] | None = None,
        verbose: str | int = 0,
        validation_freq: int | Sequence[int] = 1,
        class_weight: Sequence[float] = (),
    ) -> None:
        self._model, self._stream, self._epochs = model, run.stream, run.epochs
        self._saved, self._hosts, self._broken = run.saved, run.hosts, run.broken
        self._split = run.train.subset.split.name
        self._evaluator = None
        if run.validation is not None:
            self._evaluator = Evaluator(model, run.devices, run.validation, run.broken, run.hosts)
        # Keras accepts a number or a list, but no tuple.
        freq: Any = validation_freq
        self._validation_freq = list(freq) if keras.tree.is_nested(freq) else int(freq)
        self._stop = StopRequest(run.saved.saved_step, run.saved.checkpoints is not None)
        self._agreed_stop: int | None = None
        self._batches: Any = None
        prepare, drops = run.train.augmentation.device, run.train.skip_broken > 0
        self._make_step = partial(make_train_step, model, run.devices, prepare, class_weight, drops)
        self._trace()
        self._callbacks = CallbackList(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=run.epochs.count,
            steps=run.epochs.end(0),
        )
        measuring = (one for one in self._callbacks.callbacks if isinstance(one, WaitingTime))
        self._waiting = next(measuring, None)
        self._reads_logs = reads_logs(self._callbacks.callbacks, "train")

    def _trace(self) -> None:
        """Creates the step for the variables that train now."""
        self._trained = [id(variable) for variable in self._model.trainable_variables]
        self._step, self._is_traced = self._make_step(), False

    def run(self) -> keras.callbacks.History:
        """Trains to the end, until a callback sets `model.stop_training`, or until a signal.

        Returns Keras's history, with the epochs before a restart. A signal raises `Stopped` after
        every step is saved.
        """
        model = self._model
        model.stop_training = False
        state, epochs = self._saved.state, self._epochs
        if state.epochs and self.step < epochs.end(state.epochs - 1) and not state.stopped:
            state.epochs -= 1  # fewer `--steps` ended the epoch early, so this run continues it
        self._saved.attach(model, self._callbacks.callbacks)
        try:
            self._callbacks.on_train_begin()
            logs: dict[str, float] = {}
            # An epoch's first hooks are called even when the run resumes inside the epoch, and the
            # checkpoint is restored only after them.
            resumes_inside = self.step > (epochs.end(state.epochs - 1) if state.epochs else 0)
            if not resumes_inside:
                self._saved.restore()
            ended = state.stopped and not resumes_inside
            if ended and self.step < epochs.total_steps and self._hosts.is_chief:
                print(
                    f"note: a callback ended this run after step {self.step} of "
                    f"{epochs.total_steps}, so nothing is trained; begin another run with its "
                    f"weights, or start over with {Arg('overwrite', True)}",
                    file=sys.stderr,
                )
            with self._stop, self._saved:
                while state.epochs < epochs.count and not ended:
                    logs = self._run_epoch(state.epochs, resumes_inside)
                    ended, resumes_inside = model.stop_training, False
                    self._agree()
                    self._end_if_stopped()
            use_average(model)
            self._callbacks.on_train_end(logs)
        finally:
            for optimizer in optimizers_of(model):
                restore_methods(optimizer)
        return model.history

    @property
    def step(self) -> int:
        """Returns the number of training steps so far."""
        return self._saved.state.step

    def _train(self) -> dict[str, tf.Tensor]:
        """Takes a step, and counts the damaged records of its batch."""
        with device_errors(self._epochs.batch_size), self._hosts.limited(f"Step {self.step + 1}"):
            self._agree()
            begun_sec = time.perf_counter()
            try:
                batch = next_batch(self._batches)
            except ReadError as e:
                raise self._stream.explain(e.error, self.step) from e
            fetched_sec = time.perf_counter()
            logs = self._step(batch)
            if self._waiting is not None:
                # The first call does not count, because it also traces and compiles the graph.
                self._waiting.measure(begun_sec, fetched_sec, logs, counts=self._is_traced)
            self._is_traced = True
            self._broken.count(self._split, self.step + 1)
            self._broken.merge(())
        return logs

    def _agree(self) -> None:
        """Lets hosts agree on the signal that stops them, and on the damaged records."""
        mine: list[Any] = [self._stop.requested, self._broken.as_json()]
        found = self._hosts.gather(f"step {self.step + 1}", mine)
        self._agreed_stop = max((signum for signum, _ in found if signum), default=None)
        self._broken.merge(broken for _, broken in found)

    def _pause(self) -> None:
        """Stops the clock of the training, for a checkpoint or a validation."""
        if self._waiting is not None:
            with device_errors(self._epochs.batch_size):
                self._waiting.pause()

    def _end_if_stopped(self) -> None:
        """Saves and raises `Stopped` after a signal, which several hosts have agreed on before."""
        if signum := self._stop.requested if self._hosts.count == 1 else self._agreed_stop:
            self._pause()
            self._saved.save()
            self._saved.wait()
            raise Stopped(signum, self._saved.saved_step())

    def _run_epoch(self, epoch: int, resumes_inside: bool) -> dict[str, float]:
        model, callbacks, saved = self._model, self._callbacks, self._saved
        begin, end = self._epochs.end(epoch - 1) if epoch else 0, self._epochs.end(epoch)
        callbacks.set_params({**callbacks.params, "steps": end - begin})
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        # A callback may have frozen or freed layers, as `Frozen` does.
        if self._trained != [id(variable) for variable in model.trainable_variables]:
            self._trace()
        if resumes_inside:
            saved.restore()  # after the hooks and resets at the beginning of an epoch
        # Filling a cache may take hours, so a signal may interrupt the creation of the iterator,
        # and the hosts wait for one another without a time-out.
        if self.step < end and self._batches is None:
            with self._stop.interruptible():
                self._batches = self._stream.iterator(self.step)
                self._hosts.gather("the reader", None, patient=True)
        logs: dict[str, Any] = {}
        # As in Keras's loop, a callback that stops the training before a step stops it after the
        # step. Of an epoch that a callback has ended before a restart only the validation is left.
        ended = resumes_inside and saved.state.stopped
        while self.step < end and not ended:
            callbacks.on_train_batch_begin(self.step - begin)
            logs = self._train()
            if self._reads_logs:
                callbacks.on_train_batch_end(self.step - begin, logs)
            if saved.is_due():
                self._pause()
            saved.count_step()
            self._end_if_stopped()
            ended = model.stop_training
        self._pause()
        average_statistics(model, self._hosts.concatenate)
        saved.save()  # a kill during the validation then costs no training
        # If the epoch was over before a restart, no step of this process has returned logs.
        with self._hosts.limited("The metrics of an epoch"):
            logs = logs_of_hosts(model, logs, self._hosts.gather)
        if self._evaluator is not None and model._should_eval(epoch, self._validation_freq):
            with self._stop.interruptible():
                logs |= self._validated(self._evaluator)
        callbacks.on_epoch_end(epoch, logs)
        saved.end_epoch(logs)  # last, because it saves the state of the callbacks
        return logs

    def _validated(self, evaluator: Evaluator) -> dict[str, float]:
        """Returns the validation's figures without changing the metrics of the epoch."""
        # Training and validation share the metrics' variables.
        variables = self._model.metrics_variables
        kept = [variable.numpy() for variable in variables]
        self._callbacks.on_test_begin()
        found = evaluator.run(self._callbacks)
        self._callbacks.on_test_end(found)
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)
        return {f"val_{name}": value for name, value in found.items()}
