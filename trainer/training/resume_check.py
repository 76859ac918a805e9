"""What must not change between the parts of one training run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from imageshards.errors import UserError
from trainer.config import TrainConfig
from trainer.dataset.open import Inputs

# Schedules whose rate at a step depends on how many steps there will be.
_NEEDS_TOTAL = ("linear", "cosine")


def identity(config: TrainConfig, inputs: Inputs, place: str, total_steps: int) -> dict[str, Any]:
    """The position's constants and everything that decides what a step does, as JSON values.

    The number of replicas is not among them, nor what only changes speed.

    Args:
        config: The run.
        inputs: Its data.
        place: `device` or `host`, where augmentation is done.
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
        "model": config.model,
        "weights": config.weights,
        "augment": config.augment,
        "augment_on": place if config.augment != "none" else None,
        **dataclasses.asdict(optimizer),
    }
    waits = optimizer.schedule in ("step", "exponential") and optimizer.decay_steps is None
    if optimizer.schedule in _NEEDS_TOTAL or waits:
        found["steps"] = total_steps
    return found


def check_same(output: str, begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Compares a run that was begun with what is asked for now.

    Raises:
        UserError: They differ; the sentence names the first flag.
    """
    for name in sorted({*begun, *wanted}, key=lambda name: (name != "data", name)):
        if begun.get(name) == wanted.get(name):
            continue
        if name == "data":
            raise UserError(
                f"--output received {output!r}, which holds a run on other data: the manifest has "
                "changed since; use another --output, or begin anew with --overwrite."
            )
        raise UserError(
            f"--{name} received {_shown(wanted.get(name))}, but the run in --output {output!r} "
            f"was begun with {_shown(begun.get(name))}; use that to go on, another --output, or "
            "--overwrite to begin anew."
        )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
