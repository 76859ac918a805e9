"""Pieces of the report's page: text made safe, tables, the style sheet."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence

# Neither HTML nor a reader knows what to do with them.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """`value` as HTML text or attribute; `Markup` stays as it is."""
    if isinstance(value, Markup):
        return value
    text = _CONTROL.sub("\ufffd", str(value))
    # Names that are no UTF-8 arrive as lone surrogates, which no file can hold.
    return Markup(html.escape(text.encode("utf-8", "replace").decode("utf-8")))


def percent(share: float | None) -> str:
    """0.0214 → "2.1 %" without a line break; only the whole is 100 %, only nothing 0 %."""
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{100 * share:.0f}\u00a0%"
    return f"{min(max(100 * share, 0.1), 99.9):.1f}\u00a0%"


def data_uri(content: bytes, kind: str) -> str:
    """A picture inside the page; `kind` is `jpeg` or `png`."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


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
    lines = []
    for row in rows:
        cells = [
            cell("td", i, value) if i else cell("th", i, value, ' scope="row"')
            for i, value in enumerate(row)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    return Markup(
        f'<div class="wide"><table><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{header}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def bar(share: float | None) -> Markup:
    """A share as a bar with its number."""
    if share is None:
        return Markup("–")
    width = 100 * min(max(share, 0.0), 1.0)
    return Markup(
        f'<span class="bar"><i><b style="width:{width:.1f}%"></b></i>{percent(share)}</span>'
    )


def tiles(values: Iterable[tuple[str, str, str]]) -> Markup:
    """The figures that matter most: (name, value, remark)."""
    parts = [
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(remark)}</small></dd></div>"
        for name, value, remark in values
    ]
    return Markup(f'<dl class="tiles">\n{"".join(parts)}\n</dl>\n') if parts else Markup("")


def details(summary: str, content: str) -> Markup:
    """What is there for those who ask for it."""
    return Markup(f"<details><summary>{escape(summary)}</summary>\n{content}</details>\n")


def paragraph(text: str) -> Markup:
    """One paragraph."""
    return Markup(f"<p>{escape(text)}</p>\n")


def section(identifier: str, title: str, content: str) -> Markup:
    """A part of the page with its heading; nothing where it has no content."""
    if not content:
        return Markup("")
    return Markup(
        f'<section aria-labelledby="{identifier}">\n<h2 id="{identifier}">{escape(title)}</h2>\n'
        f"{content}</section>\n"
    )


def page(title: str, *parts: str) -> str:
    """The whole document, which needs nothing but itself."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n"
        f"{''.join(parts)}</body>\n</html>\n"
    )


_STYLE = """\
:root {
  --paper: #fbfaf8; --card: #ffffff; --ink: #1f2328; --soft: #646b74; --line: #e3e1dc;
  --bar: #2f6f8f; --pale: #8fb7c9; --track: #efeeea; --warn: #b4541a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --card: #1c2024; --ink: #e6e8ea; --soft: #9aa3ad; --line: #30363c;
    --bar: #63aeca; --pale: #3f6a7d; --track: #262b30; --warn: #e79a5f;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 72rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", "Noto Sans", sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0; letter-spacing: -0.015em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 3rem 0 0.75rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
p { margin: 0.4rem 0; max-width: 46rem; color: var(--soft); }
nav { margin: 1rem 0 0; display: flex; flex-wrap: wrap; gap: 0.25rem 1.1rem; font-size: 0.9rem; }
a { color: var(--bar); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr));
  gap: 0.75rem; margin: 1.5rem 0 0; padding: 0; }
.tiles div, .chart { background: var(--card); border: 1px solid var(--line);
  border-radius: 0.6rem; padding: 0.8rem 1rem; }
.tiles dt { color: var(--soft); font-size: 0.85rem; }
.tiles dd { margin: 0; font-size: 1.5rem; font-weight: 600; letter-spacing: -0.01em; }
.tiles small { display: block; font-size: 0.8rem; font-weight: 400; color: var(--soft); }
.charts { display: grid; gap: 1rem; margin: 0.75rem 0 1.25rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.charts.small { grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
.chart { margin: 0; }
.chart figcaption { font-size: 0.9rem; font-weight: 500; margin-bottom: 0.4rem; }
.chart small { color: var(--soft); font-weight: 400; display: block; }
svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; margin: 0.75rem 0; }
table { border-collapse: collapse; min-width: min(100%, 32rem); font-size: 0.925rem; }
caption { text-align: left; color: var(--soft); font-size: 0.875rem; padding-bottom: 0.35rem; }
th, td { padding: 0.35rem 1rem 0.35rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 500; font-size: 0.85rem; white-space: nowrap; }
tbody th { font-weight: 500; min-width: 6rem; }
.number { text-align: right; white-space: nowrap; }
.bar { display: grid; grid-template-columns: minmax(5rem, 12rem) 4.5em; gap: 0.6rem;
  align-items: center; }
.bar i { height: 0.7rem; background: var(--track); border-radius: 0.2rem; overflow: hidden; }
.bar b { display: block; height: 100%; background: var(--bar); }
table.matrix { min-width: 0; border-spacing: 2px; border-collapse: separate; }
.matrix th, .matrix td { border: 0; padding: 0.3rem 0.6rem; }
.matrix thead th { vertical-align: bottom; white-space: normal; max-width: 8rem; }
.matrix td { text-align: right; min-width: 3.2rem; border-radius: 0.25rem;
  background: color-mix(in srgb, var(--warn) calc(100% * var(--share)), var(--track)); }
.matrix td.right { background: color-mix(in srgb, var(--bar) calc(100% * var(--share)),
  var(--track)); }
.matrix td.full { color: var(--paper); }
.matrix td.none { color: var(--soft); background: var(--track); }
.heat { width: min(100%, 40rem); image-rendering: pixelated; background: var(--track);
  border: 1px solid var(--line); border-radius: 0.3rem; display: block; }
.wrong { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 1rem;
  margin: 0.75rem 0 0; padding: 0; list-style: none; }
.wrong li { background: var(--card); border: 1px solid var(--line); border-radius: 0.6rem;
  overflow: hidden; font-size: 0.8rem; line-height: 1.4; }
.wrong img, .wrong .absent { display: block; width: 100%; aspect-ratio: 1; object-fit: contain;
  background: var(--track); }
.wrong .absent { padding: 1rem; color: var(--warn); }
.wrong div { padding: 0.5rem 0.7rem 0.7rem; overflow-wrap: anywhere; }
.wrong strong { display: block; font-size: 0.9rem; }
.wrong em { font-style: normal; color: var(--warn); }
.wrong span { display: block; color: var(--soft); }
details { margin: 0.75rem 0; } summary { cursor: pointer; }
@media print { body { max-width: none; padding: 0; } .chart, tr, li { break-inside: avoid; } }
"""
