"""Curves of a run as SVG, drawn by matplotlib in the colours of the page around them."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# matplotlib cannot use CSS variables: it draws in placeholders, which are replaced by them.
_COLOURS = {
    "#010203": "var(--bar)",
    "#020304": "var(--pale)",
    "#030405": "var(--soft)",
    "#040506": "var(--line)",
    "#050607": "var(--warn)",
}
_BAR, _PALE, _SOFT, _LINE, _WARN = _COLOURS
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # Text stays text: it can be searched, and takes the page's font.
    "font.size": 10,
    "text.color": _SOFT,
    "axes.labelcolor": _SOFT,
    "axes.edgecolor": _LINE,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _LINE,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
_LARGE_IN, _SMALL_IN = (5.6, 2.9), (4.0, 2.4)
# Names such as axes_1 recur in every chart of a page; those that are referred to are hashes.
_PLAIN_ID = re.compile(r' id="[A-Za-z0-9.]+_\d+"')


class Chart(NamedTuple):
    """What one chart shows.

    Attributes:
        title, unit: Its heading.
        curves: Key in an epoch's object → what it is called in the legend.
        factor: Multiplies the values.
        from_zero: Whether the axis starts there.
        top: Where it ends; None for a little above the highest value.
        small: Whether it is one of three in a row instead of two.
    """

    title: str
    unit: str
    curves: Mapping[str, str]
    factor: float = 1.0
    from_zero: bool = False
    top: float | None = None
    small: bool = True


CHARTS = (
    Chart(
        "Loss", "mean over an epoch", {"loss": "training", "val_loss": "validation"}, small=False
    ),
    Chart(
        "Accuracy",
        "percent of the examples",
        {"accuracy": "training", "val_accuracy": "validation"},
        100.0,
        small=False,
    ),
    Chart("Speed", "images per second", {"images_per_second": "images/s"}, from_zero=True),
    Chart(
        "Waited for data",
        "percent of the training time",
        {"wait_fraction": "waited"},
        100.0,
        from_zero=True,
        top=100.0,
    ),
    Chart("Learning rate", "at the end of an epoch", {"learning_rate": "learning rate"}),
)


def curves(history: Sequence[Mapping[str, Any]]) -> list[tuple[Chart, str]]:
    """All charts there are values for, each with its SVG.

    Args:
        history: The objects of metrics.jsonl.
    """
    return [
        (chart, _svg(chart, history))
        for chart in CHARTS
        if any(record.get(key) is not None for key in chart.curves for record in history)
    ]


def best_epoch(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The epoch with the lowest validation loss, the first of equal ones."""
    validated = [record for record in history if record.get("val_loss") is not None]
    return min(validated, key=lambda record: record["val_loss"], default=None)


def _svg(chart: Chart, history: Sequence[Mapping[str, Any]]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": chart.title}):
        figure = Figure(figsize=_SMALL_IN if chart.small else _LARGE_IN, layout="constrained")
        _draw(figure.add_subplot(), chart, history)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(buffer.getvalue())


def _draw(axes: Any, chart: Chart, history: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    epochs = [record["epoch"] for record in history]
    best = best_epoch(history) if len(history) > 1 else None
    # Lines between a few points look like many; below that the points are shown, too.
    marker = "o" if len(history) <= 30 else ""
    for key, name in chart.curves.items():
        values = [
            float("nan") if record.get(key) is None else chart.factor * record[key]
            for record in history
        ]
        if all(value != value for value in values):
            continue
        # Of two curves the first stays in the background.
        back = len(chart.curves) > 1 and key == next(iter(chart.curves))
        colour, width = (_PALE, 1.6) if back else (_BAR, 2.0)
        axes.plot(epochs, values, color=colour, linewidth=width, marker=marker, ms=4, label=name)
        if key.startswith("val_") and best is not None:
            index = history.index(best)
            axes.plot([epochs[index]], [values[index]], "o", color=_WARN, ms=7, label="best loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    if len(chart.curves) > 1:
        axes.legend()
    if chart.from_zero:
        highest = max(chart.factor * (r.get(k) or 0) for r in history for k in chart.curves)
        axes.set_ylim(0, chart.top or 1.1 * highest or 1.0)


def _for_page(svg: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = _PLAIN_ID.sub("", svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", svg)
    svg = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", svg, count=2)
    for placeholder, variable in _COLOURS.items():
        svg = svg.replace(placeholder, variable)
    return svg
