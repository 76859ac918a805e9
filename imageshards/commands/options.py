"""Declares an option once, as a field of a dataclass with its help and its limits.

    epochs: Annotated[int, Option("passes over the training split", least=1)] = 5

`add_options` makes a flag of the field, and `check_options` checks its value.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from imageshards.errors import Arg, UserError

_METAVARS = {int: "N", float: "X"}
_NUMBERS = {int: numbers.Integral, float: numbers.Real}  # These include NumPy's numbers.


@dataclasses.dataclass(frozen=True)
class Option:
    """The help of a configuration's field, and the values that the field takes.

    Attributes:
        help: The meaning, with the unit; `add_options` appends a default that is a text or number.
        least, above, below, most: Limits of a number.
        choices: The allowed texts.
        parse: Turns the text of a flag into a value that is neither text nor number.
        metavar: The placeholder of the value in the help.
        flag: The name of the flag, if it differs from the name of the field.
        action: `append` for a flag that may be repeated, `extend` for repeated lists.
        group: The title above the flag in the help; "" for the title of the whole dataclass.
        place: Normalises a path or URI: `storage.place` or `storage.absolute_place`.
    """

    help: str
    least: float | None = None
    above: float | None = None
    below: float | None = None
    most: float | None = None
    choices: tuple[Any, ...] = ()
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    flag: str = ""
    action: str | None = None
    group: str = ""
    place: Callable[[str, object], str] | None = None


@functools.cache
def options_of(kind: type) -> Mapping[str, tuple[type, Option]]:
    """Returns the options of a dataclass: name of the field → type of a value, and the option."""
    found = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        option = next((o for o in getattr(hint, "__metadata__", ()) if isinstance(o, Option)), None)
        if option:
            plain = typing.get_args(hint)[0]
            if isinstance(plain, types.UnionType):  # A value that is given for `X | None` is an X.
                plain = typing.get_args(plain)[0]
            found[name] = (plain, option)
    return found


def check_options(config: Any) -> None:
    """Checks every option of a dataclass in its `__post_init__`, and normalises its values.

    Places become strings, and numbers of NumPy become Python's. None is only allowed as the
    default.

    Raises:
        UserError: A value exceeds the limits of its option or has a wrong type.
    """
    kind: Any = type(config)
    for name, (value_type, option) in options_of(kind).items():
        given = value = getattr(config, name)
        if option.place is not None and not (value is None or isinstance(value, str) and not value):
            value = option.place(option.flag or name, value)
        if value is not None or kind.__dataclass_fields__[name].default is not None:
            check_option(kind, name, value)
            if value_type in _NUMBERS and not isinstance(value, int | float):
                value = value_type(value)
        if value is not given:
            object.__setattr__(config, name, value)  # The dataclass may be frozen.


def check_option(kind: type, name: str, value: Any) -> None:
    """Checks a value of the option `name` of a dataclass.

    Raises:
        UserError: The value exceeds the limits of the option or has a wrong type.
    """
    value_type, option = options_of(kind)[name]
    flag = option.flag or name
    if option.choices and not (isinstance(value, str) and value in option.choices):
        raise _refused(flag, repr(value), f"one of {', '.join(map(str, option.choices))}")
    if value_type in _NUMBERS:
        check_number(flag, value, value_type, option)
    elif _is_range(value_type):
        _check_range(flag, value, option)
    elif value_type is str and option.parse is None and not isinstance(value, str):
        raise _refused(flag, repr(value), "a text")
    elif value is None:
        raise _refused(flag, "None", "a value")


def check_number(name: str, value: Any, value_type: type, limits: Option) -> None:
    """Checks the number, an int or a float, that the argument or the flag `name` received.

    Raises:
        UserError: The value is no number of the type or exceeds the limits.
    """
    # A bool is an int for Python, but never a number that a user means.
    is_number = isinstance(value, _NUMBERS[value_type]) and not isinstance(value, bool)
    if not is_number:
        raise _refused(name, repr(value), "a whole number" if value_type is int else "a number")
    least, above, below, most = limits.least, limits.above, limits.below, limits.most
    allowed = (
        math.isfinite(value)
        and (least is None or value >= least)
        and (above is None or value > above)
        and (below is None or value < below)
        and (most is None or value <= most)
    )
    if not allowed:
        ends = (("at least", least), ("more than", above), ("less than", below), ("at most", most))
        said = " and ".join(f"{words} {end}" for words, end in ends if end is not None)
        if least is not None and most is not None:
            said = f"{least} to {most}"
        raise _refused(name, str(value), said or "a finite number")


def _is_range(value_type: type) -> bool:
    return typing.get_args(value_type) == (float, float)


def _check_range(name: str, value: Any, limits: Option) -> None:
    numbers = value if isinstance(value, tuple | list) else [value]
    for number in numbers:
        check_number(name, number, float, limits)
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        text = ",".join(map(str, numbers))
        raise _refused(name, text, "two numbers, the least and the greatest")


def _parse_range(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise _refused(name, repr(text), "two numbers, for example 0.5,1") from None


def refuse_idle(config: Any, name: str, why: str, expected: str) -> None:
    """Refuses a value that changes nothing, unless the value is the default.

    Args:
        config: A dataclass with the option `name`.
        why: Follows the value: the other options with which the value has no effect.
        expected: The options that give the value an effect.
    """
    value = getattr(config, name)
    if value != type(config).__dataclass_fields__[name].default:
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        raise UserError(
            argument=name, received=f"{shown} " + why, expected=expected + (", or no " + Arg(name))
        )


def _refused(name: str, received: str, expected: str) -> UserError:
    return UserError(argument=name, received=received, expected=expected)


def add_options(
    parser: argparse.ArgumentParser,
    kind: type,
    names: Iterable[str] | None = None,
    title: str = "",
    shows_defaults: bool = True,
) -> None:
    """Adds a flag to a parser for each option of a dataclass, or for the options in `names`.

    `title` is the heading of the flags in the help, which `shows_defaults` of the dataclass.
    """
    options = options_of(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in options if names is None else names:
        value_type, option = options[name]
        field = fields[name]
        default = field.default
        text = option.help
        is_shown = isinstance(default, str | int | float) and default != ""
        if shows_defaults and is_shown and value_type is not bool and "(default: " not in text:
            text += f" (default: {default})"
        # An absent flag leaves no attribute, so that the dataclass sets the default.
        how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text}
        how["required"] = default is field.default_factory is dataclasses.MISSING
        if value_type is bool:
            how["action"] = "store_false" if default else "store_true"
        else:
            parse = option.parse or (value_type if value_type in _METAVARS else None)
            if _is_range(value_type):
                parse = functools.partial(_parse_range, option.flag or name)
            if option.place is not None:
                parse = functools.partial(option.place, option.flag or name)
            # Without a metavar argparse lists the choices.
            usual = "A,B" if _is_range(value_type) else _METAVARS.get(value_type)
            metavar = option.metavar or (None if option.choices else usual)
            given = {"type": parse, "metavar": metavar, "choices": option.choices or None}
            given["action"] = option.action
            how |= {key: value for key, value in given.items() if value is not None}
        group: argparse._ActionsContainer = parser
        if title:
            named = option.group or title
            found = (each for each in parser._action_groups if each.title == named)
            group = next(found, None) or parser.add_argument_group(named)
        group.add_argument(f"--{option.flag or name}", dest=name, **how)
