"""Where a run resumes, and the settings that must be those it was started with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from imageshards.errors import UserError
from imageshards.text import counted
from trainer.cluster.hosts import ONE_HOST, Hosts
from trainer.config import RunConfig
from trainer.reader.batches import TrainingData
from trainer.training.output_folder import check_no_model
from trainer.training.saved_run import SavedRun

# Schedules whose rate at a step depends on the number of all steps.
_NEEDS_TOTAL = ("linear", "cosine")


def open_checkpoint(
    folder: str,
    every_steps: int,
    keep: int,
    settings: Mapping[str, Any],
    total_steps: int,
    length: str,
    hosts: Hosts = ONE_HOST,
) -> SavedRun:
    """Opens the checkpoints of the run in `folder`, or of a new one.

    Args:
        folder: Of the run.
        every_steps, keep: As `SavedRun` takes them.
        settings: What a resumed run must share.
        total_steps: How long the run is meant to be.
        length: The flag that says so, with its value.
        hosts: Those that train together.

    Returns:
        What saves the run, and has loaded its last checkpoint.

    Raises:
        UserError: Another run is there, or a longer one, and must not be replaced.
    """
    run = SavedRun(folder, every_steps, keep, settings, hosts=hosts)
    if not hosts.is_chief:
        return run  # the chief looks, for all
    if not run.step:
        check_no_model(folder)
        return run
    check_same(folder, run.state.identity, settings)
    if run.step > total_steps:
        raise UserError(
            f"{length} ({counted(total_steps, 'step')}), but the run in ⟦--output⟧ {folder!r} has "
            f"trained {counted(run.step, 'step')}, {counted(run.epochs, 'epoch')}, already; "
            "expected no fewer: use another ⟦--output⟧, or ⟦--overwrite⟧ to start over."
        )
    return run


def settings_of(config: RunConfig, data: TrainingData, total_steps: int) -> dict[str, Any]:
    """The settings that decide what a step computes, as JSON values.

    Neither the number of replicas nor anything that only changes the speed.

    Args:
        config: The run.
        data: What it is trained on.
        total_steps: How long the run is meant to be.
    """
    optimizer = config.optimizer
    found: dict[str, Any] = {
        **data.identity,
        "model": config.model,
        "weights": config.weights,
        "metrics": list(config.metrics),
        **dataclasses.asdict(optimizer),
    }
    by_thirds = optimizer.schedule in ("step", "exponential") and optimizer.decay_steps is None
    if optimizer.schedule in _NEEDS_TOTAL or by_thirds:
        found["steps"] = total_steps
    return found


def check_same(output: str, started: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Compares the settings a run was started with to those of the command that resumes it.

    Raises:
        UserError: They differ; the sentence names the first flag.
    """
    for name in sorted({*started, *settings}, key=lambda name: (name != "data", name)):
        if started.get(name) == settings.get(name):
            continue
        if name == "order_version":
            raise UserError(
                f"⟦--output⟧ received {output!r}, which holds a run whose records come in version "
                f"{started.get(name, 1)} of their order, and this trainer reads them in version "
                f"{settings.get(name)}; resume it with the version of the trainer that started it, "
                "use another ⟦--output⟧, or start over with ⟦--overwrite⟧."
            )
        if name == "data":
            raise UserError(
                f"⟦--output⟧ received {output!r}, which holds a run on other data: the manifest "
                "has changed since; use another ⟦--output⟧, or start over with ⟦--overwrite⟧."
            )
        raise UserError(
            f"⟦--{name}⟧ received {_shown(settings.get(name))}, but the run in ⟦--output⟧ "
            f"{output!r} was started with {_shown(started.get(name))}; use that to resume it, "
            "another ⟦--output⟧, or ⟦--overwrite⟧ to start over."
        )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
