"""The documentation as tests: every page is a file of tests, every code block one of them.

Sybil finds the blocks and makes tests of them; conftest.py at the top names it to pytest.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from sybil import Document, Region, Sybil
from sybil.example import Example

from tests.documentation import flags
from tests.documentation.blocks import LANGUAGES, PARSED, Block, commands_of, regions
from tests.documentation.page import Failed, Page
from tests.support.commands import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/**/*.md")
# Run whole, by test_tutorial.py, as a notebook.
WHOLE = ("docs/tutorial.md",)


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
    for call in flags.calls(commands):
        mistake = flags.mistake_in(call)
        if mistake:
            return f"{' '.join(call)}\n{mistake}"
    return None


def _told(block: Block, output: str) -> str:
    """What a failing test prints: where, the block, what came of it."""
    return f"{os.path.relpath(block.page, ROOT)}:{block.line}\n\n{block.source}\n{output}"


def close(namespace: dict[str, Any]) -> None:
    if "page" in namespace:
        namespace["page"].close()


_FIXTURES = ["tmp_path_factory"]
documentation = Blocks([parse], patterns=PAGES, path=str(ROOT), fixtures=_FIXTURES, teardown=close)
