"""Implements `ims.fit`: Keras's `fit` on a training stream, which resumes inside an epoch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import keras
from keras.callbacks import Callback

from imageshards.commands.options import Option, check_number
from imageshards.errors import Arg, UserError, names_arguments
from imageshards.storage import place
from imageshards.text import counted
from trainer.config import refuse_uneven
from trainer.dataset.spec import describe, described_target
from trainer.dataset.subset import refuse_overlap
from trainer.models.keras_internals import check_keras
from trainer.models.optimizer import check_replicas
from trainer.models.strategy import host_count, note_missed_gpus, remember
from trainer.reader.batches import TrainingData
from trainer.reader.described import EvaluationData
from trainer.training.loop import Loop, make_ready
from trainer.training.open_run import Epochs, Run, open_run
from trainer.training.output_folder import begin_run
from trainer.training.saved_run import Saving
from trainer.training.signals import Stopped


@names_arguments(data="path", output="checkpoint_dir", validation_split="validation_data")
def fit(
    model: keras.Model,
    train: TrainingData,
    *,
    validation_data: EvaluationData | None = None,
    validation_freq: int | Sequence[int] = 1,
    epochs: int = 1,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    callbacks: Sequence[Callback] | None = None,
    verbose: str | int = "auto",
    checkpoint_dir: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    checkpoint_steps: int = 1000,
    keep_checkpoints: int = 2,
    allow_overlap: bool = False,
) -> keras.callbacks.History:
    """Trains a compiled model as Keras's `fit` does, and resumes inside an epoch.

    The model's `train_step`, `test_step`, loss, metrics, optimizer and callbacks apply. Both steps
    receive (inputs, label, sample_weight), even if `train.dataset()` yields no weights; after `map`
    the weights are then None. Without a target the label is None.

    The same code, called again after a kill at any step, continues with the very next record. The
    weights end up bit-identical to those of an undisturbed run on as many replicas. SIGTERM and
    Ctrl-C save the run and raise KeyboardInterrupt.

    A resumed run keeps the learning rate of its checkpoint if the rate is a number. If
    `model.compile` received another rate, a note shows both; `LearningRateScheduler` changes the
    rate. A schedule and all further settings of the optimizer come from the new `model.compile`,
    which a note also says. An optimizer with other variables is refused.

    Epochs are passes over the stream: E epochs have floor(E * records / batch size) steps, so the
    records left over by an epoch open the next epoch.

    Steps are taken one by one, with their hooks, whatever `steps_per_execution` of `model.compile`
    says.

    Args:
        model: A compiled model, created in the scope of the strategy whose replicas share each
            batch.
        train: The stream that `Data.train` returned.
        validation_data: The pass that `Data.evaluation` returned. The loss, `metrics` and
            `weighted_metrics` count each record once, on any number of replicas, and no broken
            record.
        validation_freq: Number of epochs between validations, or a list of epochs, from 1.
        epochs: Number of epochs in total, including epochs before a restart.
        initial_epoch: Number of epochs that another run has trained; the stream begins behind them.
            A run in `checkpoint_dir` continues from its checkpoint.
        steps_per_epoch: Batches in an epoch; None for passes.
        class_weight: The weight of every label. An example's weight is multiplied by the weight of
            its class; for mixed pictures by that of the largest share, as in Keras.
        callbacks: Callbacks of Keras or your own, whose state is saved: see
            `trainer.training.saved_run.SavedRun`.
        verbose: As in Keras's `fit`.
        checkpoint_dir: Folder for checkpoints, local, `gs://` or `s3://`; an unfinished run there
            continues, and a finished run is loaded. None to save nothing.
        overwrite: Whether to replace a run in `checkpoint_dir`.
        checkpoint_steps: Steps between checkpoints; the end of an epoch saves, too.
        keep_checkpoints: Number of last checkpoints to keep, besides the one with the lowest
            val_loss.
        allow_overlap: Allows `validation_data` with records that `train` reads.

    Returns:
        Keras's `History`, with the epochs before a restart.

    Raises:
        UserError: The model is not compiled, the data is broken, or `checkpoint_dir` holds another
            run or foreign files.
        KeyboardInterrupt: After SIGTERM or Ctrl-C; with `checkpoint_dir` every step is saved.
    """
    check_model(model)
    _check(model, train, validation_data, model.distribute_strategy.num_replicas_in_sync)
    if validation_data is not None and not allow_overlap:
        refuse_overlap(train.subset, validation_data.subset)
    _check_numbers(
        epochs=epochs, initial_epoch=initial_epoch, steps_per_epoch=steps_per_epoch,
        validation_freq=validation_freq, checkpoint_steps=checkpoint_steps,
        keep_checkpoints=keep_checkpoints,
    )  # fmt: skip
    remember(model.distribute_strategy)
    note_missed_gpus()
    weights = _class_weights(train, class_weight)
    if any(isinstance(c, keras.callbacks.BackupAndRestore) for c in keras.tree.flatten(callbacks)):
        raise UserError(
            argument="callbacks",
            received="BackupAndRestore",
            expected="checkpoint_dir, which resumes inside an epoch",
        )
    folder = None if checkpoint_dir is None else place("checkpoint_dir", checkpoint_dir)
    with nullcontext() if folder is None else begin_run(folder, overwrite):
        # Only a run that is saved needs the sources of the user's functions.
        settings = _settings(train, steps_per_epoch, weights) if folder is not None else {}
        saving = Saving(folder, settings, checkpoint_steps, keep_checkpoints)
        length = Epochs.of(train, int(epochs), steps_per_epoch=steps_per_epoch)
        run = open_run(train, validation_data, model.distribute_strategy, length, saving)
        _begin_at(run, int(initial_epoch))
        make_ready(run, model)
        try:
            return Loop(run, model, callbacks, verbose, validation_freq, weights).run()
        # Callers expect KeyboardInterrupt, as Keras's `fit` raises after Ctrl-C.
        except Stopped as e:
            raise KeyboardInterrupt(str(e)) from e


def check_model(model: keras.Model, argument: str = "model") -> None:
    """Refuses anything but a compiled model of this release of Keras, made for one host."""
    check_keras()
    received, expected = "", "a compiled keras.Model of Keras 3"
    if not isinstance(model, keras.Model):
        received = f"{type(model).__module__}.{type(model).__qualname__}"
        remedy = "unset TF_USE_LEGACY_KERAS if tf.keras is another package"
    elif (hosts := host_count(model.distribute_strategy)) > 1:
        received, expected = f"a model made for {hosts} hosts", "one host"
        remedy = "use imageshards train --cluster, which also takes compiled models"
    elif not model.compiled:
        received, remedy = "a model that is not compiled", "call model.compile(…) first"
    if received:
        raise UserError(argument=argument, received=received, expected=expected, remedy=remedy)


def _check(
    model: keras.Model, train: TrainingData, validation: EvaluationData | None, replicas: int
) -> None:
    """Refuses arguments that would fail later, or would train something else."""
    for name, received, kind, method in (
        ("train", train, TrainingData, "train"),
        ("validation_data", validation, EvaluationData, "evaluation"),
    ):
        if not isinstance(received, kind | None if name == "validation_data" else kind):
            raise UserError(
                argument=name,
                received=type(received).__name__,
                expected=f"what ims.open(…).{method}(…) returns, not its dataset()",
            )
    refuse_uneven(train.batch_size, replicas)
    if validation is not None:
        refuse_uneven(validation.batch_size, replicas)
        for noun, theirs, ours in (
            ("target", [_kinds(validation)], [_kinds(train)]),
            ("classes", [*validation.classes], [*train.classes]),
        ):
            if theirs != ours:
                raise UserError(
                    argument="validation_data",
                    received=f"the {noun} {', '.join(theirs)}, but train has {', '.join(ours)}",
                    expected=f"exactly the {noun} of train",
                )
    train.check_pairs(replicas)
    check_replicas(model, replicas)


def _check_numbers(**given: Any) -> None:
    """Refuses anything but whole numbers, of which `validation_freq` may be a list."""
    for name, numbers in given.items():
        limit = Option("", least=0 if name == "initial_epoch" else 1)
        for number in keras.tree.flatten(numbers):
            if number is not None:
                check_number(name, number, int, limit)


def _kinds(data: TrainingData | EvaluationData) -> str:
    """Returns the kind of the target; of several targets by name."""
    dataset = data.subset.dataset
    return described_target(dataset) if dataset.outputs else describe(dataset)


def _settings(
    train: TrainingData, steps_per_epoch: int | None, weights: Sequence[float]
) -> dict[str, Any]:
    """Returns what must be the same when the run resumes, as JSON values by name."""
    chosen = {"steps_per_epoch": steps_per_epoch and int(steps_per_epoch), "class_weight": weights}
    return train.identity | {name: value for name, value in chosen.items() if value}


def _class_weights(train: TrainingData, received: Mapping[int, float] | None) -> list[float]:
    """Returns the weights in the order of the labels; an empty list for None."""
    if received is None:
        return []
    dataset, text = train.subset.dataset, repr(dict(received))
    weights = [received.get(label, math.nan) for label in range(len(train.classes))]
    if dataset.target != "class" or dataset.outputs:
        text += f", but the target is {_kinds(train)}"
        expected = "no class weights, but a column with weights as sample_weight"
    elif train.subset.balance == "weights":
        text += " beside " + Arg("balance", "weights")
        expected = "only one of them, as both weigh classes"
    elif len(received) != len(weights) or not all(0 <= one < math.inf for one in weights):
        expected = f"a number, at least 0, for each of the labels 0 to {len(weights) - 1}"
    else:
        return [float(weight) for weight in weights]
    raise UserError(argument="class_weight", received=text, expected=expected)


def _begin_at(run: Run, epoch: int) -> None:
    """Lets a new run begin behind `epoch` epochs."""
    state = run.saved.state
    if not state.step and epoch:
        state.step, state.epochs = run.epochs.end(epoch - 1), epoch
    if epoch > state.epochs:
        raise UserError(
            argument="initial_epoch",
            received=f"{epoch}, but the run has trained {counted(state.epochs, 'epoch')}",
            remedy="leave initial_epoch out to go on from there",
        )
