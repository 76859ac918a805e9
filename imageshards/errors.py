"""Errors that are part of the interface: one sentence for a person, a code for a table."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Whether errors of this process name flags, as in a command, or arguments, as in Python.
_names_flags = False


@contextlib.contextmanager
def naming_flags(flags: bool = True) -> Iterator[None]:
    """Errors name flags (`--batch_size`) instead of arguments (`batch_size`) for the whole process.

    Commands run in this context, and so do the workers of a build that a command started.
    """
    global _names_flags
    before, _names_flags = _names_flags, flags
    try:
        yield
    finally:
        _names_flags = before


def names_flags() -> bool:
    """Returns whether errors of this process name flags."""
    return _names_flags


@dataclasses.dataclass(frozen=True)
class Phrase:
    """Text in which some words are options, whose form is chosen when an error is printed.

    >>> str("leave classes out by " + Arg("classes") + ", or use " + Arg("balance", "weights"))
    "leave classes out by classes, or use balance='weights'"
    """

    parts: tuple[str | Arg, ...]

    def __add__(self, other: Text) -> Phrase:
        return Phrase((*self.parts, *_parts_of(other)))

    def __radd__(self, other: str) -> Phrase:
        return Phrase((other, *self.parts))

    def __str__(self) -> str:
        return self.render({})

    def render(self, renamed: Mapping[str, str]) -> str:
        """Returns the text; `renamed` maps names of options to those of the arguments."""
        parts = (part if isinstance(part, str) else part.render(renamed) for part in self.parts)
        return "".join(parts)


@dataclasses.dataclass(frozen=True)
class Arg:
    """An option in the text of an error, with a value to give if there is one.

    Attributes:
        name: The flag without its dashes. A name in capitals, such as `DIR`, has no dashes.
        value: The value to give; True for a flag without a value.
        python: How Python says the whole, where that is not the name of the argument.
    """

    name: str
    value: Any = None
    python: str | None = None

    def __add__(self, other: Text) -> Phrase:
        return Phrase((self, *_parts_of(other)))

    def __radd__(self, other: str) -> Phrase:
        return Phrase((other, self))

    def __str__(self) -> str:
        return self.render({})

    def render(self, renamed: Mapping[str, str]) -> str:
        """Returns the flag in a command, and the argument in Python."""
        if _names_flags:
            flag = self.name if self.name.isupper() else f"--{self.name}"
            is_bare = self.value is None or self.value is True
            return flag if is_bare else f"{flag} {shlex.quote(str(self.value))}"
        if self.python is not None:
            return self.python
        name = renamed.get(self.name, self.name)
        return name if self.value is None else f"{name}={self.value!r}"


Text = str | Arg | Phrase


def _parts_of(text: Text) -> tuple[str | Arg, ...]:
    return text.parts if isinstance(text, Phrase) else (text,)


class UserError(Exception):
    """Something the caller can fix: shown as one sentence without a traceback.

    >>> str(UserError(argument="seed", received="-1", expected="0 or more", remedy="leave it out"))
    'seed received -1; expected 0 or more: leave it out.'

    Args:
        problem: What is wrong where no argument is to blame, or the sentence as a whole.
        argument: The name of the option that received the value.
        received: The value, and what is wrong with it.
        expected: What would have been right.
        remedy: What to do.

    Attributes:
        argument: The name of the option, without dashes; "" where no argument is to blame.
        problem, received, expected, remedy: As given; "" for what was not.
    """

    def __init__(
        self,
        problem: Text = "",
        *,
        argument: str | Arg = "",
        received: Text = "",
        expected: Text = "",
        remedy: Text = "",
    ):
        self.argument = argument.name if isinstance(argument, Arg) else argument
        self.problem, self.received = problem, received
        self.expected, self.remedy = expected, remedy
        self._subject = Arg(argument) if isinstance(argument, str) and argument else argument
        self._renamed: Mapping[str, str] = {}
        # Beam copies an error of a step as `type(e)(e.args[0] + " [while running ...]")`.
        super().__init__(str(self))

    def __str__(self) -> str:
        text: Phrase = Phrase(()) + self.problem
        if self._subject:
            text = text + self._subject + " received " + self.received
        if self.expected:
            text = text + "; expected " + self.expected
        if self.remedy:
            text = text + (": " if self.expected else "; ") + self.remedy
        sentence = text.render(self._renamed)
        has_end = not (self.argument or self.expected or self.remedy) or sentence[-1:] in ".!?"
        return sentence if has_end else f"{sentence}."

    def rename(self, renamed: Mapping[str, str]) -> None:
        """Uses other names for some arguments from now on, where arguments are named at all."""
        self._renamed = renamed
        self.args = (str(self),)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), vars(self))


def _unpickled(kind: type[UserError], fields: dict[str, Any]) -> UserError:
    error = kind.__new__(kind)
    vars(error).update(fields)
    error.args = (str(error),)
    return error


def names_arguments(
    **renamed: str,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Decorates a function that people call: its `UserError`s use the names of its arguments.

    `renamed` maps names of options to the arguments that are named otherwise.
    """

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @functools.wraps(function)
        def named(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            try:
                return function(*args, **kwargs)
            except UserError as e:
                e.rename(renamed)
                raise

        return named

    return decorate


class OutputError(UserError):
    """The output cannot be written (full disk, missing rights)."""


class DamagedManifestError(UserError):
    """A manifest.json that no build has written like that; a build with --overwrite replaces it."""


class StorageError(UserError):
    """A bucket, its rights or its credentials: about every object in it, so the job stops."""


class LeaseLostError(OutputError):
    """Another job may write to the output by now, so this one must stop."""


class IndexDamageError(UserError):
    """The index of a shard is missing, or not the one that the manifest names.

    Attributes:
        problem: What is wrong, as the end of a sentence.
    """

    problem = ""


class ImageError(Exception):
    """One image cannot become a record; it goes to quarantine and the job goes on.

    Attributes:
        code: Stable snake_case reason, the key of the rejects table.
        message: What was found, for a person.
    """

    def __init__(self, code: str, message: str):
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


# A Beam runner wraps what a worker raised, at times as text only.
_IN_TEXT = re.compile(
    r"(?:User|Output|DamagedManifest|Storage|LeaseLost|IndexDamage)Error: "
    r"(.*?)(?: \[while running [^\n]*)?(?:\n|$)"
)

# In a text, too, what follows is the error that was raised.
_WHILE_HANDLING = "During handling of the above exception, another exception occurred"


def user_error_in(error: BaseException) -> UserError | None:
    """Returns the `UserError` that caused `error`, looked for in its chain of causes and its text.

    An error that was raised while a `UserError` was handled (its `__context__`) is an error of its
    own.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, UserError):
            sentence, *step = str(current).split(" [while running ")
            return UserError(sentence) if step else current
        current = current.__cause__
    found = _IN_TEXT.findall(str(error).rpartition(_WHILE_HANDLING)[2])
    return UserError(found[-1]) if found else None


def last_line(text: str) -> str:
    """The line of a traceback with the error, shortened: Python's is the last, Go's the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "no reason given"
    return lines[0 if any(line.startswith("goroutine ") for line in lines) else -1][:300]
