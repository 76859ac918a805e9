"""Adds generated pages during `mkdocs build`; mkdocs.yml loads this hook.

The command reference contains the --help text of every command. The pages for architecture and
changelog are copies of the files at the top of the repository. None of these pages is committed.
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

This page shows the `--help` text of every command. A command exits with 0 after success and with 1
after a failure. Code 2 means that you have to fix something; one sentence names the problem. Code
130 means that Ctrl-C stopped the command, and code 143 means that SIGTERM stopped the command.
`python -m beam_pipeline`, `python -m trainer` and so on run the same commands.

| command | purpose |
|---|---|
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages to the files of the site."""
    pages = {
        "reference/commands.md": command_reference(),
        "explanation/architecture.md": _top_file("ARCHITECTURE.md", "../"),
        "changelog.md": _top_file("CHANGELOG.md", ""),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns mentions of generated pages into links.

    The committed pages do not contain these links, because a checkout lacks the generated pages.
    """
    to_docs = "../" * page.file.src_uri.count("/")
    linked = re.sub(r"`site/(\S+\.ipynb)`", rf"[\1]({to_docs}\1)", markdown)
    architecture = f"({to_docs}explanation/architecture.md)"
    linked = linked.replace(f"({to_docs}../ARCHITECTURE.md)", architecture)
    for name in COMMANDS:
        asked = f"`imageshards {name} --help`"
        linked = linked.replace(
            asked, f"[{asked}]({to_docs}reference/commands.md#imageshards-{name})"
        )
    return linked


def command_reference() -> str:
    """Returns a page with the --help text of every command, wrapped at 80 columns."""
    rows = [
        f"| [`imageshards {name}`](#imageshards-{name}) | {purpose} |\n"
        for name, (_, purpose) in COMMANDS.items()
    ]
    with mock.patch.dict(os.environ, COLUMNS="80"):
        sections = [
            f"\n## imageshards {name}\n\n```text\n{parser_of(name).format_help().strip()}\n```\n"
            for name in COMMANDS
        ]
    return _HEAD + "".join(rows + sections)


def _top_file(name: str, to_docs: str) -> str:
    """Returns a file at the top of the repository, with `to_docs` in place of `docs/` in links."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/", f"]({to_docs}", text)
