"""Compares the optimizer of a resumed run with the optimizer at the start of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from imageshards.errors import UserError
from trainer.models.keras_internals import without_loss_scale
from trainer.training.checkpoint import Values, unnumbered
from trainer.training.output_folder import OTHER_OUTPUT

# {"class": name of the class, "settings": values by name}.
Compiled = dict[str, Any]
RATE = "learning_rate"


def describe_optimizer(model: keras.Model) -> Compiled | None:
    """Returns a model's optimizer as JSON values that can be compared between processes.

    Returns None without an optimizer. Without `get_config` the values have only the class.
    """
    if model.optimizer is None:
        return None
    optimizer = without_loss_scale(model.optimizer)
    try:
        settings = _stable(optimizer.get_config())
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        settings = {}
    # The paths of the optimizer's variables begin with its name.
    settings["name"] = unnumbered(optimizer.name)
    return {"class": type(optimizer).__name__, "settings": settings}


def _stable(value: object) -> Any:
    """Returns JSON values that are the same in each process: without numbered names and code."""
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
    """Returns the error for a checkpoint that does not fit because of the optimizer.

    Returns None if the model itself has other variables, or if nothing is known of the optimizer.
    """
    if saved is None or compiled is None or saved == compiled:
        return None
    # A variable of the model without a saved value means that the model has changed.
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
        received=f"a model compiled with {now}, but the run was started with {was}, which has "
        "other variables",
        expected="the same optimizer",
        remedy=f"compile the model with {saved['class']}, " + OTHER_OUTPUT,
    )


def notes(saved: Compiled | None, compiled: Compiled | None, model: keras.Model) -> Iterator[str]:
    """Yields a sentence for each setting of the optimizer that differs, after a restore."""
    if saved is None or compiled is None:
        return
    if saved["class"] != compiled["class"]:
        yield (
            f"the optimizer is {compiled['class']} of model.compile from now on, with the state of "
            f"{saved['class']}, with which the run was started"
        )
    others = []
    for name, old, new in _changes(saved, compiled):
        # A number is a variable, and restored with the checkpoint; a schedule is not.
        if name == RATE and isinstance(new, float):
            rate = float(
                keras.ops.convert_to_numpy(without_loss_scale(model.optimizer).learning_rate)
            )
            if rate != new:  # a callback may have set the new rate before
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
    """Yields name, old and new value of each setting with different values in both optimizers."""
    old, new = saved["settings"], compiled["settings"]
    same = saved["class"] == compiled["class"]
    for name in sorted(old.keys() & new.keys()) if same else [RATE]:
        if old.get(name) != new.get(name):
            yield name, _shown(old.get(name)), _shown(new.get(name))


def _shown(value: object) -> object:
    """Returns a schedule as its class and its settings; other values unchanged."""
    if isinstance(value, Mapping) and "class_name" in value:
        settings = ", ".join(f"{name}={one}" for name, one in value.get("config", {}).items())
        return f"{value['class_name']}({settings})"
    return value
