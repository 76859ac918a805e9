"""The documentation as tests: every page is a file of tests, every code block one of them.

Sybil finds the blocks and makes tests of them; conftest.py at the top names it to pytest.
"""

import contextlib
import io
import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from sybil import Document, Region, Sybil
from sybil.example import Example

from imageshards.commands import COMMANDS, parser_of
from imageshards.errors import UserError
from tests.documentation.blocks import LANGUAGES, PARSED, Block, commands_of, regions
from tests.documentation.page import Failed, Page
from tests.support.commands import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/**/*.md")
# Run whole, by test_tutorial.py, as a notebook.
WHOLE = ("docs/tutorial.md",)
# Whose blocks run in `make test`; those of the other pages, which are guides, in `make test-long`.
READ_FIRST = ("README.md",)
# Whose flags are parsed where a block is not run.
PROGRAMS = ("beam_pipeline", "deploy", "imageshards", "trainer")
# What these do not know goes to Beam.
PASSES_ON = ("build",)
# Stands for what is left out.
ELLIPSES = ("…", "...")
_ENDS = "();<>|&\n"


class Blocks(Sybil):
    """Names the tests by language and reason instead of a column."""

    def identify(self, example: Example) -> str:
        return str(example.parsed.name)


def parse(document: Document) -> Iterator[Region]:
    """A parser for Sybil: every block, with what evaluates it."""
    is_whole = os.path.relpath(document.path, ROOT) in WHOLE
    for region, block in regions(document):
        if is_whole and not block.not_run and mistake_of_form(block) is None:
            continue
        region.parsed, region.evaluator = block, evaluate
        yield region


def evaluate(example: Example) -> str | None:
    """Runs or checks a block; what is wrong with it."""
    block, page = example.parsed, example.namespace
    mistake = mistake_of_form(block)
    if mistake or block.not_run or block.language in PARSED:
        return mistake and _told(block, mistake)
    if "failed" in page:
        pytest.skip(f"the block in line {page['failed']} failed")
    try:
        if "page" not in page:
            base = page["tmp_path_factory"].getbasetemp()
            # Processes of xdist have folders of their own in one that they share.
            shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
            folder = tempfile.mkdtemp(prefix=f"{pathlib.Path(block.page).stem}-", dir=base)
            page["page"] = Page(block.page, shared, pathlib.Path(folder, "page"))
        page["page"].run(block)
    except Failed as e:
        page["failed"] = block.line
        return _told(block, str(e))
    return None


def is_of_a_guide(example: Example) -> bool:
    """Whether an example runs its block, and is on a page that is read after the first ones."""
    block = example.parsed
    runs = block.language not in PARSED and not block.not_run
    return runs and os.path.relpath(block.page, ROOT) not in READ_FIRST


def mistake_of_form(block: Block) -> str | None:
    """What is wrong with a block before it is run, and the flags of one that is not."""
    if block.language not in LANGUAGES:
        return (
            f"a fence with the language {block.language!r}; expected one of "
            f"{', '.join(LANGUAGES)}: bash and python are run, of console the lines that begin "
            "with `$ `, and text is for output and drawings."
        )
    if block.language in PARSED or (block.language == "python" and block.not_run):
        return _parse_error(block)
    if block.language == "python":
        return None
    commands = commands_of(block)
    if block.language == "console" and not commands.strip():
        return "a transcript without a command; expected a line that begins with `$ `, or text."
    return _shell_error(commands) if block.not_run else None


_PARSERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "python": lambda text: compile(text, "a page", "exec"),
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}


def _parse_error(block: Block) -> str | None:
    try:
        _PARSERS[block.language](block.source)
    except (ValueError, SyntaxError, yaml.YAMLError) as e:
        return f"no {block.language}: {e}"
    return None


def _shell_error(commands: str) -> str | None:
    checked = subprocess.run(["bash", "-n"], input=commands, capture_output=True, text=True)
    if checked.returncode:
        return f"no shell: {checked.stderr}"
    for call in calls(commands):
        mistake = mistake_in(call)
        if mistake:
            return f"{' '.join(call)}\n{mistake}"
    return None


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
            from beam_pipeline.runners.runner import check_flags

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
    named = (name for name, (module, _) in COMMANDS.items() if module in homes)
    return next(named, None), arguments


def _told(block: Block, output: str) -> str:
    """What a failing test prints: where, the block, what came of it."""
    return f"{os.path.relpath(block.page, ROOT)}:{block.line}\n\n{block.source}\n{output}"


def close(namespace: dict[str, Any]) -> None:
    if "page" in namespace:
        namespace["page"].close()


_FIXTURES = ["tmp_path_factory"]
documentation = Blocks([parse], patterns=PAGES, path=str(ROOT), fixtures=_FIXTURES, teardown=close)
