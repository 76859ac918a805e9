"""The form of a JSON file, declared once and checked where it is loaded.

A manifest, the notes of a job or the state of a run may come from anybody: what reads one relies on
names, types and bounds that were checked here.

    >>> shard = keyed({"file": text(), "num_records": whole()}, {"sha256": text(r"[0-9a-f]{64}")})
    >>> loads('{"file": "a.tfrecord", "num_records": 3}', shard)
    {'file': 'a.tfrecord', 'num_records': 3}
    >>> loads('{"file": "a.tfrecord", "num_records": true}', shard)
    Traceback (most recent call last):
    imageshards.form.FormError: num_records is True; expected a whole number, 0 or more
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

# Half of a pair, which no text has that can be printed or written.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MAX_SHOWN = 60
_MAX_WHOLE = 2**63 - 1
_MISSING = object()

Form = Callable[[Any], None]
"""Raises `FormError` where a value is not of the form; keys that it does not name are allowed."""


class FormError(ValueError):
    """A value of the wrong form, as a phrase: where it is, what was received, what is expected."""

    def __init__(self, received: Any, expected: str):
        super().__init__(received, expected)
        self._received, self._expected, self._path = received, expected, ""

    def within(self, key: str | int) -> FormError:
        """The same error, as seen from the object or array that holds the value under `key`."""
        if isinstance(key, str) and key.isidentifier():
            step = f".{key[:_MAX_SHOWN]}"
        else:
            step = f"[{_shown(key)}]"
        self._path = step + self._path
        return self

    def __str__(self) -> str:
        path = self._path.removeprefix(".") or "its content"
        received = self._received
        found = "missing" if received is _MISSING else _shown(received)
        return f"{path} is {found}; expected {self._expected}"


def _shown(value: Any) -> str:
    if isinstance(value, dict | list) and value:
        return "an object" if isinstance(value, dict) else "an array"
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN else shown[: _MAX_SHOWN - 1] + "…"


def loads(data: str | bytes, form: Form) -> Any:
    """The value that a JSON text holds.

    Raises:
        FormError: It is not of the form.
        ValueError: It is no JSON, nested too deeply, or has texts that no file can hold.
    """
    said = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    try:
        value = json.loads(said)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _SURROGATE.search(said):
        json.dumps(value, ensure_ascii=False).encode()
    form(value)
    return value


def anything(value: Any) -> None:
    """Any value."""


def such(test: Callable[[Any], bool], what: str, form: Form = anything) -> Form:
    """A value of the form `form` that passes a test, `what` in words."""

    def check(value: Any) -> None:
        form(value)
        if not test(value):
            raise FormError(value, what)

    return check


def whole(most: int = _MAX_WHOLE, least: int = 0) -> Form:
    """A whole number; neither `true` nor `1.0` is one."""
    bounds = f", {least} or more" if most == _MAX_WHOLE else f" from {least} to {most}"
    return such(lambda v: type(v) is int and least <= v <= most, f"a whole number{bounds}")


number = such(lambda v: type(v) in (int, float) and math.isfinite(v), "a number")
"""Neither infinite nor NaN."""

flag = such(lambda v: type(v) is bool, "true or false")


def text(pattern: str = "(?s:.*)", what: str = "a text") -> Form:
    """A text that a regular expression matches as a whole, `what` in words."""
    matches = re.compile(pattern).fullmatch
    return such(lambda v: type(v) is str and matches(v) is not None, what)


def one_of(*choices: str | int) -> Form:
    """One of some texts or numbers."""
    known = {(type(one), one) for one in choices}
    return such(
        lambda v: isinstance(v, str | int) and (type(v), v) in known,
        " or ".join(map(str, choices)),
    )


def nullable(form: Form) -> Form:
    """`null`, or what `form` says."""

    def check(value: Any) -> None:
        if value is not None:
            form(value)

    return check


def listed(form: Form) -> Form:
    """An array of values of one form."""

    def check(value: Any) -> None:
        if type(value) is not list:
            raise FormError(value, "an array")
        for place, each in enumerate(value):
            _check_within(place, form, each)

    return check


def mapped(form: Form, key: Form = anything) -> Form:
    """An object with any keys, or those of the form `key`, and values of one form."""

    def check(value: Any) -> None:
        if type(value) is not dict:
            raise FormError(value, "an object")
        for name, each in value.items():
            _check_within(name, key, name)
            _check_within(name, form, each)

    return check


def keyed(required: Mapping[str, Form], optional: Mapping[str, Form] | None = None) -> Form:
    """An object with these keys, each with a form of its own."""
    forms = [(key, form, _MISSING) for key, form in required.items()]
    forms += [(key, form, None) for key, form in (optional or {}).items()]

    def check(value: Any) -> None:
        if type(value) is not dict:
            raise FormError(value, "an object")
        for key, form, default in forms:
            if key in value or default is _MISSING:
                _check_within(key, form, value.get(key, _MISSING))

    return check


def _check_within(key: str | int, form: Form, value: Any) -> None:
    try:
        form(value)
    except FormError as e:
        raise e.within(key) from None


def of_type(kind: Any) -> Form:
    """The form of what `dataclasses.asdict` makes of a type; fields with a default may lack."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (form,) = (of_type(one) for one in args if one is not types.NoneType)
        return nullable(form)
    if origin is list:
        return listed(of_type(args[0]))
    if origin in (dict, Mapping):
        return mapped(of_type(args[1]))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        forms: tuple[dict[str, Form], dict[str, Form]] = {}, {}
        for field in dataclasses.fields(kind):
            has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
            forms[has_default][field.name] = of_type(hints[field.name])
        return keyed(*forms)
    return _SCALARS[kind]


_SCALARS: dict[Any, Form] = {
    Any: anything, int: whole(), float: number, bool: flag, str: text()
}  # fmt: skip
