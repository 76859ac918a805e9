"""Compares the optimizer of a resumed run with the optimizer at the start of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from trainer.models.keras_internals import without_loss_scale
from trainer.training.checkpoint import unnumbered

# {"class": name of the class, "settings": values by name}.
Compiled = dict[str, Any]


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


def changes(started: Compiled | None, compiled: Compiled | None) -> str:
    """Returns what differs between both optimizers, for people; "" if nothing is known to."""
    if started is None or compiled is None or started == compiled:
        return ""
    old, new = ({"class": one["class"], **one["settings"]} for one in (started, compiled))
    return ", ".join(
        f"{name} {_shown(new[name])} in place of {_shown(old[name])}"
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name]
    )


def _shown(value: object) -> object:
    """Returns a schedule as its class and its settings, and a float32 with its own digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping) and "class_name" in value:
        settings = ", ".join(f"{name}={one}" for name, one in value.get("config", {}).items())
        return f"{value['class_name']}({settings})"
    return value
