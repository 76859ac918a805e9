"""What the sections of the report show: curves, epochs, confusions, classes, wrong pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imageshards.page import Chart, Meter, Rows, line_chart, number, percent
from trainer.evaluation.per_class import ClassFigures, confusions_of, figures_of, mean_recall, worst

if TYPE_CHECKING:
    from trainer.evaluation.evaluator import Evaluation

# Of more classes a list of confusions is shown.
MAX_MATRIX = 20
MAX_CONFUSIONS = 30
WRONG_PICTURES = 24


class _Curves(NamedTuple):
    """What one chart shows.

    Attributes:
        lines: Key in an epoch's object → what it is called in the legend.
        least: Where an axis from zero ends at least; None for an axis around the values.
        magnified: Whether shares that are all high have an axis around them, as they would
            hardly differ on one from zero.
    """

    title: str
    unit: str
    lines: Mapping[str, str]
    least: float | None = None
    is_share: bool = False
    magnified: bool = False


_LARGE = (
    _Curves("Loss", "mean over an epoch", {"loss": "training", "val_loss": "validation"}),
    _Curves(
        "Accuracy",
        "share of the examples",
        {"accuracy": "training", "val_accuracy": "validation"},
        least=0.1,
        is_share=True,
        magnified=True,
    ),
)
_SMALL = (
    _Curves("Speed", "images per second", {"images_per_second": "speed"}, least=0),
    _Curves(
        "Waited for data",
        "share of the training time",
        {"wait_fraction": "waited"},
        least=1,
        is_share=True,
    ),
    _Curves("Learning rate", "at the end of an epoch", {"learning_rate": "rate"}, least=0),
)


def curves(history: Sequence[Mapping[str, Any]]) -> tuple[list[Chart], list[Chart]]:
    """Large and small charts of metrics.jsonl, where there are values; none for a single epoch."""
    large, small = (
        [chart for one in charts if (chart := _chart(one, history))] for charts in (_LARGE, _SMALL)
    )
    return large, small


def _chart(wanted: _Curves, history: Sequence[Mapping[str, Any]]) -> Chart | None:
    if len(history) < 2:
        return None
    best = best_epoch(history)
    lines = {name: [record.get(key) for record in history] for key, name in wanted.lines.items()}
    return line_chart(
        wanted.title,
        wanted.unit,
        [record["epoch"] for record in history],
        lines,
        "epoch",
        least=None if wanted.magnified and _all_high(lines) else wanted.least,
        best=("best loss", "validation", history.index(best)) if best else None,
        unit=_percent_mark if wanted.is_share else number,
    )


def _all_high(lines: Mapping[str, Sequence[float | None]]) -> bool:
    values = {value for line in lines.values() for value in line if value is not None}
    return len(values) > 1 and min(values) >= 0.5


def _percent_mark(value: float) -> str:
    return f"{100 * value:.3g}\u00a0%"


def best_epoch(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The epoch with the lowest validation loss, the first of equal ones."""
    validated = [record for record in history if record.get("val_loss") is not None]
    return min(validated, key=lambda record: record["val_loss"], default=None)


def tiles(
    history: Sequence[Mapping[str, Any]], evaluation: Evaluation | None
) -> list[tuple[str, str, str]]:
    """The main figures: (name, value, remark)."""
    shown: list[tuple[str, str, str]] = []
    if evaluation is not None:
        examples = f"of {evaluation.num_examples:,} examples"
        shown.append(("Accuracy", _percent(evaluation.accuracy), examples))
        if evaluation.top5_accuracy is not None:
            shown.append(("Top-5 accuracy", _percent(evaluation.top5_accuracy), examples))
        shown.append(("Loss", f"{evaluation.loss:.4f}", "mean cross-entropy"))
        recall = mean_recall(figures_of(evaluation))
        if recall is not None:
            shown.append(("Mean class accuracy", percent(recall), "every class counts alike"))
        if evaluation.left_out:
            shown.append(("Left out", f"{evaluation.left_out:,}", "broken records"))
    best = best_epoch(history)
    if best is not None:
        remark = f"of {len(history)}, loss {best['val_loss']:.4f}"
        shown.append(("Best epoch", str(best["epoch"]), remark))
    if history and history[-1].get("images_per_second"):
        waited = history[-1].get("wait_fraction")
        remark = f"waited {percent(waited)} for data" if waited is not None else ""
        shown.append(("Images per second", f"{history[-1]['images_per_second']:,.0f}", remark))
    return shown


def _percent(value: float) -> str:
    # NaN: there is no example.
    return percent(value if value == value else None)


def epochs(history: Sequence[Mapping[str, Any]]) -> Rows:
    """metrics.jsonl as a table; its first row is the head."""
    keys = list(dict.fromkeys(key for record in history for key in record))
    return [keys, *([_figure(key, record.get(key)) for key in keys] for record in history)]


def _figure(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if key == "learning_rate" else f"{value:,.4f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else str(value)


def matrix(evaluation: Evaluation) -> list[list[int]] | None:
    """Class → its examples by the class predicted; None of more classes than fit on a screen."""
    size = len(evaluation.classes)
    if size > MAX_MATRIX:
        return None
    counts = np.zeros((size, size), np.int64)
    np.add.at(counts, (evaluation.label, evaluation.predicted), 1)
    return counts.tolist()


def confusions(evaluation: Evaluation) -> tuple[int, Rows]:
    """How many pairs of classes were confused; the most frequent ones.

    A row: class, what it was taken for, how often, share of the class.
    """
    found = confusions_of(evaluation)
    totals = np.bincount(evaluation.label, minlength=len(evaluation.classes))
    rows = [
        (
            evaluation.classes[c.label],
            evaluation.classes[c.predicted],
            f"{c.times:,}",
            _meter(c.times / int(totals[c.label])),
        )
        for c in found[:MAX_CONFUSIONS]
    ]
    return len(found), rows


def classes(figures: Sequence[ClassFigures]) -> Rows:
    """Classes that have examples, the worst first: how many, recall, precision, taken for what."""
    return [
        (
            figure.name,
            f"{figure.num_examples:,}",
            _meter(figure.recall),
            _meter(figure.precision),
            # Isolated: of a name written from right to left the number would be a part.
            f"\u2068{figure.taken_for}\u2069 ({figure.num_taken:,})" if figure.taken_for else "–",
        )
        for figure in worst(list(figures), len(figures))
    ]


def _meter(share: float | None) -> Meter:
    return Meter(share or 0.0, percent(share))


def most_wrong(evaluation: Evaluation, limit: int = WRONG_PICTURES) -> list[int]:
    """Indices of wrongly classified examples, the highest loss first."""
    wrong = np.flatnonzero(evaluation.predicted != evaluation.label)
    order = np.lexsort((evaluation.record[wrong], -evaluation.losses[wrong]))
    return [int(i) for i in wrong[order][:limit]]
