"""Implements `ims.fit`: Keras's `fit` on a training stream, which resumes inside an epoch."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

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
from trainer.models.strategy import host_count, note_missed_gpus, remember, separate_replicas
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

    A model compiled with `steps_per_execution=N` takes N steps in one call of its graph, fewer at
    the end of an epoch. Hooks of batches are called before the first and after the last of these
    steps; checkpoints and signals wait for the end of the call. Validation goes batch by batch.

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
    strategy = model.distribute_strategy  # the strategy in whose scope the model was created
    replicas = strategy.num_replicas_in_sync
    _check(model, train, validation_data, replicas)
    if validation_data is not None and not allow_overlap:
        refuse_overlap(train.subset, validation_data.subset)
    for name, number, least in (
        ("epochs", epochs, 1),
        ("initial_epoch", initial_epoch, 0),
        ("steps_per_epoch", 1 if steps_per_epoch is None else steps_per_epoch, 1),
        ("checkpoint_steps", checkpoint_steps, 1),
        ("keep_checkpoints", keep_checkpoints, 1),
        *(("validation_freq", one, 1) for one in keras.tree.flatten(validation_freq)),
    ):
        check_number(name, number, int, Option("", least=least))
    remember(strategy)
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
        settings = train.identity if folder is not None else {}
        steps_per_epoch = steps_per_epoch and int(steps_per_epoch)  # a number of NumPy is no JSON
        chosen = {"steps_per_epoch": steps_per_epoch, "class_weight": weights}
        settings |= {name: value for name, value in chosen.items() if value}
        saving = Saving(folder, settings, checkpoint_steps, keep_checkpoints)
        length = Epochs.of(train, int(epochs), steps_per_epoch=steps_per_epoch)
        run = open_run(train, validation_data, strategy, length, saving)
        _begin_at(run, int(initial_epoch))
        if run.was_ended:
            done = run.saved.state.epochs
            print(
                f"note: a callback ended this run in epoch {done}, so nothing is trained; go on "
                f"from its weights by initial_epoch={done} and another checkpoint_dir, or start "
                "over by overwrite=True",
                file=sys.stderr,
            )
        if replicas > 1:
            separate_replicas(model)
        make_ready(run, model)  # a checkpoint can restore only variables that exist
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


def _kinds(data: TrainingData | EvaluationData) -> str:
    """Returns the kind of the target; of several targets by name."""
    dataset = data.subset.dataset
    return described_target(dataset) if dataset.outputs else describe(dataset)


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
