"""One training run, from a data set to a served model."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.augment.augmentation import (
    check_pairs,
    make_augmentation,
    resolve_augment_on,
)
from trainer.config import TrainConfig
from trainer.dataset.open import Inputs, open_inputs
from trainer.dataset.spec import ModelCard
from trainer.evaluation.evaluator import Evaluation, Evaluator
from trainer.models import model, strategy, unsupported
from trainer.models.optimizer import averaged_weights
from trainer.reader import pipeline
from trainer.reader.broken_handler import BrokenRecordHandler
from trainer.reader.stream import TrainingStream
from trainer.report import page as report
from trainer.serving import model_file
from trainer.training import dry_run, tensorboard
from trainer.training.checkpoint import Checkpoints, RunState, restore
from trainer.training.epochs import total_steps
from trainer.training.loop import Loop, Schedule
from trainer.training.metrics_log import METRICS_FILE
from trainer.training.output_folder import (
    BEST_MODEL_FILE,
    DIGEST_FILE,
    MODEL_FILE,
    check_vacant,
    copy_transform,
    forget_run,
    prepare_output,
    weights_digest,
    write_text,
)
from trainer.training.resume_check import check_same, identity
from trainer.training.step import make_train_step
from trainer.training.summary import plan_lines, result_lines, verdict


def train(
    config: TrainConfig,
    inputs: Inputs | None = None,
    devices: tf.distribute.Strategy | None = None,
) -> dict[str, Any]:
    """Trains, or goes on with training, and leaves everything in `config.output`.

    Args:
        config: What is asked for.
        inputs: What `open_inputs(config)` returned, where it was called already.
        devices: What `make_strategy` returned, where it was called already.

    Returns:
        The last epoch's metrics, as written; empty after a dry run.

    Raises:
        UserError: The data set, a flag or the output does not allow it.
        Stopped: SIGTERM or Ctrl-C came; everything is saved.
    """
    # First: TensorFlow divides a CPU only before it has done anything at all.
    devices = devices or strategy.make_strategy(config.replicas, config.batch_size)
    inputs = inputs or open_inputs(config)
    prepare_output(config.output)
    if config.tensorboard:
        tensorboard.check()
    run = _Run(config, inputs, devices)
    for line in run.plan():
        print(line, flush=True)
    if config.dry_run:
        run.show()
        return {}
    run.train()
    run.save()
    run.report()
    return run.state.history[-1]


class _Run:
    """The parts of one run, put together."""

    def __init__(
        self, config: TrainConfig, inputs: Inputs, devices: tf.distribute.Strategy
    ) -> None:
        self.config, self.inputs, self.devices = config, inputs, devices
        self.classes = inputs.training.classes
        name = model.resolve_name(config.model)
        replicas = devices.num_replicas_in_sync
        unsupported.check(config, replicas)
        # Pictures can be mixed, captions and other columns cannot.
        mix = not inputs.model.features
        check_pairs(config.augment, config.batch_size, replicas, mix)
        self.augment_on = resolve_augment_on(config.augment_on, strategy.gpu_count())
        self.broken_handler = BrokenRecordHandler(
            config.data.skip_broken, config.output, config.data.data, inputs.model.features
        )
        num_records = self.broken_handler.open(inputs.training).num_records
        batch_size = config.batch_size
        total = total_steps(config.epochs, config.steps, num_records, batch_size)
        self.schedule = Schedule(num_records, batch_size, total, config.checkpoint_steps)
        self.checkpoints = Checkpoints(config.output, config.keep_checkpoints)
        self.state, arrays = self._open_state()
        self.model = self._build(name)
        if arrays is not None:
            restore(model.state_variables(self.model), arrays)
        self.augmentation = make_augmentation(
            config.augment,
            self.augment_on,
            image=inputs.dataset.image,
            size=inputs.model.size,
            seed=config.seed,
            num_classes=len(self.classes),
            mix=mix,
        )
        self.stream = TrainingStream(
            config, inputs, self.augmentation, self.devices, self.broken_handler
        )
        self.evaluator = self._evaluator()
        self.evaluation: Evaluation | None = None

    def plan(self) -> list[str]:
        """What is about to happen."""
        lines = plan_lines(
            self.config, self.inputs, self.model, self.devices, self.schedule, self.augment_on
        )
        replicas, gpus = self.devices.num_replicas_in_sync, strategy.gpu_count()
        notes = unsupported.notes(self.config, replicas, self.model, self.schedule.total, gpus)
        lines += [f"note: {note}" for note in notes]
        if self.state.step >= self.schedule.total:
            lines.append(
                f"all {self.schedule.total} steps are done already; --overwrite begins anew"
            )
        elif self.state.step:
            lines.append(f"goes on after step {self.state.step} of {self.schedule.total}")
        return lines

    def show(self) -> None:
        """`--dry_run`: one batch as the model would get it."""
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

    def train(self) -> None:
        """Trains from where the run stands to its end."""
        Loop(
            model=self.model,
            train_step=make_train_step(
                self.model,
                self.devices,
                self.augmentation.device,
                self.config.optimizer.jit_compile,
            ),
            stream=self.stream,
            schedule=self.schedule,
            state=self.state,
            checkpoints=self.checkpoints,
            output=self.config.output,
            validate=self._validate if self.evaluator else None,
            observers=self._observers(),
        ).run()

    def save(self) -> None:
        """Writes model.keras, weights.sha256 and, where an earlier epoch was better, best.keras."""
        output = self.config.output
        with averaged_weights(self.model):
            model_file.save_model(self.model, os.path.join(output, MODEL_FILE), self._card())
            digest = weights_digest(self.model)
        write_text(os.path.join(output, DIGEST_FILE), f"{digest}  {MODEL_FILE}\n")
        copy_transform(self.inputs.dataset, output)
        best = self.state.best_step
        if best is None or best == self.state.step:
            return
        last = [variable.numpy() for variable in model.state_variables(self.model)]
        restore(
            model.state_variables(self.model), self.checkpoints.load(self.checkpoints.path(best))[1]
        )
        with averaged_weights(self.model):
            model_file.save_model(
                self.model, os.path.join(output, BEST_MODEL_FILE), self._card(best)
            )
        restore(model.state_variables(self.model), last)

    def report(self) -> None:
        """Writes report/ and prints where everything is, and who waited for whom."""
        config, output = self.config, self.config.output
        if self.evaluation is None and self.evaluator is not None:
            self._validate()
        found = verdict(self.stream, self.state, config.batch_size)
        page = report.write_report(
            os.path.join(output, "report"),
            title=f"{self.model.name}, {os.path.basename(os.path.normpath(config.data.data))}",
            facts=self._facts(str(found) if found else "not measured"),
            history=self.state.history,
            evaluation=self.evaluation,
            subset=self.evaluator.subset if self.evaluator else None,
        )
        print(f"model    {os.path.join(output, MODEL_FILE)}")
        print(f"metrics  {os.path.join(output, METRICS_FILE)}")
        print(f"report   {page}")
        for line in result_lines(self.state, self.broken_handler.found):
            print(line)
        if found is not None:
            print(found)

    def _open_state(self) -> tuple[RunState, list[Any] | None]:
        """Where the run stands: at its last checkpoint, or at the beginning."""
        output = self.config.output
        wanted = identity(self.config, self.inputs, self.augment_on, self.schedule.total)
        if self.config.dry_run:
            return RunState(wanted), None
        if self.config.overwrite:
            forget_run(output)
        latest = self.checkpoints.load_latest()
        if latest is None:
            check_vacant(output)
            return RunState(wanted), None
        check_same(output, latest[0].identity, wanted)
        return latest

    def _build(self, name: str) -> keras.Model:
        keras.utils.set_random_seed(self.config.seed)
        with self.devices.scope():
            built = model.build_model(
                name,
                self.inputs.model,
                len(self.classes),
                weights=self.config.weights,
                precision=self.config.optimizer.precision,
            )
            model.compile_model(
                built, self.config.optimizer, self.config.batch_size, self.schedule.total
            )
        return built

    def _evaluator(self) -> Evaluator | None:
        if self.inputs.validation is None:
            return None
        return Evaluator(
            self.model,
            self.devices,
            self.inputs.validation,
            self.inputs.read_options,
            self.config.batch_size,
            self.inputs.model,
            self.broken_handler,
        )

    def _validate(self) -> tuple[float, float]:
        """Evaluates on the validation split, with averaged weights where there are any."""
        if self.evaluator is None:
            raise ValueError("there is no validation split")
        with averaged_weights(self.model):
            self.evaluation = self.evaluator.run()
        return self.evaluation.loss, self.evaluation.accuracy

    def _observers(self) -> tuple[Callable[[dict[str, Any]], None], ...]:
        if not self.config.tensorboard:
            return ()
        writer = tensorboard.Writer(os.path.join(self.config.output, "tensorboard"))
        pictures = self.stream.first(self.state.step)["inputs"]["image"]
        writer.images(self.state.step, "augmented", pictures)

        def observe(record: dict[str, Any]) -> None:
            numbers = {k: v for k, v in record.items() if v is not None and k != "step"}
            writer.scalars(record["step"], numbers)

        return (observe,)

    def _card(self, step: int | None = None) -> ModelCard:
        inputs = self.inputs
        return ModelCard(
            self.classes,
            inputs.model,
            inputs.dataset.image_feature,
            inputs.dataset.label_feature,
            inputs.dataset.fingerprint,
            self.config.as_json(),
            self.state.step if step is None else step,
        )

    def _facts(self, found: str) -> dict[str, str]:
        config = self.config
        return {
            "data": config.data.data,
            "model": f"{self.model.name}, {self.model.count_params():,} parameters",
            "steps": f"{self.state.step} of global batch {config.batch_size}",
            "devices": strategy.describe(self.devices),
            "seed": str(config.seed),
            "augmentation": f"{config.augment} on the {self.augment_on}",
            "speed": found,
        }
