"""`ims.fit`: Keras's `fit` on a training stream, which resumes inside an epoch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import keras
from keras.callbacks import Callback

from imageshards.errors import UserError, names_arguments
from trainer.augment.augmentation import check_pairs
from trainer.config import ReadConfig, RunConfig, path_text, uneven_batch
from trainer.evaluation.evaluator import Evaluator
from trainer.models.keras_internals import check_keras
from trainer.models.optimizer import check_replicas
from trainer.models.strategy import host_count, separate_replicas
from trainer.reader.batches import EvaluationData, TrainingData
from trainer.training.loop import Loop, make_ready
from trainer.training.open_run import open_run
from trainer.training.output_folder import begin_run
from trainer.training.signals import Stopped


@names_arguments(data="path", output="resume")
def fit(
    model: keras.Model,
    train: TrainingData,
    *,
    validation: EvaluationData | None = None,
    epochs: int = 1,
    resume: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    checkpoint_steps: int = 1000,
    keep_checkpoints: int = 2,
    verbose: Any = "auto",
) -> keras.callbacks.History:
    """Trains a compiled model as Keras's `fit` does, and resumes inside an epoch.

    Its `train_step`, `test_step`, loss, metrics, optimizer and callbacks count. Called again with
    the same code after a kill at any step it continues with the very next record, and the
    weights end up bit-identical to those of an undisturbed run on as many replicas. After SIGTERM
    and Ctrl-C it saves, and raises KeyboardInterrupt.

    Epochs are passes over the stream: E of them are floor(E * records / batch size) steps, so
    the records left over by one open the next.

    Args:
        model: Compiled, made in the scope of the strategy whose replicas share each batch.
        train: What `Data.train` returned.
        validation: What `Data.evaluation` returned: measured after every epoch, each record
            once. On several replicas, whose last batch is filled up with `sample_weight` 0, that
            holds for a loss that is a mean over examples and for `weighted_metrics`.
        epochs: Passes in all, those before a restart included.
        resume: Folder for checkpoints, local, `gs://` or `s3://`; an unfinished run there is
            continued, a finished one is loaded. None to save nothing.
        overwrite: Starts over where `resume` holds a run.
        callbacks: Keras's or your own. What they remember is saved, too: see
            `trainer.training.saved_run.SavedRun`.
        checkpoint_steps: Steps between two checkpoints, besides those at the ends of epochs.
        keep_checkpoints: How many of the last ones stay, besides the one of the lowest val_loss.
        verbose: As in Keras's `fit`.

    Returns:
        Keras's `History`, with the epochs before a restart.

    Raises:
        UserError: The model is not compiled, the data is broken, or `resume` holds another run or
            what is none.
        KeyboardInterrupt: SIGTERM or Ctrl-C came; everything is saved.
    """
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            f"KERAS_BACKEND received {keras.backend.backend()!r}; expected tensorflow, the only "
            "one that ims.fit trains with: set it before Keras is imported, or read the same "
            "batches as NumPy arrays by train.as_numpy()."
        )
    strategy = model.distribute_strategy
    if host_count(strategy) > 1:
        raise UserError(
            f"model received one made for {host_count(strategy)} hosts; expected one host: several "
            "are served by imageshards train --cluster, which also takes compiled models."
        )
    replicas = strategy.num_replicas_in_sync
    check_keras()
    _check(model, train, validation, replicas)
    folder = None if resume is None else path_text("resume", resume)
    config = RunConfig(
        ReadConfig(train.subset.dataset.data, skip_broken=train.skip_broken),
        folder or "",
        epochs=epochs,
        checkpoint_steps=checkpoint_steps,
        keep_checkpoints=keep_checkpoints,
    )
    if folder is None and train.skip_broken:
        raise UserError(
            f"skip_broken received {train.skip_broken} without resume; expected a folder as resume "
            "for copies of the shards without their broken records."
        )
    with nullcontext() if folder is None else begin_run(folder, overwrite):
        settings = train.identity if folder is not None else {}
        run = open_run(config, train, validation, strategy, settings)
        if replicas > 1:
            separate_replicas(model)
        make_ready(run, model)
        validate = None
        if validation is not None:
            evaluator = Evaluator(model, strategy, validation, run.broken_handler, own_step=True)
            validate = evaluator.run
        try:
            return Loop(run, model, callbacks, validate, verbose, finalize=True).run()
        except Stopped as e:
            raise KeyboardInterrupt(str(e)) from e


def _check(
    model: keras.Model, train: TrainingData, validation: EvaluationData | None, replicas: int
) -> None:
    """Refuses what would fail later, or train something else."""
    if not model.compiled:
        raise UserError("model received one that is not compiled; call model.compile(…) first.")
    for name, received, kind, method in (
        ("train", train, TrainingData, "train"),
        ("validation", validation, EvaluationData, "evaluation"),
    ):
        if not isinstance(received, kind | None if name == "validation" else kind):
            raise UserError(
                f"{name} received {type(received).__name__}; expected what "
                f"ims.open(…).{method}(…) returns, not its dataset()."
            )
    for data in (train, validation) if validation is not None else (train,):
        if data.batch_size % replicas:
            raise uneven_batch(data.batch_size, replicas)
    if validation is not None and validation.classes != train.classes:
        raise UserError(
            f"validation received the classes {', '.join(validation.classes)}, but train has "
            f"{', '.join(train.classes)}; expected the same ones in the same order: give both the "
            "same classes."
        )
    if isinstance(train.augment, str):
        check_pairs(train.augment, train.batch_size, replicas, not train.model_inputs.features)
    check_replicas(model, replicas)
