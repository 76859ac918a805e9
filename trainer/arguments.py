"""Errors as a Python caller reads them: `batch_size received …`, not `--batch_size received …`.

The checks are those of the commands, and name flags. What is called from Python passes through
`names_arguments`, which writes the same sentence with the names of Python's arguments.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from imageshards.errors import UserError
from trainer import config

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Flags that are arguments of another name.
_RENAMED = {"data": "path", "train_split": "split", "validation_split": "split", "output": "resume"}
_ARGUMENTS = {
    field.name
    for kind in (config.DataConfig, config.TrainConfig, config.OptimizerConfig)
    for field in dataclasses.fields(kind)
}
_WORDS = {
    *config.AUGMENT_LEVELS,
    *config.AUGMENT_ON,
    *config.CACHES,
    *config.BALANCES,
    *config.SEQUENCES,
}
# A flag and, where one follows, its value: a whole number, a choice, pairs, a quoted text.
_VALUE = rf"\d+\b(?!,)|(?:{'|'.join(sorted(_WORDS))})\b|\w+=[\w.]+(?:,\w+=[\w.]+)*\b|'[^']*'"
_FLAG = re.compile(rf"--([a-z_]+)(?: ({_VALUE}))?")


def names_arguments(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """`function`, whose `UserError`s name arguments in place of flags."""

    @functools.wraps(function)
    def translated(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except UserError as e:
            raise type(e)(_FLAG.sub(_argument, str(e))) from e.__cause__

    return translated


def _argument(match: re.Match[str]) -> str:
    flag, value = match.groups()
    if flag not in _ARGUMENTS:
        return match[0]
    name = _RENAMED.get(flag, flag)
    if value is None:
        return name
    if value in _WORDS:
        return f"{name}={value!r}"
    if "=" in value and not value.startswith("'"):
        pairs = [pair.split("=") for pair in value.split(",")]
        return f"{name}={{{', '.join(f'{key!r}: {_literal(text)}' for key, text in pairs)}}}"
    return f"{name}={value}"


def _literal(text: str) -> str:
    """A number as it is, everything else quoted."""
    try:
        float(text)
    except ValueError:
        return repr(text)
    return text
