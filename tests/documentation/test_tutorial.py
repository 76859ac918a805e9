"""The tutorial is a notebook that runs from beginning to end."""

import pathlib
import re

import nbformat
import pytest
from nbclient import NotebookClient

from scripts.docs_notebook import PAGES, notebook
from tests.conftest import REPOSITORY
from tests.documentation.page import TIMEOUT_SEC
from tests.support.commands import served_environment

pytestmark = [pytest.mark.process, pytest.mark.slow]

PAGE = REPOSITORY / "docs" / "tutorial.md"
# Lines of its output that are the same on every machine.
_COUNTS = re.compile(r"(?m)^.*(?: images listed, | skipped \(| near duplicates |classes: ).*$")
_EPOCHS = re.compile(r"(?m)^epoch .*$")


def test_the_notebook_runs_and_prints_what_the_page_shows(tmp_path: pathlib.Path) -> None:
    made = nbformat.reads(notebook("tutorial.md"), as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(made, timeout=TIMEOUT_SEC, resources=place)
    client.execute(env={**served_environment(), "IPYTHONDIR": str(tmp_path / ".ipython")})
    outputs = (output for cell in made.cells for output in cell.get("outputs", ()))
    printed = "".join(each.text for each in outputs if each.output_type == "stream")
    page = PAGE.read_text("utf-8")
    counts = _COUNTS.findall(page)
    assert len(counts) >= 6
    assert [line for line in counts if line not in printed] == []
    # Numbers, such as `1,503 img/s`, are the machine's.
    shown, done = (re.sub(r"\d+(?:[.,]\d+)*", "0", text) for text in (page, printed))
    assert {*_EPOCHS.findall(shown)} <= {*_EPOCHS.findall(done)}


@pytest.mark.parametrize("page", PAGES)
def test_a_notebook_stands_alone_and_is_the_same_each_time(page: str) -> None:
    text, source = notebook(page), (PAGE.parent / page).read_text("utf-8")
    made = nbformat.reads(text, as_version=4)
    nbformat.validate(made)
    words = "".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
    assert ("](attachment:tutorial_report.png)" in words) == (page == "tutorial.md")
    assert "](guides/" not in words and ".md)" not in words
    code = [cell.source for cell in made.cells if cell.cell_type == "code"]
    assert len(code) == len(re.findall("^```(?:bash|python)$", source, re.MULTILINE))
    assert notebook(page) == text
