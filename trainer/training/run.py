"""One training run, from a data set to a served model."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from keras.callbacks import CallbackList

from imageshards import storage
from imageshards.errors import UserError
from imageshards.text import for_output
from trainer.augment.augmentation import check_pairs, resolve_augment_on
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.config import OptimizerConfig, TrainConfig
from trainer.dataset.open import Inputs, open_inputs
from trainer.dataset.spec import ModelCard
from trainer.evaluation.evaluator import Evaluator
from trainer.models import model, optimizer, strategy, user_model
from trainer.models.keras_internals import check_keras
from trainer.models.step import build_variables, make_train_step
from trainer.reader import pipeline
from trainer.reader.batches import EvaluationData, TrainingData
from trainer.reader.broken_records import BrokenRecordHandler
from trainer.reader.stream import TrainingStream
from trainer.report import page as report
from trainer.serving.model_file import BEST_MODEL_FILE, MODEL_FILE, save_model
from trainer.training import dry_run
from trainer.training.callbacks import (
    MetricsFile,
    NaNGuard,
    Progress,
    TensorBoard,
    WaitingTime,
    check_tensorboard,
)
from trainer.training.checkpoint import restore
from trainer.training.checkpoint_callback import Checkpoint, state_values
from trainer.training.loop import Epochs, Loop, total_steps
from trainer.training.output_folder import (
    METRICS_FILE,
    TENSORBOARD_FOLDER,
    copy_transform,
    hold_output,
    mark_run,
    prepare_output,
    remove_run,
    write_digest,
)
from trainer.training.resume_check import open_run, settings_of
from trainer.training.several_hosts import digest
from trainer.training.summary import plan_lines, result_lines, waiting

# Keys of every object in metrics.jsonl; null where a value is unknown.
_COLUMNS = ("loss", "accuracy", "val_loss", "val_accuracy", "images_per_second", "wait_fraction")


def train(
    config: TrainConfig,
    inputs: Inputs | None = None,
    devices: tf.distribute.Strategy | None = None,
    hosts: Hosts = ONE_HOST,
) -> dict[str, Any]:
    """Trains, or resumes training, and writes everything to `config.output`.

    Args:
        config: The run.
        inputs: What `open_inputs(config)` returned, where it was called already.
        devices: What `make_strategy` returned, where it was called already.
        hosts: Those that share each batch.

    Returns:
        The last epoch's metrics, as written; empty after a dry run.

    Raises:
        UserError: The data set, a flag or the output folder does not allow it.
        Stopped: SIGTERM or Ctrl-C came; everything is saved.
    """
    # TensorFlow can only divide a CPU into logical devices before its first use.
    devices = devices or strategy.make_strategy(config.replicas, config.batch_size, hosts)
    inputs = inputs or open_inputs(config)
    prepare_output(config.output)
    if config.tensorboard:
        check_tensorboard()
    # Others than the chief write to a folder of their own.
    with hold_output(config.output):
        run = _Run(config, inputs, devices, hosts)
        run.print_plan()
        if config.dry_run:
            run.show_batch()
            return {}
        run.train()
        run.save_model()
        run.save_best_model()
        run.report()
        return run.metrics.history[-1]


class _Run:
    """The parts of one run, each made from those above it."""

    def __init__(
        self,
        config: TrainConfig,
        inputs: Inputs,
        devices: tf.distribute.Strategy,
        hosts: Hosts = ONE_HOST,
    ) -> None:
        self.config, self.inputs, self.devices, self.hosts = config, inputs, devices, hosts
        self.model_name = self._check()
        self.augment_on = resolve_augment_on(config.augment_on, strategy.gpu_count())
        num_records = inputs.training.num_records
        total = total_steps(config.epochs, config.steps, num_records, config.batch_size)
        self.epochs = Epochs(num_records, config.batch_size, total)
        # Before anything of an earlier run is read.
        if config.overwrite and not config.dry_run:
            remove_run(config.output)
        mark_run(config.output)  # a dry run, too, leaves a picture
        self.broken_handler = BrokenRecordHandler(
            config.data.skip_broken, config.output, config.data.data, inputs.model.features, hosts
        )
        self.data = TrainingData.of(config, inputs, self.augment_on)
        self.validation_data: EvaluationData | None = None
        if (subset := inputs.validation) is not None:
            self.validation_data = EvaluationData(
                subset, inputs.read_options, inputs.model, config.batch_size
            )
        settings = settings_of(config, self.data, total)
        self._compare(settings)
        self.checkpoint: Checkpoint | None = None
        if not config.dry_run:
            length = f"--epochs received {config.epochs}"
            if config.steps is not None:
                length = f"--steps received {config.steps}"
            self.checkpoint = open_run(
                config.output,
                config.checkpoint_steps,
                config.keep_checkpoints,
                settings,
                total,
                length,
                hosts,
            )
        self.start = self.checkpoint.step if self.checkpoint else 0
        with hosts.limited("The making of the model's variables"):
            self.model = self._build_model()
        self.stream = TrainingStream(self.data, devices, self.broken_handler, hosts)
        self.metrics = MetricsFile(storage.join(config.output, METRICS_FILE), _COLUMNS)
        self.evaluator = self._make_evaluator()

    def print_plan(self) -> None:
        """Prints what is about to be trained, and notes on settings that may surprise."""
        total = self.epochs.total_steps
        lines = plan_lines(
            self.config, self.inputs, self.model, self.devices, self.epochs, self.augment_on
        )
        notes = optimizer.notes(self.config, self.model, total, strategy.gpu_count())
        lines = [for_output(line) for line in (*lines, *(f"note: {note}" for note in notes))]
        if self.config.tensorboard and not self.config.dry_run:
            folder = storage.join(self.config.output, TENSORBOARD_FOLDER)
            lines.append(f"curves and pictures while it runs: tensorboard --logdir {folder}")
        if self.start >= total:
            lines.append(f"all {total} steps are done already; --overwrite starts over")
        elif self.start:
            lines.append(f"resumes after step {self.start} of {total}")
        print("\n".join(lines), flush=True)

    def show_batch(self) -> None:
        """`--dry_run`: shows one batch as the model would get it."""
        config, inputs = self.config, self.inputs
        batch = self.stream.first(0)
        if not self.hosts.is_chief:
            return
        dry_run.describe(
            batch,
            inputs.training.classes,
            pipeline.memory_bytes(
                inputs.training, inputs.read_options, config.batch_size, inputs.model
            ),
            storage.join(config.output, "report"),
        )

    def train(self) -> None:
        """Trains from the last checkpoint to the end."""
        config = self.config
        waiting = WaitingTime(config.batch_size)
        with contextlib.closing(Progress(config.batch_size, waiting, self.metrics)) as progress:
            shown = [progress] if self.hosts.is_chief else []
            # Before the user's, which may change the rate for the steps to come.
            callbacks = [waiting, self.metrics, *shown, *self._user_callbacks()]
            if self.checkpoint is not None:
                callbacks.append(NaNGuard(self.checkpoint.diverged))
            loop = Loop(
                self.model,
                make_train_step(self.model, self.devices, self.data.augmentation.device),
                self.stream,
                self.epochs,
                [*callbacks, *self._tensorboard()],
                self.checkpoint,
                self._validate if self.validation_data else None,
                hosts=self.hosts,
            )
            loop.run()
        if self.config.callbacks is not None and self.evaluator is not None:
            self.evaluator.evaluation = None  # they may have changed the weights

    def save_model(self) -> None:
        """Writes the data set's transform and weights.sha256, then the model they belong to."""
        output = self.config.output
        copy_transform(self.inputs.dataset, output)
        with optimizer.averaged_weights(self.model):
            write_digest(output, self.model)
            self._save(MODEL_FILE, self.step)

    def save_best_model(self) -> None:
        """Writes best.keras where an earlier epoch than the last was the best, else removes it."""
        best = self.best_step
        if self.checkpoint is None or best is None or best == self.step:
            if self.hosts.is_chief:  # one of a shorter run, which this one went on with
                storage.delete([storage.join(self.config.output, BEST_MODEL_FILE)])
            return
        variables = model.state_variables(self.model)
        last = state_values(self.model, self.hosts)
        restore(variables, self.checkpoint.load(best), self.hosts)
        with optimizer.averaged_weights(self.model):
            self._save(BEST_MODEL_FILE, best)
        restore(variables, last, self.hosts)

    @property
    def step(self) -> int:
        """Training steps done."""
        return self.checkpoint.step if self.checkpoint else 0

    @property
    def best_step(self) -> int | None:
        """Where the lowest val_loss was."""
        return self.checkpoint.state.best_step if self.checkpoint else None

    def report(self) -> None:
        """Writes report/, and prints where everything is and what limited the speed."""
        config, output = self.config, self.config.output
        evaluator = self.evaluator if self.is_classifier else None
        if evaluator is not None and evaluator.evaluation is None:
            self._validate(CallbackList())
        if not self.hosts.is_chief:
            return
        history = self.metrics.history
        speed = waiting(history)
        page = report.write_report(
            storage.join(output, "report"),
            title=f"{self.model.name}, "
            + ", ".join(os.path.basename(os.path.normpath(p)) for p in config.data.paths),
            facts={
                "data": config.data.data,
                "model": f"{self.model.name}, {self.model.count_params():,} parameters",
                "steps": f"{self.step} of global batch {config.batch_size}",
                "devices": strategy.describe(self.devices),
                "seed": str(config.seed),
                "augmentation": f"{config.augment} on the {self.augment_on}",
                "speed": speed or "not measured",
            },
            history=history,
            evaluation=evaluator.evaluation if evaluator else None,
            subset=evaluator.subset if evaluator else None,
        )
        print(f"model    {storage.join(output, MODEL_FILE)}")
        print(f"metrics  {storage.join(output, METRICS_FILE)}")
        print(f"report   {page}")
        for line in result_lines(history, self.best_step, self.broken_handler.found, speed):
            print(for_output(line))

    def _check(self) -> str:
        """Refuses what cannot be trained; returns the model's name as Keras spells it."""
        check_keras()
        replicas = self.devices.num_replicas_in_sync
        name = model.resolve_name(self.config.model)
        strategy.check_replicas(self.config.optimizer, replicas)
        mix = not self.inputs.model.features
        check_pairs(self.config.augment, self.config.batch_size, replicas, mix)
        return name

    def _compare(self, settings: Mapping[str, Any]) -> None:
        """Refuses hosts with other data, before any of them makes a variable."""
        found = {f"--{name}": value for name, value in settings.items() if name != "data"}
        for name, data in (("--data", self.data), ("--validation_data", self.validation_data)):
            fingerprint = data.subset.dataset.fingerprint if data is not None else None
            found[f"The fingerprint of {name}"] = fingerprint
        self.hosts.compare(found)

    def _build_model(self) -> keras.Model:
        config, inputs = self.config, self.inputs
        keras.utils.set_random_seed(config.seed)
        with self.devices.scope():
            built = model.build_model(
                self.model_name,
                inputs.model,
                len(inputs.training.classes),
                weights=config.weights,
                precision=config.optimizer.precision,
            )
            self.is_classifier = not built.compiled
            if not self.is_classifier:
                self._refuse_optimizer_flags()
                optimizer.check_compiled(built, self.devices.num_replicas_in_sync)
            else:
                total = self.epochs.total_steps
                model.compile_model(
                    built, config.optimizer, config.batch_size, total, config.metrics
                )
        validates = self.validation_data is not None
        build_variables(built, self.devices, self.data.element_spec, validates)
        model.check_optimizers(built)
        self.hosts.compare(
            {"The model (SHA-256 of its variables' names and shapes)": digest(built)}
        )
        return built

    def _refuse_optimizer_flags(self) -> None:
        """A compiled model has an optimizer, a loss and metrics already."""
        given = dataclasses.asdict(self.config.optimizer)
        default = dataclasses.asdict(OptimizerConfig())
        flags = [name for name in given if given[name] != default[name]]
        flags += ["metrics"] if self.config.metrics else []
        if flags:
            raise UserError(
                f"--{flags[0]} received {given.get(flags[0], ','.join(self.config.metrics))}, but "
                f"--model {self.config.model} returns a compiled model, which brings its own; "
                f"leave --{flags[0]} out, or compile the model with it."
            )

    def _make_evaluator(self) -> Evaluator | None:
        data, broken = self.validation_data, self.broken_handler
        if data is None:
            return None
        # A classifier is looked at closely; a compiled model says by itself how good it is.
        own = not self.is_classifier
        return Evaluator(self.model, self.devices, data, broken, own_step=own, hosts=self.hosts)

    def _validate(self, callbacks: CallbackList) -> dict[str, float]:
        """Figures of the validation split, with averaged weights where there are any."""
        if self.evaluator is None:
            return {}
        with optimizer.averaged_weights(self.model):
            return self.evaluator.run(callbacks)

    def _user_callbacks(self) -> list[keras.callbacks.Callback]:
        if self.config.callbacks is None:
            return []
        return user_model.load_callbacks(self.config.callbacks)

    def _tensorboard(self) -> list[TensorBoard]:
        if not self.config.tensorboard:
            return []
        pictures = self.stream.first(self.start)["inputs"]["image"]
        if not self.hosts.is_chief:
            return []
        board = TensorBoard(storage.join(self.config.output, TENSORBOARD_FOLDER), self.metrics)
        board.images(self.start, "augmented", pictures)
        return [board]

    def _save(self, name: str, step: int) -> None:
        path = storage.join(self.config.output, name)
        save_model(self.model, path, self._card(step))

    def _card(self, step: int) -> ModelCard:
        inputs = self.inputs
        return ModelCard(
            inputs.training.classes,
            inputs.model,
            inputs.dataset.image_feature,
            inputs.dataset.label_feature,
            inputs.dataset.fingerprint,
            self.config.as_json(),
            step,
            compiled=not self.is_classifier,
        )
