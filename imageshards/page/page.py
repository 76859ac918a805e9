"""Pages for people: a program's figures, set by templates, as one HTML file that needs no other."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imageshards.page.thumbnails import data_uri
from imageshards.text import counted

if TYPE_CHECKING:
    import jinja2

# Neither HTML nor a reader knows what to do with them.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class Meter(NamedTuple):
    """A cell of a table: a bar filled by `share` (0 to 1) of its width, and a text beside it."""

    share: float
    text: str


# What a table shows: its cells, row by row.
Rows = Sequence[Sequence[str | Meter]]


def render(room: str, template: str, **figures: Any) -> str:
    """A page of the package `room` as one HTML document without outside resources.

    All values are escaped: a class may be called `<script>`. What no HTML file can hold (control
    characters, file names that are no UTF-8) is replaced. The template lies beside the modules of
    `room`; it may use `base.jinja` and `kit.jinja` of this package.
    """
    text = _environment(room).get_template(template).render(figures)
    return _CONTROL.sub("\ufffd", text).encode("utf-8", "replace").decode("utf-8")


@functools.cache
def _environment(room: str) -> jinja2.Environment:
    import jinja2  # Here, because most runs of a program draw no page.

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(package, ".") for package in (room, "imageshards.page")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        function.__name__: function
        for function in (counted, data_uri, number, percent, share, size)
    }
    return environment


def number(value: float) -> str:
    """1234567 → "1,234,567", and 12345.6 → "12,346", but 1.23456 → "1.235"."""
    is_whole = isinstance(value, int) or 1e4 <= abs(value) < 1e15
    return f"{value:,.0f}" if is_whole else f"{value:,.4g}"


def size(size_bytes: float) -> str:
    """Bytes with a decimal unit: 27_345_000 → "27.3 MB"."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size_bytes >= 999.5 and len(units) > 1:
        size_bytes /= 1000
        del units[0]
    return f"{size_bytes:.0f} B" if units[0] == "B" else f"{size_bytes:.3g} {units[0]}"


def percent(share: float | None) -> str:
    """0.0214 → "2.1 %" without a line break; only the whole is 100 %, only nothing 0 %."""
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{100 * share:.0f}\u00a0%"
    return f"{min(max(100 * share, 0.1), 99.9):.1f}\u00a0%"


def share(part: float, whole: float) -> str:
    """3 of 1399 → "0.21 %": as `percent`, but rare things keep two digits."""
    value = part / whole if whole else 0.0
    return f"{100 * value:.2g}\u00a0%" if 0 < value < 0.01 else percent(value)
