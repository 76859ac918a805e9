"""Renders the figures of a program as one HTML file without outside resources."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imageshards.page.thumbnails import data_uri
from imageshards.text import counted

if TYPE_CHECKING:
    import jinja2

# HTML forbids these control characters, and no browser shows them.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class Meter(NamedTuple):
    """A cell of a table: a bar filled by `share` (0 to 1) of its width, and a text beside it."""

    share: float
    text: str


# The cells of a table, row by row.
Rows = Sequence[Sequence[str | Meter]]


def render(package: str, template: str, **figures: Any) -> str:
    """Returns a page as one HTML document without outside resources.

    Args:
        package: The package with the template, which may use `base.jinja` and `kit.jinja`.
        template: The file name of the template.
        **figures: The variables of the template; all values are escaped.
    """
    text = _environment(package).get_template(template).render(figures)
    # File names may hold control characters, and bytes that are not UTF-8.
    return _CONTROL.sub("\ufffd", text).encode("utf-8", "replace").decode("utf-8")


@functools.cache
def _environment(package: str) -> jinja2.Environment:
    import jinja2  # Most runs of a program draw no page, so jinja2 is imported late.

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(each, ".") for each in (package, "imageshards.page")]
        ),
        autoescape=True,  # A class may be called `<script>`.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Templates call these functions as filters.
    environment.filters |= {
        function.__name__: function
        for function in (counted, data_uri, number, percent, share, size)
    }
    return environment


def number(value: float) -> str:
    """Formats a number: 1234567 → "1,234,567", 12345.6 → "12,346", 1.23456 → "1.235"."""
    is_whole = isinstance(value, int) or 1e4 <= abs(value) < 1e15
    return f"{value:,.0f}" if is_whole else f"{value:,.4g}"


def size(size_bytes: float) -> str:
    """Formats bytes with a decimal unit: 27_345_000 → "27.3 MB"."""
    units = ["B", "kB", "MB", "GB", "TB"]
    # Three digits round 999.5 up to 1000.
    while size_bytes >= 999.5 and len(units) > 1:
        size_bytes /= 1000
        del units[0]
    return f"{size_bytes:.0f} B" if units[0] == "B" else f"{size_bytes:.3g} {units[0]}"


def percent(share: float | None) -> str:
    """Formats a share with a no-break space: 0.0214 → "2.1 %"; None → "–"."""
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{100 * share:.0f}\u00a0%"
    # Rounding must not turn a share into all or nothing.
    return f"{min(max(100 * share, 0.1), 99.9):.1f}\u00a0%"


def share(part: float, whole: float) -> str:
    """Formats a part of a whole like `percent`, with two digits for a rare part."""
    value = part / whole if whole else 0.0
    return f"{100 * value:.2g}\u00a0%" if 0 < value < 0.01 else percent(value)
