"""The figures in the sections of the report: epochs, confusions, classes, wrong pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imageshards.page import Meter, Rows, percent
from trainer.evaluation.per_class import (
    ClassFigures,
    confusions_of,
    figures_of,
    mean_recall,
    worst,
)
from trainer.report.charts import best_epoch

if TYPE_CHECKING:
    from PIL import Image

    from trainer.evaluation.evaluator import Evaluation

# A matrix of more classes does not fit on a screen.
MAX_MATRIX = 20
# A picture of the matrix has a pixel per pair; with more classes none could be seen.
MAX_HEAT = 1000
MAX_CONFUSIONS = 30
WRONG_PICTURES = 24

# The page's --warn and --bar: a picture knows no CSS.
_WRONG, _RIGHT = (180, 84, 26), (47, 111, 143)


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
    """Examples by class (row) and predicted class (column); None for more than `MAX_MATRIX`."""
    return evaluation.confusion.tolist() if len(evaluation.classes) <= MAX_MATRIX else None


def heat(evaluation: Evaluation) -> Image.Image | None:
    """The confusion matrix as a picture, where there are too many classes for a table."""
    from PIL import Image

    if not MAX_MATRIX < len(evaluation.classes) <= MAX_HEAT:
        return None
    matrix = evaluation.confusion
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    right = np.eye(len(matrix), dtype=bool)[..., None]
    pixels = np.empty((*matrix.shape, 4), np.uint8)
    pixels[..., :3] = np.where(right, _RIGHT, _WRONG)
    # The square root makes rare confusions visible, too.
    pixels[..., 3] = np.round(255 * np.sqrt(shares))
    return Image.fromarray(pixels)


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
            f"{figure.taken_for} ({figure.num_taken:,})" if figure.taken_for else "–",
        )
        for figure in worst(list(figures), len(figures))
    ]


def _meter(share: float | None) -> Meter | str:
    return "–" if share is None else Meter(share, percent(share))


def most_wrong(evaluation: Evaluation, limit: int = WRONG_PICTURES) -> list[int]:
    """Indices of wrongly classified examples, the highest loss first."""
    wrong = np.flatnonzero(evaluation.predicted != evaluation.label)
    order = np.lexsort((evaluation.record[wrong], -evaluation.losses[wrong]))
    return [int(i) for i in wrong[order][:limit]]
