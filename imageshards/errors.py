"""The errors that users see: a sentence for a person, or a code for the table of rejects."""

from __future__ import annotations

import contextlib
import errno
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from imageshards.text import visible

# Errors name flags in a command, and arguments in a Python program. This is a variable of the
# process because threads and callbacks of a command raise errors, too.
_names_flags = False


@contextlib.contextmanager
def naming_flags(flags: bool = True) -> Iterator[None]:
    """Makes all errors of the process name flags (`--seed`) instead of arguments (`seed`).

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


# The marks around an option in a text: its flag, its argument, and what follows the argument.
_MARKED = re.compile("\ufdd0{0}\ufdd1{0}\ufdd2{0}\ufdd3".format("([^\ufdd0-\ufdd3]*)"))


class Arg(str):
    """An option in the text of an error, with the value that the user should give.

    `+` joins it to other texts with marks, which `UserError` replaces by a flag or an argument.

    >>> str(UserError("use " + Arg("balance", "weights") + ", or leave out " + Arg("seed")))
    "use balance='weights', or leave out seed"

    Attributes:
        name: The flag without its dashes. A name in capitals has no dashes, and `DIR` is
            the argument `path`.
        value: The value to give; True for a flag without a value, None for no value.
    """

    name: str
    value: Any

    def __new__(cls, name: str, value: Any = None, python: str | None = None) -> Arg:
        """Makes an option; `python` is its text in Python, if not the argument with its value."""
        flag = name if name.isupper() else f"--{name}"
        if value is not None and value is not True:
            flag += f" {shlex.quote(str(value))}"
        argument = "path" if name == "DIR" else name
        rest = "" if value is None else f"={value!r}"
        if python is not None:
            argument, rest = "", python
        made = super().__new__(cls, f"\ufdd0{flag}\ufdd1{argument}\ufdd2{rest}\ufdd3")
        made.name, made.value = name, value
        return made

    def __str__(self) -> str:
        return _named(self, {})


def _named(text: str, renamed: Mapping[str, str]) -> str:
    """Returns a text with flags or arguments in place of marks; `renamed` as in `rename`."""

    def name(found: re.Match[str]) -> str:
        flag, argument, rest = found.groups()
        return flag if _names_flags else renamed.get(argument, argument) + rest

    return _MARKED.sub(name, text)


class UserError(Exception):
    """A mistake that the caller can fix; commands print it as one sentence without a traceback.

    >>> str(UserError(argument="seed", received="-1", expected="0 or more", remedy="leave it out"))
    'seed received -1; expected 0 or more: leave it out.'

    Args:
        problem: The problem if no argument is to blame, or the whole sentence.
        argument: The name of the option that received the value.
        received: The value, and why it is wrong.
        expected: The values that are allowed.
        remedy: The steps that solve the problem.

    Attributes:
        argument: The name of the option without dashes; "" if no argument is to blame.
    """

    def __init__(
        self,
        problem: str = "",
        *,
        argument: str | Arg = "",
        received: str = "",
        expected: str = "",
        remedy: str = "",
    ):
        subject = Arg(argument) if argument and not isinstance(argument, Arg) else argument
        self.argument = subject.name if isinstance(subject, Arg) else ""
        text = problem + (subject + " received " + received if subject else "")
        text += "; expected " + expected if expected else ""
        text += (": " if expected else "; ") + remedy if remedy else ""
        # A sentence that is given as a whole ends with its own full stop.
        self._text, self._is_whole = text, not (subject or expected or remedy)
        self._renamed: Mapping[str, str] = {}
        # Beam copies an error of a step as `type(e)(e.args[0] + " [while running ...]")`, so the
        # first item of `args` must be the whole sentence.
        super().__init__(str(self))

    def __str__(self) -> str:
        sentence = visible(_named(self._text, self._renamed)).replace("\n", "\\n")
        return sentence if self._is_whole or sentence[-1:] in ".!?" else f"{sentence}."

    def rename(self, renamed: Mapping[str, str]) -> None:
        """Renames arguments in the sentence: `renamed` maps names of options to arguments."""
        self._renamed = renamed
        self.args = (str(self),)


@contextlib.contextmanager
def names_arguments(**renamed: str) -> Iterator[None]:
    """Makes the `UserError`s of a decorated function, or of a block, name its arguments.

    Args:
        **renamed: Name of an option → name of the argument, if the two differ.
    """
    try:
        yield
    except UserError as e:
        e.rename(renamed)
        raise


def wrong_input(path: str, problem: str, expected: str = "", remedy: str = "") -> UserError:
    """Returns the error for the place that the option `input` received."""
    received = f"{path!r}, " + problem
    return UserError(argument="input", received=received, expected=expected, remedy=remedy)


def unreadable_input(path: str, e: Exception) -> UserError:
    """Returns the error for an input file that cannot be read, or that was replaced meanwhile."""
    if getattr(e, "errno", None) == errno.ESTALE:
        problem, remedy = "which was replaced while it was read", "run the same command again"
        return wrong_input(path, problem, remedy=remedy)
    reason = getattr(e, "strerror", None) or next(iter(str(e).splitlines()), type(e).__name__)
    problem = f"which cannot be read ({reason})"
    return wrong_input(path, problem, remedy="fix the path or its permissions")


def install_advice(extra: str) -> str:
    """Returns the remedy for a missing package: how to install the extra that brings it."""
    return (
        f"install the extra: pip install 'imageshards[{extra}]' (in a checkout: pip install "
        f"'.[{extra}]')"
    )


class OutputError(UserError):
    """Output that cannot be written, for example because the disk is full."""


class DamagedManifestError(UserError):
    """A manifest.json that differs from what a build wrote; `build --overwrite` replaces it."""


class StorageError(UserError):
    """A problem with a whole bucket, its rights or its credentials, which stops the job."""

    of_bucket = False  # whether other buckets of the store may be usable


class LeaseLostError(OutputError):
    """The end of a job that no longer holds its output: another job may write there now."""


class IndexDamageError(UserError):
    """An index of a shard that is missing or differs from its entry in the manifest.

    Attributes:
        damage: The damage, as the end of a sentence.
    """

    damage = ""


class ImageError(Exception):
    """An image that cannot become a record: the build puts it into quarantine and goes on.

    Attributes:
        code: The stable snake_case reason, which is the key of the table of rejects.
        message: The details for a person.
    """

    def __init__(self, code: str, message: str):
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


# Some Beam runners return the error of a worker as text only.
_IN_TEXT = re.compile(
    r"(?:User|Output|DamagedManifest|Storage|LeaseLost|IndexDamage)Error: "
    r"(.*?)(?: \[while running [^\n]*)?(?:\n|$)"
)
# In the text of a traceback, the error that was raised last follows this line.
_WHILE_HANDLING = "During handling of the above exception, another exception occurred"


def user_error_in(error: BaseException) -> UserError | None:
    """Returns the `UserError` in the causes or in the text of `error`; None without one.

    `__context__` is ignored: an error in the handling of a `UserError` is a different problem.
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
    """Returns the line of a traceback that names the error, shortened to 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "no reason given"
    # Python prints the error last; programs in Go, like Beam's Prism runner, print it first.
    return lines[0 if any(line.startswith("goroutine ") for line in lines) else -1][:300]
