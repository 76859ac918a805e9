"""Shared parts of all commands: the parser, hints for mistyped flags, errors and exit codes."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import difflib
import functools
import importlib.util
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn

from imageshards import storage
from imageshards.errors import UserError, install_advice, naming_flags, user_error_in
from imageshards.manifest import Manifest
from imageshards.manifest.file import RECORDS_ROOT_HELP, load_manifest
from imageshards.text import lasting_streams

EXIT_USER_ERROR = 2
EXIT_STOPPED = 130
EXIT_NOBODY_READS = 141  # A shell reports 128 + 13 for a process that SIGPIPE ended.
_MAX_HINTS = 3

# Package that only some commands need → the extra that brings the package.
_EXTRAS = {
    "apache_beam": "pipeline", "tensorflow_transform": "columns", "keras": "trainer",
    "tensorflow": "trainer", "tensorboard": "tensorboard",
}  # fmt: skip


def split_names(text: str) -> tuple[str, ...]:
    r"""Returns the names between commas; `\,` is a comma inside a name."""
    parts = (part.replace("\\,", ",").strip() for part in re.split(r"(?<!\\),", text))
    return tuple(filter(None, parts))


def names_or_file(argument: str, text: str) -> tuple[str, ...]:
    """Returns the names of a list (`split_names`), or the lines of the text file with this name.

    Raises:
        UserError: The file is missing or is not text, or there is no name.
    """
    names, path = split_names(text), storage.place(argument, text) if text.strip() else text
    if os.path.isfile(path) or path.endswith(".txt"):
        try:
            # Editors on Windows begin a file with a byte order mark, which utf-8-sig drops.
            with open(path, encoding="utf-8-sig") as file:
                names = tuple(line.strip() for line in file if line.strip())
        except (OSError, UnicodeDecodeError) as e:
            raise UserError(
                argument=argument,
                received=f"{text!r}, which cannot be read ({e})",
                expected="names separated by commas, or a text file with one on each line",
            ) from e
    if not names:
        expected = "at least one name, or a text file with one on each line"
        raise UserError(argument=argument, received=repr(text), expected=expected)
    return names


class Parser(argparse.ArgumentParser):
    """An argument parser that raises a `UserError` for a mistake, with hints for unknown flags."""

    def __init__(self, **options: Any):
        # An abbreviation could become ambiguous, or another flag, in a later version.
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses arguments like argparse, but refuses a second value for a flag with one value.

        Raises:
            UserError: A flag is given twice, is missing, or has a wrong value.
        """
        self._given: set[argparse.Action] = set()
        return super().parse_known_args(args, namespace)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse calls this for each occurrence of a flag, and would let the last value win.
        if action.option_strings and isinstance(action, argparse._StoreAction):
            # The value is not shown, as a flag of Beam may hold a secret.
            if action in self._given:
                flag = action.option_strings[-1]
                raise UserError(f"{flag} was given twice, but takes one value; leave one out.")
            self._given.add(action)
        return super()._get_values(action, arg_strings)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses arguments like argparse.

        Raises:
            UserError: A flag is unknown, is missing, or has a wrong value.
        """
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            hint = did_you_mean(nearest_flags(unknown[0], self.flags))
            raise UserError(
                f"Received {unknown[0]!r}, which is no flag of {self.prog}; {hint}"
                f"{'See' if hint else 'see'} {self.prog} --help."
            )
        return known

    def error(self, message: str) -> NoReturn:
        """Raises a message of argparse as a `UserError`."""
        message = f"{message[:1].upper()}{message[1:].rstrip('.')}"
        raise UserError(f"{message}; see {self.prog} --help.")

    @property
    def flags(self) -> list[str]:
        """All flags, with their dashes."""
        return [flag for action in self._actions for flag in action.option_strings]


def dataset_parser(command: str, description: str, epilog: str) -> Parser:
    """Returns the parser of a command that takes a dataset: `imageshards COMMAND DIR …`."""
    parser = Parser(prog=f"imageshards {command}", description=description, epilog=epilog)
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=functools.partial(storage.absolute_place, "DIR"),
        help="the dataset: a local folder, gs:// or s3:// place",
    )
    parser.add_argument(
        "--records_root",
        metavar="PLACE",
        type=functools.partial(storage.place, "records_root"),
        help=RECORDS_ROOT_HELP,
    )
    return parser


def open_dataset(
    directory: str | os.PathLike[str], records_root: str | os.PathLike[str] | None
) -> tuple[str, Manifest]:
    """Returns the absolute place and the manifest of a dataset, given `dataset_parser`'s flags."""
    directory = storage.absolute_place("DIR", directory)
    storage.check_bucket(directory, "DIR")
    return directory, load_manifest(directory, "DIR", complete=True, records_root=records_root)


def run(
    program: str, body: Callable[[], int], stopped: str = "stopped", prints_result: bool = False
) -> int:
    """Runs the body of a command, and prints a user's mistake as one sentence on standard error.

    Args:
        program: The name of the command, which precedes the sentence.
        body: Does the work and returns an exit code.
        stopped: The message after Ctrl-C.
        prints_result: Whether the command must end if standard output cannot be written.

    Returns:
        The exit code of `body`, or 2 for a user's mistake, 130 after Ctrl-C, or 141 if the reader
        of a result has closed the pipe, as `head` does after its lines.
    """
    with naming_flags(), lasting_streams(raises=prints_result) as out:
        try:
            code = body()
            out.flush()
            return code
        except KeyboardInterrupt as e:
            print(f"{program}: {str(e) or stopped}.", file=sys.stderr)
            return EXIT_STOPPED
        except Exception as e:
            # A pipe that its reader closed is the usual end of `imageshards … | head`.
            if e is out.error and isinstance(e, BrokenPipeError):
                return EXIT_NOBODY_READS
            known = _unwritten(e) if e is out.error else as_user_error(e)
            if known is None:
                raise  # Python prints the traceback of a fault of the program.
            print(f"{program}: {known}", file=sys.stderr)
            return EXIT_USER_ERROR
        finally:
            # The work is done, so output that nobody could read is worth only a note.
            if not (prints_result or isinstance(out.error, BrokenPipeError | None)):
                print(f"{program}: note: {_unwritten(out.error)}", file=sys.stderr)


def _unwritten(e: Exception) -> UserError:
    reason = getattr(e, "strerror", None) or e
    return UserError(f"standard output cannot be written ({reason}); its last lines are missing.")


def as_user_error(e: Exception) -> UserError | None:
    """Returns the error that a user can fix: a mistake, or a lack of the machine; else None."""
    if (found := user_error_in(e)) is not None:
        return found
    package = (getattr(e, "name", None) or "").partition(".")[0]
    if isinstance(e, ModuleNotFoundError) and package in _EXTRAS:
        return UserError(
            f"this command needs the package {package}, which is not installed",
            remedy=install_advice(_EXTRAS[package]),
        )
    # `tempfile` finds no folder in a read-only container, or the working directory was removed.
    if isinstance(e, FileNotFoundError) and e.filename is None:
        return UserError(
            f"a folder that Python needs is missing ({e.strerror})",
            remedy="go to a working directory that exists, and set TMPDIR to a folder that may be "
            "written",
        )
    return None


@contextlib.contextmanager
def on_signals(handler: Callable[[int, Any], None], *numbers: int) -> Iterator[None]:
    """Handles signals by a function, if this is the main thread."""
    # Python lets only the main thread set handlers; elsewhere the caller's handlers stay.
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if is_main}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hides standard error of native code for a `with` block; an error in the block shows it."""
    sys.stderr.flush()
    # Native code writes to the descriptor before it reads any log level.
    terminal = os.dup(2)
    with open(os.memfd_create("log"), "w+b") as log:  # A file in memory needs no writable folder.
        os.dup2(log.fileno(), 2)
        try:
            yield
        except BaseException:
            log.seek(0)
            os.write(terminal, log.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def search_here() -> None:
    """Lets Python find a user's module in the working directory, like `python -m`."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()


def check_installed(package: str) -> None:
    """Checks that a package is installed, without importing it, before a command writes anything.

    Raises:
        ModuleNotFoundError: The package is missing; `run` prints a sentence.
    """
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def nearest_flags(received: str, known: Collection[str]) -> list[str]:
    """Returns at most three known flags that a user may have meant by an unknown flag.

    Initials come first (`--lr` for `--learning_rate`), then beginnings of a word, then spelling.
    """
    wanted = received.partition("=")[0]
    if wanted in known:
        return []
    part = wanted.strip("-").replace("-", "_").lower()
    names = [flag.removeprefix("--") for flag in known if flag.startswith("--")]
    found = [name for name in names if part == "".join(word[:1] for word in name.split("_"))]
    found = found or [name for name in names if f"_{part}" in f"_{name}"]
    found = found or difflib.get_close_matches(part, names, n=1)
    return [f"--{name}" for name in found[:_MAX_HINTS]]


def did_you_mean(names: Sequence[str]) -> str:
    """Returns `did you mean A or B? `; "" for no name."""
    return f"did you mean {' or '.join(names)}? " if names else ""


def end_now(code: int) -> NoReturn:
    """Ends the process after its exit handlers."""
    # Python needs a second to end Beam and its threads, and waits for ever after an interruption.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
