"""Flags of commands that cannot be run here: parsed by the parsers that they are for."""

import contextlib
import io
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence

from imageshards.commands import COMMANDS, parser_of
from imageshards.errors import UserError

PROGRAMS = ("beam_pipeline", "deploy", "imageshards", "trainer")
# What these do not know goes to Beam.
PASSES_ON = ("build",)
# Stands for what is left out.
ELLIPSES = ("…", "...")
_ENDS = "();<>|&\n"


def calls(shell: str) -> Iterator[list[str]]:
    """Every `imageshards …` and `python -m PROGRAM …` of a shell's text, as words."""
    text = re.sub(r"(^|\s)#.*", r"\1", shell.replace("\\\n", " "), flags=re.MULTILINE)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_ENDS)
    # The end of a line is the end of a command.
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    for is_end, group in itertools.groupby(
        lexer, lambda word: bool(word) and set(word) <= set(_ENDS)
    ):
        words = list(group)
        if not is_end and "imageshards" in words:
            yield words[words.index("imageshards") :]
        elif not is_end and "-m" in words:
            call = words[words.index("-m") + 1 :]
            if call[0].partition(".")[0] in PROGRAMS:
                yield call


def mistake_in(call: Sequence[str]) -> str | None:
    """What is wrong with a command and its flags; None if they are as the program wants them."""
    name, arguments = _command_of(call)
    if name is None:
        return None  # none of the commands, but a module that stands for itself
    if name not in COMMANDS:
        return f"{name!r} is no command; expected one of {', '.join(COMMANDS)}"
    if arguments in (["--help"], ["--version"]):
        return None
    parser = parser_of(name)
    for action in parser._actions:
        action.required = False
    # After a flag an ellipsis stands for a value, elsewhere for any arguments.
    pairs = zip(["", *arguments], arguments, strict=False)
    arguments = [word for before, word in pairs if word not in ELLIPSES or before[:2] == "--"]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            _, left_over = parser.parse_known_args(arguments)
        if left_over and name not in PASSES_ON:
            return f"{left_over[0]!r} is no flag or argument of {parser.prog}"
        if left_over:
            # Late, as it imports Beam.
            from beam_pipeline.runners.choice import check_flags

            check_flags(left_over)
    except UserError as e:
        return str(e)
    except SystemExit:
        return printed.getvalue()
    return None


def _command_of(call: Sequence[str]) -> tuple[str | None, list[str]]:
    """Name of a command and its arguments, by whichever name it is called."""
    program, *arguments = call
    if program == "imageshards":
        return (arguments[0], arguments[1:]) if arguments else (None, [])
    homes = (program, f"{program}.__main__", f"{program}.command")
    return next((name for name, each in COMMANDS.items() if each.module in homes), None), arguments
