"""What the commands of both programs share: their parser, the flag that was meant, their end."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import difflib
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn

from imageshards import storage
from imageshards.errors import UserError, naming_flags, user_error_in
from imageshards.manifest.records_root import RECORDS_ROOT_HELP
from imageshards.streams import lasting_streams

EXIT_USER_ERROR = 2
EXIT_STOPPED = 130
EXIT_NOBODY_READS = 141  # as a shell says of a process that SIGPIPE ended
_MAX_HINTS = 3

_OURS = ("imageshards", "beam_pipeline", "trainer")
# Packages that the leaf does without → the extra that brings them.
_EXTRAS = {"apache_beam": "pipeline", "keras": "trainer", "tensorflow": "trainer"}


def split_names(text: str) -> tuple[str, ...]:
    r"""The names of a list: between commas, of which `\,` is one that belongs to a name."""
    parts = (part.replace("\\,", ",").strip() for part in re.split(r"(?<!\\),", text))
    return tuple(filter(None, parts))


def names_or_file(argument: str, text: str) -> tuple[str, ...]:
    """The names of a list as `split_names` reads it, or the lines of a file that is called so.

    Raises:
        UserError: The file is missing or no text, or there is no name.
    """
    names, path = split_names(text), storage.place(argument, text) if text.strip() else text
    if os.path.isfile(path) or path.endswith(".txt"):
        try:
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
    """An argument parser whose errors are one sentence, with the flag that may have been meant.

    Flags are written in full: an abbreviation would become another flag with the next version.
    """

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's.

        Raises:
            UserError: A flag is unknown, is missing, or has a value it does not take.
        """
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise self._unknown(unknown[0])
        return known

    def error(self, message: str) -> NoReturn:
        """Called by argparse.

        Raises:
            UserError: Always.
        """
        message = f"{message[:1].upper()}{message[1:].rstrip('.')}"
        raise UserError(f"{message}; see {self.prog} --help.")

    @property
    def flags(self) -> list[str]:
        """All flags, as they are written."""
        return [flag for action in self._actions for flag in action.option_strings]

    def _unknown(self, received: str) -> UserError:
        hint = did_you_mean(nearest_flags(received, self.flags))
        return UserError(
            f"Received {received!r}, which is no flag of {self.prog}; {hint}"
            f"{'See' if hint else 'see'} {self.prog} --help."
        )


def dataset_parser(command: str, description: str, epilog: str) -> Parser:
    """A parser of `imageshards COMMAND DIR …`."""
    parser = Parser(prog=f"imageshards {command}", description=description, epilog=epilog)
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=functools.partial(storage.absolute_place, "DIR"),
        help="what a build wrote: a folder, gs:// or s3://",
    )
    parser.add_argument(
        "--records_root",
        metavar="PLACE",
        type=functools.partial(storage.place, "records_root"),
        help=RECORDS_ROOT_HELP,
    )
    return parser


def run(
    program: str, body: Callable[[], int], stopped: str = "stopped", prints_result: bool = False
) -> int:
    """Runs `body`, and prints a user's mistake as one sentence on stderr, after the program's name.

    Standard output that cannot be written ends a command only if the command `prints_result`.

    Returns:
        The exit code of `body`, or 2 for a user's mistake, 130 after Ctrl-C, or 141 where nobody
        reads a result any more, as `head` does not after its lines.
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
            if e is out.error and isinstance(e, BrokenPipeError):
                return EXIT_NOBODY_READS
            known = _unwritten(e) if e is out.error else as_user_error(e)
            if known is None:
                raise
            print(f"{program}: {known}", file=sys.stderr)
            return EXIT_USER_ERROR
        finally:
            if not (prints_result or isinstance(out.error, BrokenPipeError | None)):
                print(f"{program}: note: {_unwritten(out.error)}", file=sys.stderr)


def _unwritten(e: Exception) -> UserError:
    reason = getattr(e, "strerror", None) or e
    return UserError(f"standard output cannot be written ({reason}); its last lines are missing.")


def as_user_error(e: Exception) -> UserError | None:
    """The sentence for a user's mistake, or for what is missing on the machine; None for others."""
    return user_error_in(e) or _not_installed(e) or _no_folder(e)


def _no_folder(e: Exception) -> UserError | None:
    """The sentence where there is no temporary folder, as in a read-only container, or where the
    working directory was removed."""
    if not isinstance(e, FileNotFoundError) or e.filename is not None:
        return None
    if "No usable temporary directory" in str(e):
        reason = str(e.strerror).replace("usable", "writable")
        return UserError(f"{reason}; set TMPDIR to a folder that may be written.")
    try:
        os.getcwd()
    except FileNotFoundError:
        return UserError("the working directory was removed; go to another one: cd to it.")
    return None


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keeps lines off the terminal that native code writes before any log level is read.

    So the file descriptor itself is redirected; after an error they are shown.
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(os.memfd_create("log"), "w+b") as log:  # needs no folder that can be written
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


def search_here(module: str) -> None:
    """Lets Python find a module that a flag names in the working directory, as `python -m` does.

    A user's package may have the name of one of ours, such as `trainer`. Then its folder is
    searched after ours.
    """
    here, name = os.getcwd(), module.partition(".")[0]
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    if name in _OURS and name in sys.modules:
        searched = sys.modules[name].__path__
        folders = (os.path.join(each or here, name) for each in sys.path)
        searched += [each for each in folders if os.path.isdir(each) and each not in searched]


def is_ours(module: ModuleType) -> bool:
    """Whether a module belongs to this project, and not to a user's package of the same name."""
    name = module.__name__.partition(".")[0]
    folder = sys.modules[name].__path__[0] if name in _OURS else ""
    return bool(folder) and str(module.__file__).startswith(f"{folder}{os.sep}")


def check_installed(package: str) -> None:
    """Checks that a package is there, without importing it, before a command writes anything.

    Raises:
        ModuleNotFoundError: It is not; `run` makes a sentence of it.
    """
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _not_installed(e: Exception) -> UserError | None:
    """The sentence where a command needs an extra that is not installed; None for other errors."""
    name = (getattr(e, "name", None) or "").partition(".")[0]
    if not isinstance(e, ModuleNotFoundError) or name not in _EXTRAS:
        return None
    return UserError(
        f"the package {name} is not installed, which this command needs; install it with pip "
        f"install 'imageshards[{_EXTRAS[name]}]'."
    )


def nearest_flags(received: str, known: Collection[str]) -> list[str]:
    """The flags that may have been meant, at most three; none where `received` is one of them.

    By initials (`--lr` for `--learning_rate`), else by the beginning of a word, else by spelling.
    """
    if received.partition("=")[0] in known:
        return []
    wanted = received.partition("=")[0].strip("-").replace("-", "_").lower()
    names = [flag.removeprefix("--") for flag in known if flag.startswith("--")]
    initials = ["".join(word[:1] for word in name.split("_")) for name in names]
    found = [name for name, first in zip(names, initials, strict=True) if first == wanted != name]
    if len(wanted) > 1:
        found = found or [name for name in names if f"_{wanted}" in f"_{name}"]
    found = found or difflib.get_close_matches(wanted, names, n=1)
    return [f"--{name}" for name in found[:_MAX_HINTS]]


def did_you_mean(names: Sequence[str]) -> str:
    """`did you mean A, B or C? `; empty for no name."""
    if not names:
        return ""
    *others, last = names
    return f"did you mean {' or '.join(filter(None, [', '.join(others), last]))}? "


def end_now(code: int) -> NoReturn:
    """Ends the process when what was registered to run at its exit has run.

    For one that has loaded Beam: taking it and its threads apart takes a second, and for ever if
    it was interrupted.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
