"""Pieces of the report's page: text made safe, numbers made readable, tables."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# Neither HTML nor a reader knows what to do with them.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """`value` as HTML text or attribute; `Markup` stays as it is."""
    if isinstance(value, Markup):
        return value
    text = _CONTROL.sub("\ufffd", str(value))
    # File names that are no UTF-8 arrive as lone surrogates, which no file can hold.
    return Markup(html.escape(text.encode("utf-8", "replace").decode("utf-8")))


def number(value: float) -> str:
    """1234567 → "1,234,567"."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def size(size_bytes: float) -> str:
    """Bytes with a decimal unit: 27_345_000 → "27.3 MB"."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size_bytes >= 999.5 and len(units) > 1:
        size_bytes /= 1000
        del units[0]
    return f"{size_bytes:.0f} B" if units[0] == "B" else f"{size_bytes:.3g} {units[0]}"


def share(part: float, whole: float) -> str:
    """3 of 1399 → "0.21 %"; only the whole is 100 %."""
    percent = 100 * part / whole if whole else 0.0
    if percent in (0, 100):
        return f"{percent:.0f} %"
    return f"{min(percent, 99.9):.1f} %" if percent >= 1 else f"{percent:.2g} %"


def plural(count: int, noun: str) -> str:
    """2, "class" → "2 classes"."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{number(count)} {noun}{ending}"


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    numeric: Sequence[int] = (),
) -> Markup:
    """A table whose first column names the row.

    Args:
        caption: Said above the table.
        head: Names of the columns.
        rows: Cells, escaped here.
        numeric: Numbers of the columns that are set flush right.
    """

    def cell(tag: str, column: int, value: object, scope: str = "") -> str:
        kind = ' class="number"' if column in numeric else ""
        return f"<{tag}{scope}{kind}>{escape(value)}</{tag}>"

    header = "".join(cell("th", i, name, ' scope="col"') for i, name in enumerate(head))
    body = "\n".join(
        "<tr>"
        + "".join(
            cell("td", i, value) if i else cell("th", i, value, ' scope="row"')
            for i, value in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return Markup(
        f'<div class="wide"><table><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{header}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def section(identifier: str, title: str, *content: str) -> Markup:
    """A part of the page with its heading; nothing where it has no content."""
    inner = "".join(content)
    if not inner:
        return Markup("")
    return Markup(
        f'<section aria-labelledby="{identifier}">\n<h2 id="{identifier}">{escape(title)}</h2>\n'
        f"{inner}</section>\n"
    )


def paragraph(text: str) -> Markup:
    """One paragraph."""
    return Markup(f"<p>{escape(text)}</p>\n")


def page(title: str, style: str, *sections: str) -> str:
    """The whole document, which needs nothing but itself."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{''.join(sections)}</body>\n</html>\n"
    )
