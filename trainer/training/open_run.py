"""Begins a run, or continues a run whose settings are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from imageshards.errors import Arg, UserError
from imageshards.text import counted
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.config import RunConfig
from trainer.reader.batches import EvaluationData, TrainingData
from trainer.reader.broken_records import BrokenRecords
from trainer.reader.stream import TrainingStream
from trainer.strengths import NAMED, Augment
from trainer.training.checkpoint import RunState
from trainer.training.output_folder import OTHER_OUTPUT, check_no_model
from trainer.training.saved_run import SavedRun


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The epochs of a run by the steps at which they end; the last epoch may be cut short.

    Batches are cut from one endless stream, so an epoch's leftover records open the next epoch.
    After E epochs, all but the last < `batch_size` records were seen E times.
    """

    num_records: int
    batch_size: int
    total_steps: int

    @property
    def count(self) -> int:
        """Returns the number of epochs; the last epoch may be cut short."""
        return -(-self.total_steps * self.batch_size // self.num_records)

    def end(self, epoch: int) -> int:
        """Returns the step at which `epoch` (from 0) ends, or at which the run ends inside it."""
        return min(self.total_steps, (epoch + 1) * self.num_records // self.batch_size)


@dataclasses.dataclass(frozen=True)
class Run:
    """An open run: its data, its devices, and its state so far.

    The replicas of `devices` on all `hosts` share each batch of `stream`. Hosts stop together, and
    leave out the broken records of both splits together.
    """

    train: TrainingData
    validation: EvaluationData | None
    epochs: Epochs
    devices: tf.distribute.Strategy
    stream: TrainingStream
    broken: BrokenRecords
    saved: SavedRun
    hosts: Hosts = ONE_HOST

    @property
    def step(self) -> int:
        """Returns the number of training steps so far."""
        return self.saved.state.step

    @property
    def was_ended(self) -> bool:
        """Returns whether a callback ended the run before its last step; it trains no more."""
        return self.saved.state.stopped and self.step < self.epochs.total_steps


def open_run(
    config: RunConfig,
    train: TrainingData,
    validation: EvaluationData | None,
    devices: tf.distribute.Strategy,
    settings: Mapping[str, object],
    hosts: Hosts = ONE_HOST,
    steps_per_epoch: int | None = None,
) -> Run:
    """Begins a run in the output folder, or continues the run there; refuses other settings.

    `config` decides the length of the run, and where and how often it is saved. Nothing is saved if
    `output` is empty, or in a dry run.
    """
    # Hosts with different data are refused before a host creates variables.
    prints = [data and data.subset.dataset.fingerprint for data in (train, validation)]
    hosts.compare({"The fingerprint of the data": prints})
    output = config.output or None
    # Only the chief has the list of an earlier run, so all hosts merge its list.
    broken = BrokenRecords(config.read.skip_broken, train.subset.dataset, output)
    broken.merge(hosts.gather("broken records", broken.as_json()))
    saved = SavedRun(
        None if config.dry_run else output,
        config.checkpoint_steps,
        config.keep_checkpoints,
        settings,
        hosts,
    )
    epochs = epochs_of(config, train, steps_per_epoch)
    # The chief checks the folder for all hosts.
    if hosts.is_chief and saved.checkpoints is not None:
        if saved.state.step:
            _check_resumed(config, saved.state, settings, epochs.total_steps)
        else:
            check_no_model(config.output)
    stream = TrainingStream(train, devices, broken)
    return Run(train, validation, epochs, devices, stream, broken, saved, hosts)


def epochs_of(config: RunConfig, train: TrainingData, steps_per_epoch: int | None = None) -> Epochs:
    """Returns the epochs of a run; an epoch is a pass, or has `steps_per_epoch` batches."""
    batch_size = train.batch_size
    num_records = steps_per_epoch * batch_size if steps_per_epoch else train.num_records
    # `--steps` counts all steps of the run, and may end the run inside an epoch.
    total = config.steps or config.epochs * num_records // batch_size
    found = Epochs(num_records, batch_size, total)
    config.check_unfreezing(found.count)
    return found


def _check_resumed(
    config: RunConfig, state: RunState, settings: Mapping[str, object], total_steps: int
) -> None:
    check_same(config.output, state.identity, settings)
    if state.step > total_steps:
        name = "epochs" if config.steps is None else "steps"
        raise UserError(
            argument=name,
            received=f"{getattr(config, name)} ({counted(total_steps, 'step')}), but the run has "
            f"trained {counted(state.step, 'step')}, {counted(state.epochs, 'epoch')}, already",
            expected="no fewer",
            remedy=OTHER_OUTPUT,
        )


def settings_of(config: RunConfig, train: TrainingData) -> dict[str, Any]:
    """Returns the settings that decide what a step computes, as JSON values.

    The number of replicas and options that only change the speed are absent.
    """
    optimizer = config.optimizer
    found: dict[str, Any] = {
        **train.identity,
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
        found["steps"] = epochs_of(config, train).total_steps
    return found


def check_same(output: str, started: Mapping[str, object], settings: Mapping[str, object]) -> None:
    """Refuses to resume a run with changed settings, and names the first changed setting."""
    for name in sorted({*started, *settings}, key=_rank):
        if started.get(name) == settings.get(name):
            continue
        name, *both = _changed(name, started.get(name), settings.get(name))
        old, new = map(_shown, both)
        # No flag has these names, so the errors describe the run in the folder.
        runs = {
            "data": "holds a run on other data: the manifest has changed since",
            "order_version": f"holds a run with version {started.get(name, 1)} of the order and "
            f"the pairs of records, but this trainer has version {new}",
        }
        if name in runs:
            own = "" if name == "data" else "resume the run with its own version, "
            raise UserError(
                argument="output",
                received=f"{output!r}, which {runs[name]}",
                remedy=own + OTHER_OUTPUT,
            )
        raise UserError(
            argument=name,
            received=f"{new}, but the run in " + Arg("output") + f" {output!r} began with {old}",
            remedy=f"resume the run with {old}, " + OTHER_OUTPUT,
        )


def _rank(name: str) -> tuple[bool, bool, str]:
    # Other data, another version or target also change further settings, which are not the cause.
    return name not in ("data", "order_version"), name != "target", name


def _changed(name: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """Returns the name and both values of a setting, for augmentations of their first number."""
    numbers = isinstance(old, dict) and isinstance(new, dict)
    if not numbers or {_shown(old), _shown(new)} <= NAMED.keys():
        return name, old, new
    name = next(name for name in new if old.get(name) != new[name])
    return name, old.get(name), new[name]


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return str(Augment(**value))
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
