"""Begins a run, or continues a run whose settings are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from imageshards.errors import Arg, UserError
from imageshards.text import counted
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.reader.batches import TrainingData
from trainer.reader.broken_records import BrokenRecords
from trainer.reader.described import EvaluationData
from trainer.reader.stream import TrainingStream
from trainer.strengths import Augment
from trainer.training.output_folder import OTHER_OUTPUT, check_no_model
from trainer.training.saved_run import SavedRun, Saving


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The epochs of a run by the steps at which they end; the last epoch may be cut short.

    Batches are cut from one endless stream, so an epoch's leftover records open the next epoch.
    After E epochs, all but the last < `batch_size` records were seen E times. The user gave the
    number of steps if `by_steps`, else of epochs.
    """

    num_records: int
    batch_size: int
    total_steps: int
    by_steps: bool = False

    @staticmethod
    def of(
        train: TrainingData,
        epochs: int,
        steps: int | None = None,
        steps_per_epoch: int | None = None,
    ) -> Epochs:
        """Returns the epochs of a run: passes, or `steps_per_epoch` batches each.

        `steps` counts all steps of the run in place of `epochs`, and may end it inside an epoch.
        """
        batch_size = train.batch_size
        num_records = train.num_records
        if steps_per_epoch:
            num_records = int(steps_per_epoch) * batch_size  # a number of NumPy is no JSON
        total = steps or epochs * num_records // batch_size
        return Epochs(num_records, batch_size, total, by_steps=steps is not None)

    @property
    def count(self) -> int:
        """Returns the number of epochs; the last epoch may be cut short."""
        return -(-self.total_steps * self.batch_size // self.num_records)

    def end(self, epoch: int) -> int:
        """Returns the step at which `epoch` (from 0) ends, or at which the run ends inside it."""
        return min(self.total_steps, (epoch + 1) * self.num_records // self.batch_size)

    def check_not_over(self, step: int, epochs: int) -> None:
        """Refuses to resume a run that has trained longer than it is asked to."""
        if step > self.total_steps:
            raise UserError(
                argument="steps" if self.by_steps else "epochs",
                received=f"{self.total_steps if self.by_steps else self.count} "
                f"({counted(self.total_steps, 'step')}), but the run has trained "
                f"{counted(step, 'step')}, {counted(epochs, 'epoch')}, already",
                expected="no fewer",
                remedy=OTHER_OUTPUT,
            )


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


def open_run(
    train: TrainingData,
    validation: EvaluationData | None,
    devices: tf.distribute.Strategy,
    epochs: Epochs,
    saving: Saving,
    hosts: Hosts = ONE_HOST,
) -> Run:
    """Begins a run in its folder, or continues the run there; refuses other settings."""
    # Hosts with different data are refused before a host creates variables.
    prints = [data and data.subset.dataset.fingerprint for data in (train, validation)]
    hosts.compare({"The fingerprint of the data": prints})
    # Only the chief has the list of an earlier run, so all hosts merge its list.
    broken = BrokenRecords(train.skip_broken, train.subset.dataset, saving.folder)
    broken.merge(hosts.gather("broken records", broken.as_json()))
    saved = SavedRun(saving, hosts)
    # The chief checks the folder for all hosts.
    if hosts.is_chief and saving.folder is not None:
        if saved.state.step:
            check_same(saving.folder, saved.state.identity, saving.settings)
            epochs.check_not_over(saved.state.step, saved.state.epochs)
        else:
            check_no_model(saving.folder)
    stream = TrainingStream(train, devices, broken)
    return Run(train, validation, epochs, devices, stream, broken, saved, hosts)


def check_same(output: str, started: Mapping[str, object], settings: Mapping[str, object]) -> None:
    """Refuses to resume a run with changed settings, and names the first changed setting."""
    for name in sorted({*started, *settings}, key=_rank):
        if started.get(name) == settings.get(name):
            continue
        old, new = _shown(started.get(name)), _shown(settings.get(name))
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


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return str(Augment(**value))
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
