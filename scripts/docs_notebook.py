"""Converts pages into notebooks during `mkdocs build`; mkdocs.yml loads this hook."""

from __future__ import annotations

import base64
import pathlib
import re

import jupytext  # type: ignore[import-untyped]
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGES = ("tutorial.md", "guides/kaggle.md")

# Without this header jupytext makes a bash notebook of a page that has more bash than Python.
_HEAD = """\
---
jupyter:
  kernelspec:
    display_name: Python 3
    language: python
    name: python3
---
"""
_IMAGE = re.compile(r"!\[(?P<text>[^]]*)\]\((?P<path>[^):]+)\)")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^]]*)\]\((?![a-z]+:)[^)]+\)")
_BASH = "%%bash\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the notebooks to the files of the site."""
    for page in PAGES:
        name = page.replace(".md", ".ipynb")
        files.append(File.generated(config, name, content=notebook(page)))
    return files


def notebook(page: str) -> str:
    """Returns a page as the JSON text of a notebook that needs no other file.

    Images become attachments of their cells. Links to other pages become plain text.
    """
    made = jupytext.reads(_HEAD + (DOCS / page).read_text("utf-8"), "md")
    for number, cell in enumerate(made.cells):
        # jupytext draws random ids; with fixed ids every build writes the same notebook.
        cell["id"] = f"cell-{number}"
        if cell.cell_type == "markdown":
            cell.source = _LINK.sub(r"\g<text>", cell.source)
            for image in _IMAGE.finditer(cell.source):
                path = DOCS / image["path"]
                data = base64.b64encode(path.read_bytes()).decode()
                cell.setdefault("attachments", {})[path.name] = {"image/png": data}
            cell.source = _IMAGE.sub(_attached, cell.source)
        elif cell.source.startswith(_BASH):
            cell.source = f"{_BASH}set -euo pipefail\n{cell.source.removeprefix(_BASH)}"
    return str(jupytext.writes(made, "ipynb")) + "\n"


def _attached(image: re.Match[str]) -> str:
    name = image["path"].rpartition("/")[2]
    return f"![{image['text']}](attachment:{name})"
