import html
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.page import _environment, number, percent, render, share, size
from tests.support.html_page import Page

pytestmark = pytest.mark.process


def page_of(title="x", **figures):
    given = {"what": "report", "tiles": (), "parts": ()} | figures
    return render("imageshards.page", "base.jinja", title=title, **given)


@given(st.text())
def test_any_text_is_escaped(text):
    drawn = page_of(text, parts=[(text, text, "content")])
    page = Page(drawn)
    assert len(page.tags) == len(Page(page_of("x", parts=[("x", "x", "content")])).tags)
    drawn.encode("utf-8")
    if text.isprintable():
        match = re.search("<h1>(.*) <small>· report</small></h1>", drawn)
        assert match is not None and html.unescape(match[1]) == text
        assert page.all("section")[0]["aria-labelledby"] == text


def test_empty_parts_are_left_out_and_a_table_scrolls_in_a_box_with_a_name():
    page = Page(page_of(parts=[("a", "Some", "words"), ("b", "None", " \n")]))
    assert page.all("a") == [{"href": "#a"}] and page.all("h2") == [{"id": "a"}]
    kit: Any = _environment("imageshards.page").get_template("kit.jinja").module
    page = Page(str(kit.table('"Most" wrong', ["Class", "Images"], [["cat", "3"]])))
    box = page.all("div")[0]
    assert (box["role"], box["tabindex"], box["aria-label"]) == ("region", "0", '"Most" wrong')
    assert page.words.count('"Most" wrong') == 1 and len(page.all("figcaption")) == 1


def test_numbers_are_readable_and_rounding_never_gives_all_or_nothing():
    assert [size(n) for n in (0, 1000, 27_345_000)] == ["0 B", "1 kB", "27.3 MB"]
    shares = [share(*parts) for parts in ((0, 0), (5, 5), (99_999, 10**5), (3, 1399))]
    assert shares == ["0\u00a0%", "100\u00a0%", "99.9\u00a0%", "0.21\u00a0%"]
    percents = [percent(part) for part in (0, 1, 0.0214, 1e-9, None)]
    assert percents == ["0\u00a0%", "100\u00a0%", "2.1\u00a0%", "0.1\u00a0%", "–"]
    assert [number(n) for n in (1234567, 1234.5678, 0.5)] == ["1,234,567", "1,235", "0.5"]
