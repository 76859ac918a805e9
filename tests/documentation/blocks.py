"""The code blocks of a page: which there are, and what a page must not have.

A block is a fence with a language. `<!-- not run: REASON -->` on the line before it says that it
cannot be run here.
"""

import dataclasses
import re
import textwrap
from collections.abc import Iterator

from sybil import Document, Region
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

RUN = ("bash", "console", "python")
PARSED = ("json", "toml", "yaml")
# `text` is output, or a drawing.
LANGUAGES = (*RUN, *PARSED, "text")

_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>[^\n]+?) -->[ \t]*\n[ \t]*\Z")
_FENCES = RawFencedCodeBlockLexer(re.compile(r"(?P<language>[^\n]*)\n"))


@dataclasses.dataclass(frozen=True)
class Block:
    """A code block; a language that is not one of `LANGUAGES` is a mistake of the page."""

    page: str
    line: int  # of its fence
    language: str
    source: str
    not_run: str | None = None  # why not

    @property
    def name(self) -> str:
        reason = f", not run: {self.not_run}" if self.not_run else ""
        return f"line {self.line} [{self.language}{reason}]"


def regions(document: Document) -> Iterator[tuple[Region, Block]]:
    """All blocks of a page but the output, with their places in it; a parser for Sybil."""
    for region in _FENCES(document):
        lexemes = region.lexemes
        line = document.text.count("\n", 0, region.start) + 1
        before = _NOT_RUN.search(document.text[: region.start])
        language, source = (str(lexemes[name]) for name in ("language", "source"))
        reason = before["reason"] if before else None
        source = textwrap.dedent(source)
        block = Block(document.path, line, language.strip(), source, reason)
        if block.language != "text":
            yield region, block


def commands_of(block: Block) -> str:
    """What a block of a shell runs: of a transcript the lines that begin with a prompt."""
    if block.language != "console":
        return block.source
    commands: list[str] = []
    for line in block.source.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif commands and (line.startswith("> ") or commands[-1].endswith("\\")):
            commands.append(line.removeprefix("> "))
    return "\n".join(commands) + "\n"
