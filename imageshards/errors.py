"""Errors that are part of the interface: one sentence for a person, a code for a table."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Brackets that no path or value of a user has.
_OPTION = re.compile(r"⟦(?P<shown>(?:--)?(?P<flag>[^⟧|]*))(?:\|(?P<argument>[^⟧]*))?⟧")
# A flag without them; a command to type is left as it is.
_BARE = re.compile(r"imageshards \w+(?: --\w+ [^\s;,)]+)+|--(?P<flag>\w+)")


class UserError(Exception):
    """Something the caller can fix: shown as one sentence without a traceback.

    The message names the argument, what was received, what was expected and the remedy. An option
    that also is an argument of a function stands between brackets: `⟦--batch_size⟧` is read as
    `--batch_size` by who runs a command, and as `batch_size` by who calls Python;
    `⟦--cache pixels|cache='pixels'⟧` says how each would write it. An argument without a flag, such
    as `⟦DIR⟧`, is read as `DIR` by who runs a command. All else is read as it is.
    """

    def __init__(self, sentence: str = ""):
        super().__init__(_OPTION.sub(r"\g<shown>", sentence))
        self._sentence = sentence

    def name_arguments(self, renamed: Mapping[str, str]) -> None:
        """From now on the sentence names arguments, some of them `renamed`, in place of flags.

        Those that are `renamed` are found without brackets, too.
        """

        def argument(match: re.Match[str]) -> str:
            return match["argument"] or renamed.get(match["flag"], match["flag"])

        def bare(match: re.Match[str]) -> str:
            return renamed.get(match["flag"], match[0])

        self.args = (_BARE.sub(bare, _OPTION.sub(argument, self._sentence)),)


def names_arguments(
    **renamed: str,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Decorates a function that people call: its `UserError`s name arguments in place of flags,
    those of another name as they are `renamed`.
    """

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @functools.wraps(function)
        def named(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            try:
                return function(*args, **kwargs)
            except UserError as e:
                e.name_arguments(renamed)
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

    The sentence names flags, also where it came through a function that names arguments. An error
    that was raised while a `UserError` was handled (its `__context__`) is an error of its own.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, UserError):
            return UserError(current._sentence.split(" [while running ")[0])
        current = current.__cause__
    found = _IN_TEXT.findall(str(error).rpartition(_WHILE_HANDLING)[2])
    return UserError(found[-1]) if found else None


def last_line(text: str) -> str:
    """The line of a traceback with the error, shortened: Python's is the last, Go's the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "no reason given"
    return lines[0 if any(line.startswith("goroutine ") for line in lines) else -1][:300]
