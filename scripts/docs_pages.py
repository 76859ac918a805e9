"""Pages of the documentation that are made when it is built: a hook of mkdocs.yml.

The command reference is what each command prints with --help; architecture and changelog are the
files at the top of the repository. None of these pages is committed.
"""

from __future__ import annotations

import os
import pathlib
import re
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from imageshards.commands import COMMANDS, parser_of

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

_HEAD = """\
# Commands

What each command prints with `--help`. Exit codes: 0 done, 1 failed, 2 something to fix (one
sentence says what), 130 stopped by Ctrl-C, 143 by SIGTERM. `python -m beam_pipeline`,
`python -m trainer` and so on are the same commands.

| command | what it is for |
|---|---|
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made."""
    pages = {
        "reference/commands.md": command_reference(),
        "explanation/architecture.md": _top_file("ARCHITECTURE.md", "../"),
        "changelog.md": _top_file("CHANGELOG.md", ""),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links a page to what the site alone has: in a checkout such links would lead nowhere."""
    to_docs = "../" * page.file.src_uri.count("/")
    linked = markdown.replace("`site/tutorial.ipynb`", f"[tutorial.ipynb]({to_docs}tutorial.ipynb)")
    architecture = f"({to_docs}explanation/architecture.md)"
    linked = linked.replace(f"({to_docs}../ARCHITECTURE.md)", architecture)
    for name in COMMANDS:
        asked = f"`imageshards {name} --help`"
        linked = linked.replace(
            asked, f"[{asked}]({to_docs}reference/commands.md#imageshards-{name})"
        )
    return linked


def command_reference() -> str:
    """A section for each command: its --help as on a terminal of 80 columns."""
    rows = [
        f"| [`imageshards {name}`](#imageshards-{name}) | {command.purpose} |\n"
        for name, command in COMMANDS.items()
    ]
    with mock.patch.dict(os.environ, COLUMNS="80"):
        sections = [
            f"\n## imageshards {name}\n\n```text\n{parser_of(name).format_help().strip()}\n```\n"
            for name in COMMANDS
        ]
    return _HEAD + "".join(rows + sections)


def _top_file(name: str, to_docs: str) -> str:
    """A file of the repository's top; its links into docs/ begin with `to_docs` instead."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/", f"]({to_docs}", text)
