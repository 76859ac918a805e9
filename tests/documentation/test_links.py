"""Links of the documentation lead somewhere in a checkout; test_site.py holds those of the site."""

import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY

PLACES = ("*.md", "docs/**/*.md", "deploy/*/README.md")
PAGES = [page for place in PLACES for page in REPOSITORY.glob(place)]
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:)(?P<file>[^)#\s]*)(?:#(?P<anchor>[^)]*))?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(page: pathlib.Path) -> set[str]:
    """Anchors of a page's headings, as the site and most forges make them, and of API names."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    headings = (re.sub(r"[`*[]|\]\([^)]*\)", "", found).lower() for found in _HEADING.findall(text))
    slugs = {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"^::: (\S+)", text, re.MULTILINE))


def dead_links(page: pathlib.Path) -> Iterator[str]:
    for link in _LINK.finditer(_FENCE.sub("", page.read_text("utf-8"))):
        target = page.parent / link["file"] if link["file"] else page
        if not target.exists():
            yield link[0]
        elif link["anchor"] and link["anchor"] not in anchors(target):
            yield link[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere_in_a_checkout(page: pathlib.Path) -> None:
    assert list(dead_links(page)) == []
