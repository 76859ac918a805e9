"""What a resumed run says of an optimizer that is compiled otherwise than when the run began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from imageshards.errors import Arg, UserError
from trainer.models.keras_internals import without_loss_scale
from trainer.training.checkpoint import Values, unnumbered
from trainer.training.output_folder import OTHER_OUTPUT

# An optimizer as JSON values: its class, and its settings by name.
Compiled = dict[str, Any]
RATE = "learning_rate"


def describe_optimizer(model: keras.Model) -> Compiled | None:
    """What a model was compiled with, to be compared with the same of another process.

    None without an optimizer. Where an optimizer or a schedule of the user's own has no
    `get_config`, the class alone is known.
    """
    if model.optimizer is None:
        return None
    optimizer = without_loss_scale(model.optimizer)
    try:
        settings = _stable(optimizer.get_config())
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        settings = {}
    # Variables are called by it.
    settings["name"] = unnumbered(optimizer.name)
    return {"class": type(optimizer).__name__, "settings": settings}


def _stable(value: object) -> Any:
    """JSON values that are the same in each process: without numbered names, and code."""
    if isinstance(value, Mapping):
        if value.get("class_name") in ("function", "__lambda__"):
            return "a function"
        return {str(key): _stable(one) for key, one in value.items() if key != "name"}
    if isinstance(value, list | tuple):
        return [_stable(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__


def refusal(
    saved: Compiled | None, compiled: Compiled | None, model: keras.Model, values: Values
) -> UserError | None:
    """The error for a checkpoint that does not fit because of the optimizer; None where the model
    itself has other variables, or nothing is known.
    """
    if saved is None or compiled is None or saved == compiled:
        return None
    paths = {unnumbered(path) for path, _ in values}
    if any(unnumbered(variable.path) not in paths for variable in model.variables):
        return None
    was, now = saved["class"], compiled["class"]
    if was == now:
        changes = list(_changes(saved, compiled))
        was = f"{was} with {', '.join(f'{name} {old}' for name, old, _ in changes)}"
        now = f"{now} with {', '.join(f'{name} {new}' for name, _, new in changes)}"
    return UserError(
        argument="model",
        received=f"a model compiled with {now}, but the run in "
        + Arg("output")
        + f" was started with {was}, which has other variables",
        expected="the same optimizer",
        remedy=f"compile the model with {saved['class']}, " + OTHER_OUTPUT,
    )


def notes(saved: Compiled | None, compiled: Compiled | None, model: keras.Model) -> Iterator[str]:
    """Sentences about settings that differ, once the checkpoint is restored: which of them count.

    A number as the learning rate is a variable, and restored; all else is not.
    """
    if saved is None or compiled is None:
        return
    if saved["class"] != compiled["class"]:
        yield (
            f"the optimizer is {compiled['class']} of model.compile from now on, with the state of "
            f"{saved['class']}, with which the run was started"
        )
    others = []
    for name, old, new in _changes(saved, compiled):
        if name == RATE and isinstance(new, float):
            rate = float(
                keras.ops.convert_to_numpy(without_loss_scale(model.optimizer).learning_rate)
            )
            if rate != new:  # a callback has not set the same
                yield (
                    f"the learning rate stays {rate:.6g}, that of the checkpoint, not {new:.6g} of "
                    "model.compile; to change it from the next epoch on, use the callback "
                    f"keras.callbacks.LearningRateScheduler(lambda epoch: {new:.6g})"
                )
        else:
            others.append(f"{name} {new} in place of {old}")
    if others:
        yield (
            "from now on the optimizer has other settings of model.compile than the run was "
            f"started with: {', '.join(others)}"
        )


def _changes(saved: Compiled, compiled: Compiled) -> Iterator[tuple[str, object, object]]:
    """Name, old and new value of each setting that both know, and that differs."""
    old, new = saved["settings"], compiled["settings"]
    same = saved["class"] == compiled["class"]
    for name in sorted(old.keys() & new.keys()) if same else [RATE]:
        if old.get(name) != new.get(name):
            yield name, _shown(old.get(name)), _shown(new.get(name))


def _shown(value: object) -> object:
    """A schedule as its class and its settings; all else as it is."""
    if isinstance(value, Mapping) and "class_name" in value:
        settings = ", ".join(f"{name}={one}" for name, one in value.get("config", {}).items())
        return f"{value['class_name']}({settings})"
    return value
