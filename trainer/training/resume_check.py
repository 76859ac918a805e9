"""Where a run resumes, and the settings that must be those it was started with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from imageshards.errors import UserError
from trainer.config import TrainConfig
from trainer.dataset.open import Inputs
from trainer.reader.order import ORDER_VERSION
from trainer.training.checkpoint import Checkpoints, RunState
from trainer.training.output_folder import check_no_model, remove_run

# Schedules whose rate at a step depends on the number of all steps.
_NEEDS_TOTAL = ("linear", "cosine")


def open_run(
    config: TrainConfig, checkpoints: Checkpoints, settings: Mapping[str, Any]
) -> tuple[RunState, list[Any] | None]:
    """Opens the run in `config.output`, or a new one.

    Args:
        config: The run.
        checkpoints: Its checkpoints.
        settings: What `settings_of` returns.

    Returns:
        The state of the last checkpoint and the values of its variables; where there is none, the
        state of a new run, and None.

    Raises:
        UserError: Another run is there, and must not be replaced.
    """
    if config.dry_run:
        return RunState(settings), None
    if config.overwrite:
        remove_run(config.output)
    latest = checkpoints.load_latest()
    if latest is None:
        check_no_model(config.output)
        return RunState(settings), None
    check_same(config.output, latest[0].identity, settings)
    return latest


def settings_of(
    config: TrainConfig, inputs: Inputs, augment_on: str, total_steps: int
) -> dict[str, Any]:
    """The settings that decide what a step computes, as JSON values.

    Neither the number of replicas nor anything that only changes the speed.

    Args:
        config: The run.
        inputs: Its data.
        augment_on: `device` or `host`, where augmentation is done.
        total_steps: How long the run is meant to be.
    """
    optimizer = config.optimizer
    found: dict[str, Any] = {
        "data": inputs.dataset.fingerprint,
        "train_split": inputs.training.split.name,
        "classes": list(inputs.training.classes),
        "where": sorted(inputs.training.filters),
        "balance": config.data.balance,
        "inputs": sorted(["image", *inputs.model.features]),
        "sequences": config.data.sequences,
        "sequence_length": config.data.sequence_length,
        "image_size": list(inputs.model.size),
        "batch_size": config.batch_size,
        "seed": config.seed,
        "order_version": ORDER_VERSION,
        "model": config.model,
        "weights": config.weights,
        "augment": config.augment,
        "augment_on": augment_on if config.augment != "none" else None,
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
                f"--output received {output!r}, which holds a run whose records come in version "
                f"{started.get(name, 1)} of their order, and this trainer reads them in version "
                f"{settings.get(name)}; resume it with the version of the trainer that started it, "
                "use another --output, or start over with --overwrite."
            )
        if name == "data":
            raise UserError(
                f"--output received {output!r}, which holds a run on other data: the manifest has "
                "changed since; use another --output, or start over with --overwrite."
            )
        raise UserError(
            f"--{name} received {_shown(settings.get(name))}, but the run in --output {output!r} "
            f"was started with {_shown(started.get(name))}; use that to resume it, another "
            "--output, or --overwrite to start over."
        )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
