"""The documentation's site: it builds without a warning, from this checkout alone."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The built site; a page that is not in nav or a dead link or anchor is an error, too."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_what_people_import_is_in_the_reference(site):
    import beam_pipeline
    import imageshards

    page = (site / "reference/python.html").read_text("utf-8")
    for package in (imageshards, beam_pipeline):
        names = {name for name in package.__all__ if not name.startswith("__")}
        assert names <= set(re.findall(rf">\s*{package.__name__}\.(\w+)\s*<", page))


def test_pages_ask_nobody_else_for_anything(site):
    asked = re.compile(r'<(?:link|script|img)[^>]*\s(?:href|src)="(https?:)?//')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert [page.name for page in pages if asked.search(page.read_text("utf-8"))] == []
