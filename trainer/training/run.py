"""Trains a model, from a dataset to the served model and its report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any

import keras
import tensorflow as tf
from keras.callbacks import Callback

from imageshards import storage
from imageshards.commands.options import options_of, refuse_idle
from imageshards.commands.output_folder import write_page
from imageshards.text import for_output
from trainer.augment.augmentation import resolve_augment_on
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.config import OptimizerConfig, RunConfig
from trainer.evaluation.evaluator import measure
from trainer.models import model, optimizer, strategy, user_model
from trainer.models.freezing import Frozen, schedule_after
from trainer.models.keras_internals import check_keras
from trainer.models.metrics import ALWAYS
from trainer.reader.batches import TrainingData
from trainer.reader.described import EvaluationData
from trainer.reader.stream import EvaluationStream
from trainer.report.page import page_of, target_fact
from trainer.serving.model_file import BEST_MODEL_FILE, MODEL_FILE, card_of, save_model
from trainer.training import summary
from trainer.training.callbacks import (
    AveragedWeights,
    MetricsFile,
    Progress,
    WaitingTime,
)
from trainer.training.checkpoint import restore
from trainer.training.loop import Loop, make_ready
from trainer.training.open_run import Epochs, Run, open_run
from trainer.training.output_folder import (
    METRICS_FILE,
    TENSORBOARD_FOLDER,
    begin_run,
    copy_transform,
    write_digest,
)
from trainer.training.saved_run import Saving
from trainer.training.signals import stopped_by_sigterm


@dataclasses.dataclass(frozen=True)
class Built:
    """A model that is ready for its first step.

    The model `is_ours` if this program compiled it; a user's compiled model has its own metrics.
    `frozen` lets layers train only from a later epoch on.
    """

    model: keras.Model
    is_ours: bool
    frozen: Frozen | None = None


def train(
    config: RunConfig,
    training: TrainingData,
    validation: EvaluationData | None,
    hosts: Hosts = ONE_HOST,
) -> dict[str, float | None]:
    """Trains, or resumes training, and writes everything to `config.output`.

    `training` and `validation` are the results of `open_data(config.read)`. A signal raises
    `Stopped` after every step is saved.

    Returns:
        The last epoch's metrics, as written; empty after a dry run.
    """
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    # TensorFlow can divide a CPU into logical devices only before it uses the CPU.
    devices = strategy.make_strategy(config.replicas, config.read.batch_size, hosts)
    name = model.resolve_name(config.model)
    check(config, training, devices)  # before --overwrite removes an earlier run
    # Every host has its own output folder here (`only_chief_writes`). A dry run writes a picture.
    with begin_run(config.output, config.overwrite and not config.dry_run):
        run = begin(config, training, validation, devices, hosts)
        with stopped_by_sigterm(run.saved.saved_step):
            with hosts.limited("The making of the model's variables"):
                built = build_and_compile(config, run, name)
            print_plan(config, run, built.model)
            if config.dry_run:
                show_first_batch(config, run)
                return {}
            metrics = fit(config, run, built)
            publish(config, run, built, metrics)
            return metrics.history[-1]


def check(config: RunConfig, training: TrainingData, devices: tf.distribute.Strategy) -> None:
    """Refuses settings that these devices cannot train with."""
    check_keras()
    training.check_pairs(devices.num_replicas_in_sync)
    config.check_unfreezing(Epochs.of(training, config.epochs, config.steps).count)


def begin(
    config: RunConfig,
    training: TrainingData,
    validation: EvaluationData | None,
    devices: tf.distribute.Strategy,
    hosts: Hosts = ONE_HOST,
) -> Run:
    """Begins a run in the output folder, or continues it; chooses the side that augments.

    A dry run continues and saves nothing.
    """
    augment_on = resolve_augment_on(training.augment_on, strategy.gpu_count())
    training = dataclasses.replace(training, augment_on=augment_on)
    epochs = Epochs.of(training, config.epochs, config.steps)
    saving = Saving(
        None if config.dry_run else config.output,
        settings_of(config, training),
        config.checkpoint_steps,
        config.keep_checkpoints,
    )
    return open_run(training, validation, devices, epochs, saving, hosts)


def settings_of(config: RunConfig, training: TrainingData) -> dict[str, Any]:
    """Returns the settings that decide what a step computes, as JSON values.

    The number of replicas and options that only change the speed are absent.
    """
    optimizer = config.optimizer
    found: dict[str, Any] = {
        **training.identity,
        "model": config.model,
        "weights": config.weights,
        "freeze": config.freeze,
        "unfreeze_after": config.unfreeze_after,
        "sync_batchnorm": config.sync_batchnorm,
        "deterministic": config.deterministic,
        "metrics": list(config.metrics),
        **dataclasses.asdict(optimizer),
    }
    # The rates of a schedule depend on the length of the run.
    if optimizer.schedule != "constant":
        found["steps"] = Epochs.of(training, config.epochs, config.steps).total_steps
    return found


def build_and_compile(config: RunConfig, run: Run, name: str) -> Built:
    """Returns the model `name` with all of its variables, the same on all hosts."""
    subset = run.train.subset
    target, mean_std = subset.dataset.target, subset.target_mean_std
    head = model.Head(run.train.num_outputs, target, mean_std, subset.output_names)
    # Initial weights and dropout depend on this seed; the reader has its own generator.
    keras.utils.set_random_seed(config.read.seed)
    with run.devices.scope():
        built = model.build_model(
            name,
            run.train.model_inputs,
            head,
            weights=config.weights,
            precision=config.optimizer.precision,
            sync_batchnorm=config.sync_batchnorm,
        )
        is_ours = not built.compiled
        if is_ours:
            batch_size, steps = run.train.batch_size, run.epochs.total_steps
            model.compile_model(built, head, config.optimizer, batch_size, steps, config.metrics)
        else:
            _refuse_optimizer_flags(config)
    frozen = _frozen(config, run, built)
    optimizer.check_replicas(built, run.devices.num_replicas_in_sync)
    make_ready(run, built)
    return Built(built, is_ours, frozen)


def _frozen(config: RunConfig, run: Run, network: keras.Model) -> Frozen | None:
    """Freezes layers of a model until `unfreeze_after`; returns the callback that frees them."""
    if config.freeze is None:
        return None
    after, schedule = config.unfreeze_after, None
    if after:
        steps = run.epochs.total_steps - run.epochs.end(after - 1)
        schedule = schedule_after(config.optimizer, run.train.batch_size, steps)
    return Frozen(network, config.freeze, after, schedule)


def _refuse_optimizer_flags(config: RunConfig) -> None:
    """Refuses flags for which a compiled model has its own optimizer, loss or metrics."""
    for part, names in (
        (config.optimizer, options_of(OptimizerConfig)),
        (config, ("metrics", "freeze")),
    ):
        for name in names:
            refuse_idle(part, name, "with a compiled model, which brings its own", "model.compile")


def print_plan(config: RunConfig, run: Run, network: keras.Model) -> None:
    """Prints the dataset, the model and the length of the training."""
    total = run.epochs.total_steps
    lines = [for_output(line) for line in summary.plan_lines(config, run, network)]
    if run.step >= total:
        lines.append(f"all {total} steps are done already; --overwrite starts over")
    elif run.step:
        lines.append(f"resumes after step {run.step} of {total}")
    print("\n".join(lines), flush=True)


def show_first_batch(config: RunConfig, run: Run) -> None:
    """Shows a batch as the model receives it, for `--dry_run`."""
    batch, training = run.stream.first(0), run.train
    if run.hosts.is_chief:
        target = training.subset.dataset.target
        summary.show_batch(batch, training.classes, config.output, target)


def fit(config: RunConfig, run: Run, built: Built) -> MetricsFile:
    """Trains from the last checkpoint to the end; returns the callback that wrote metrics.jsonl."""
    # Every object in metrics.jsonl has these keys, null for unknown values.
    names = ("loss", *ALWAYS.get(run.train.subset.dataset.target, ()))
    columns = [*names, *(f"val_{name}" for name in names), "images_per_second", "wait_fraction"]
    metrics = MetricsFile(storage.join(config.output, METRICS_FILE), columns)
    waiting = WaitingTime(run.train.batch_size)
    with contextlib.closing(Progress(waiting, metrics)) as progress:
        # The user's callbacks come later, because they may change the rate of the next steps.
        callbacks: list[Callback] = [waiting, metrics]
        if built.frozen is not None:
            callbacks.insert(0, built.frozen)
        if run.hosts.is_chief:
            callbacks.append(progress)
            if config.tensorboard:
                folder = storage.join(config.output, TENSORBOARD_FOLDER)
                callbacks.append(keras.callbacks.TensorBoard(folder, write_graph=False))
        if config.callbacks is not None:
            callbacks += user_model.load_callbacks(config.callbacks)
        callbacks.append(AveragedWeights())
        Loop(run, built.model, callbacks).run()
    return metrics


def publish(config: RunConfig, run: Run, built: Built, metrics: MetricsFile) -> None:
    """Writes the last model, the best model and the report; prints their paths."""
    copy_transform(run.train.subset.dataset, config.output)
    write_digest(config.output, built.model)
    _save(config, run, built, MODEL_FILE, run.step)
    step = _save_best_model(config, run, built)
    _report(config, run, built, metrics, step)


def _save(config: RunConfig, run: Run, built: Built, name: str, step: int) -> None:
    # A user's compiled model outputs values in their own unit, without mean and deviation.
    card = card_of(
        run.train,
        training=dataclasses.asdict(config),
        step=step,
        compiled=not built.is_ours,
        target_mean_std=run.train.subset.target_mean_std if built.is_ours else None,
    )
    save_model(built.model, storage.join(config.output, name), card)


def _save_best_model(config: RunConfig, run: Run, built: Built) -> int:
    """Writes best.keras if an earlier epoch was the best, else removes the file.

    Returns the step of the served model, whose weights `built` then has.
    """
    best, checkpoints = run.saved.state.best_step, run.saved.checkpoints
    if checkpoints is None or best is None or best == run.step:
        if run.hosts.is_chief:  # a shorter run with this output may have had a best model
            storage.delete([storage.join(config.output, BEST_MODEL_FILE)])
        return run.step
    variables = model.state_variables(built.model)
    restore(variables, checkpoints.load(best).variables, run.hosts)
    optimizer.use_average(built.model)
    _save(config, run, built, BEST_MODEL_FILE, best)
    return best


def _report(config: RunConfig, run: Run, built: Built, metrics: MetricsFile, step: int) -> None:
    """Writes report/ of the model of `step`, and prints the paths and the figures."""
    output, network, evaluation = config.output, built.model, None
    # A user's compiled model has no evaluation here, but metrics.jsonl has its figures.
    validation = run.validation if built.is_ours else None
    if validation is not None:
        stream = EvaluationStream(validation, run.devices, run.broken)
        evaluation = measure(
            network, run.devices, stream, network.loss, run.train.classes, run.hosts
        )
    if not run.hosts.is_chief:
        return
    history = metrics.history
    # `served` names the file for `predict` and `export`, its epoch, and the run's last epoch.
    file = BEST_MODEL_FILE if step < run.step else MODEL_FILE
    record = next((one for one in history if one["step"] == step), history[-1])
    served = f"{file}, the model after epoch {record['epoch']} of {history[-1]['epoch']}"
    speed = summary.waiting_line(history)
    name = os.path.basename(os.path.normpath(config.read.data))
    mean_std = run.train.subset.target_mean_std if built.is_ours else None
    facts = {
        "data": config.read.data,
        **target_fact(run.train.subset.dataset, mean_std),
        "model": f"{network.name}, {network.count_params():,} parameters",
        "steps": f"{run.step} of global batch {run.train.batch_size}",
        "devices": strategy.describe(run.devices),
        "seed": str(config.read.seed),
        "augmentation": f"{config.read.augment} on the {run.train.augment_on}",
        "speed": speed or "not measured",
    }
    subset = validation.subset if validation is not None else None
    text = page_of(f"{network.name}, {name}", facts, history, evaluation, subset, served)
    page = write_page(storage.join(output, "report"), text)
    print(f"model    {storage.join(output, MODEL_FILE)}")
    print(f"metrics  {storage.join(output, METRICS_FILE)}")
    print(f"report   {page}")
    if config.tensorboard:
        print(f"events   tensorboard --logdir {storage.join(output, TENSORBOARD_FOLDER)}")
    figures = {name: record.get(f"val_{name}") for name in ("loss", "accuracy")}
    if evaluation is not None:
        figures = {**evaluation.figures()}
    for line in summary.result_lines(figures, served, run.broken.found, speed):
        print(for_output(line))
