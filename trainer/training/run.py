"""One training run, from a data set to a served model."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.augment.augmentation import check_pairs, resolve_augment_on
from trainer.config import TrainConfig
from trainer.dataset.open import Inputs, open_inputs
from trainer.dataset.spec import ModelCard
from trainer.evaluation.evaluator import Evaluation, Evaluator
from trainer.models import model, optimizer, strategy
from trainer.reader import pipeline
from trainer.reader.batches import TrainingData
from trainer.reader.broken_records import BrokenRecordHandler
from trainer.reader.stream import TrainingStream
from trainer.report import page as report
from trainer.serving.model_file import MODEL_FILE, save_model
from trainer.training import dry_run, metrics
from trainer.training.checkpoint import Checkpoints, restore, values_of
from trainer.training.loop import Epochs, Loop, make_train_step, total_steps
from trainer.training.output_folder import (
    BEST_MODEL_FILE,
    copy_transform,
    prepare_output,
    write_digest,
)
from trainer.training.resume_check import open_run, settings_of
from trainer.training.summary import bottleneck, plan_lines, result_lines


def train(
    config: TrainConfig,
    inputs: Inputs | None = None,
    devices: tf.distribute.Strategy | None = None,
) -> dict[str, Any]:
    """Trains, or resumes training, and writes everything to `config.output`.

    Args:
        config: The run.
        inputs: What `open_inputs(config)` returned, where it was called already.
        devices: What `make_strategy` returned, where it was called already.

    Returns:
        The last epoch's metrics, as written; empty after a dry run.

    Raises:
        UserError: The data set, a flag or the output folder does not allow it.
        Stopped: SIGTERM or Ctrl-C came; everything is saved.
    """
    # First: TensorFlow divides a CPU into logical devices only before it is used.
    devices = devices or strategy.make_strategy(config.replicas, config.batch_size)
    inputs = inputs or open_inputs(config)
    prepare_output(config.output)
    if config.tensorboard:
        metrics.check_tensorboard()
    run = _Run(config, inputs, devices)
    run.print_plan()
    if config.dry_run:
        run.show_batch()
        return {}
    loop = run.train()
    run.save_model()
    run.save_best_model()
    run.report(loop.reader_cpu_sec())
    return run.state.history[-1]


class _Run:
    """The parts of one run, each made from those above it."""

    def __init__(
        self, config: TrainConfig, inputs: Inputs, devices: tf.distribute.Strategy
    ) -> None:
        self.config, self.inputs, self.devices = config, inputs, devices
        self.model_name = self._check()
        self.augment_on = resolve_augment_on(config.augment_on, strategy.gpu_count())
        num_records = inputs.training.num_records
        total = total_steps(config.epochs, config.steps, num_records, config.batch_size)
        self.epochs = Epochs(num_records, config.batch_size, total)
        self.checkpoints = Checkpoints(config.output, config.keep_checkpoints)
        settings = settings_of(config, inputs, self.augment_on, total)
        # Before anything of an earlier run is read: `--overwrite` removes it here.
        self.state, values = open_run(config, self.checkpoints, settings)
        self.broken_handler = BrokenRecordHandler(
            config.data.skip_broken, config.output, config.data.data, inputs.model.features
        )
        self.model = self._build_model()
        if values is not None:
            restore(model.state_variables(self.model), values)
        self.data = TrainingData.of(config, inputs, self.augment_on)
        self.stream = TrainingStream(self.data, devices, self.broken_handler)
        self.evaluator = self._make_evaluator()
        self.evaluation: Evaluation | None = None

    def print_plan(self) -> None:
        """Prints what is about to be trained, and notes on settings that may surprise."""
        total = self.epochs.total_steps
        lines = plan_lines(
            self.config, self.inputs, self.model, self.devices, self.epochs, self.augment_on
        )
        notes = optimizer.notes(self.config, self.model, total, strategy.gpu_count())
        lines += [f"note: {note}" for note in notes]
        if self.state.step >= total:
            lines.append(f"all {total} steps are done already; --overwrite starts over")
        elif self.state.step:
            lines.append(f"resumes after step {self.state.step} of {total}")
        print("\n".join(lines), flush=True)

    def show_batch(self) -> None:
        """`--dry_run`: shows one batch as the model would get it."""
        config, inputs = self.config, self.inputs
        dry_run.describe(
            self.stream.first(0),
            inputs.training,
            self.model,
            inputs.model,
            pipeline.memory_bytes(
                inputs.training, inputs.read_options, config.batch_size, inputs.model
            ),
            os.path.join(config.output, "report"),
        )

    def train(self) -> Loop:
        """Trains from the last checkpoint to the end."""
        step = make_train_step(
            self.model,
            self.devices,
            self.data.augmentation.device,
            self.config.optimizer.jit_compile,
        )
        loop = Loop(
            model=self.model,
            train_step=step,
            stream=self.stream,
            epochs=self.epochs,
            state=self.state,
            checkpoints=self.checkpoints,
            checkpoint_steps=self.config.checkpoint_steps,
            output=self.config.output,
            validate=self._validate if self.evaluator else None,
            observers=self._observers(),
        )
        loop.run()
        return loop

    def save_model(self) -> None:
        """Writes model.keras, weights.sha256 and the data set's transform."""
        output = self.config.output
        with optimizer.averaged_weights(self.model):
            save_model(self.model, os.path.join(output, MODEL_FILE), self._card(self.state.step))
            write_digest(output, self.model)
        copy_transform(self.inputs.dataset, output)

    def save_best_model(self) -> None:
        """Writes best.keras where an earlier epoch than the last was the best."""
        best = self.state.best_step
        if best is None or best == self.state.step:
            return
        variables = model.state_variables(self.model)
        last = values_of(variables)
        restore(variables, self.checkpoints.load(self.checkpoints.path(best))[1])
        with optimizer.averaged_weights(self.model):
            path = os.path.join(self.config.output, BEST_MODEL_FILE)
            save_model(self.model, path, self._card(best))
        restore(variables, last)

    def report(self, reader_cpu_sec: float | None) -> None:
        """Writes report/, and prints where everything is and what limited the speed."""
        config, output = self.config, self.config.output
        if self.evaluation is None and self.evaluator is not None:
            self._validate()
        speed = bottleneck(self.state.history, reader_cpu_sec)
        page = report.write_report(
            os.path.join(output, "report"),
            title=f"{self.model.name}, {os.path.basename(os.path.normpath(config.data.data))}",
            facts={
                "data": config.data.data,
                "model": f"{self.model.name}, {self.model.count_params():,} parameters",
                "steps": f"{self.state.step} of global batch {config.batch_size}",
                "devices": strategy.describe(self.devices),
                "seed": str(config.seed),
                "augmentation": f"{config.augment} on the {self.augment_on}",
                "speed": speed or "not measured",
            },
            history=self.state.history,
            evaluation=self.evaluation,
            subset=self.evaluator.subset if self.evaluator else None,
        )
        print(f"model    {os.path.join(output, MODEL_FILE)}")
        print(f"metrics  {os.path.join(output, metrics.METRICS_FILE)}")
        print(f"report   {page}")
        for line in result_lines(self.state, self.broken_handler.found, speed):
            print(line)

    def _check(self) -> str:
        """Refuses what cannot be trained; returns the model's name as Keras spells it."""
        replicas = self.devices.num_replicas_in_sync
        name = model.resolve_name(self.config.model)
        strategy.check_replicas(self.config.optimizer, replicas)
        mix = not self.inputs.model.features
        check_pairs(self.config.augment, self.config.batch_size, replicas, mix)
        return name

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
            model.compile_model(built, config.optimizer, config.batch_size, self.epochs.total_steps)
        return built

    def _make_evaluator(self) -> Evaluator | None:
        inputs = self.inputs
        if inputs.validation is None:
            return None
        return Evaluator(
            self.model,
            self.devices,
            inputs.validation,
            inputs.read_options,
            self.config.batch_size,
            inputs.model,
            self.broken_handler,
        )

    def _validate(self) -> tuple[float, float]:
        """(loss, accuracy) on the validation split, with averaged weights where there are any."""
        if self.evaluator is None:
            raise ValueError("there is no validation split")
        with optimizer.averaged_weights(self.model):
            self.evaluation = self.evaluator.run()
        return self.evaluation.loss, self.evaluation.accuracy

    def _observers(self) -> tuple[Callable[[dict[str, Any]], None], ...]:
        if not self.config.tensorboard:
            return ()
        board = metrics.TensorBoard(os.path.join(self.config.output, "tensorboard"))
        pictures = self.stream.first(self.state.step)["inputs"]["image"]
        board.images(self.state.step, "augmented", pictures)
        return (board.epoch,)

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
        )
