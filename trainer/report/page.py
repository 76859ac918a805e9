"""Writes `report/index.html`: curves, figures and the most wrong pictures on one page."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imageshards.errors import UserError
from imageshards.manifest import BOX_FEATURES
from imageshards.page import (
    Meter,
    Rows,
    draw_boxes,
    number,
    percent,
    record_boxes,
    render,
    thumbnail,
)
from imageshards.tfrecord import RecordError
from trainer.dataset.source import RecordSource
from trainer.dataset.spec import DatasetSpec, MeanStd, ModelCard, describe_scale
from trainer.dataset.subset import Subset
from trainer.evaluation.evaluation import MAX_SHOWN, Evaluation, Share, finite
from trainer.evaluation.kinds import ClassEvaluation, ValuesEvaluation
from trainer.report.charts import Chart, Curves, line_chart, scatter_chart

if TYPE_CHECKING:
    from PIL import Image

WRONG_PICTURES = 24
THUMB_PX = 224
MAX_MATRIX = 20  # For more classes the page lists confusions in place of a matrix.
MAX_CONFUSIONS = 30


_LARGE = (
    Curves("Loss", "mean over an epoch", "loss"),
    Curves("Accuracy", "share of the examples", "accuracy", is_share=True),
    Curves("Area under precision against recall", "every label counts alike", "auc_pr", None, True),
    Curves("Mean absolute error", "over the examples", "mae"),
)
_SMALL = (
    Curves("Speed", "images per second", "images_per_second", 0),
    Curves("Waited for data", "share of the training time", "wait_fraction", 1, True),
    Curves("Learning rate", "at the end of an epoch", "learning_rate", 0),
)

# Figure of an evaluation → the tile: (heading, whether the figure is a share, remark).
_TILES = {
    "accuracy": ("Accuracy", True, ""),
    "top5_accuracy": ("Top-5 accuracy", True, ""),
    "mean_average_precision": ("Mean average precision", True, "every label counts alike"),
    "mae": ("Mean absolute error", False, ""),
    "rmse": ("RMSE", False, "root of the mean squared error"),
    "r2": ("R²", False, "1 explains all, 0 no more than the mean"),
    "loss": ("Loss", False, "mean over the examples"),
    "mean_class_accuracy": ("Mean class accuracy", True, "every class counts alike"),
}
# Columns of the table of outputs whose names need an explanation → the heading on the page.
_COLUMNS = {
    "recall": "Found (recall)",
    "precision": "Right (precision)",
    "mse": "Mean squared error",
    "mae": "Mean absolute error",
    "rmse": "RMSE",
    "r2": "R²",
}


def curves(history: Sequence[Mapping[str, float | None]]) -> tuple[list[Chart], list[Chart]]:
    """Returns large and small charts of metrics.jsonl; none for a single epoch."""
    if len(history) < 2:
        return [], []
    best = best_epoch(history)
    mark = history.index(best) if best else None
    large, small = (
        [chart for one in charts if (chart := line_chart(one, history, mark))]
        for charts in (_LARGE, _SMALL)
    )
    return large, small


def best_epoch(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the first epoch with the lowest validation loss; None without validation."""
    validated = [record for record in history if record.get("val_loss") is not None]
    return min(validated, key=lambda record: record["val_loss"], default=None)


def tiles(
    history: Sequence[Mapping[str, float | None]], evaluation: Evaluation | None
) -> list[tuple[str, str, str]]:
    """Returns the most important figures: (name, value, remark)."""
    shown: list[tuple[str, str, str]] = []
    if evaluation is not None:
        examples = f"of {evaluation.num_examples:,} examples"
        figures = evaluation.figures()
        for name, (title, is_share, remark) in _TILES.items():
            value = finite(figures.get(name))
            if value is not None:
                text = percent(value) if is_share else number(value)
                is_estimate = name == "mean_average_precision" and evaluation.estimate
                shown.append(
                    (title, text, (remark or examples) + ", estimated" * bool(is_estimate))
                )
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


def epochs(history: Sequence[Mapping[str, float | None]]) -> Rows:
    """Returns metrics.jsonl as a table, whose first row is the head."""
    keys = list(dict.fromkeys(key for record in history for key in record))
    return [keys, *([_cell(record.get(key)) for key in keys] for record in history)]


def target_fact(target: DatasetSpec | ModelCard, mean_std: MeanStd | None) -> dict[str, str]:
    """Returns the fact which figures have the unit of the target; none without a scaled target."""
    if mean_std is None:
        return {}
    scale = f"{target.label_feature}, {describe_scale(mean_std)}"
    return {"target": f"{scale}; errors are in its unit, the loss has none"}


def confusion(evaluation: ClassEvaluation) -> dict[str, Any]:
    """Returns the sections of a classification.

    Returns:
        `matrix`: the examples of each class by predicted class; None for more than `MAX_MATRIX`
        classes. `confusions`: the number of confused pairs, and rows of the most frequent pairs:
        class, predicted class, examples, share of the class.
    """
    names, size = evaluation.names, len(evaluation.names)
    found = evaluation.confusions()
    totals = np.bincount(evaluation.label, minlength=size)
    rows = [
        (names[label], names[predicted], times, Share(times / totals[label]))
        for label, predicted, times in found[:MAX_CONFUSIONS]
    ]
    matrix = None
    if size <= MAX_MATRIX:
        matrix = np.zeros((size, size), np.int64)
        # `matrix[label, predicted] += 1` would count a repeated pair once.
        np.add.at(matrix, (evaluation.label, evaluation.predicted), 1)
    return {
        "matrix": None if matrix is None else matrix.tolist(),
        "confusions": (len(found), [[_cell(cell) for cell in row] for row in rows]),
    }


def plots(evaluation: ValuesEvaluation) -> dict[str, Any]:
    """Returns `plots`: a chart of predicted against true values for each of the first outputs."""
    values = zip(
        evaluation.names[:MAX_SHOWN], evaluation.label.T, evaluation.predicted.T, strict=False
    )
    charts = [
        scatter_chart(name, "predicted (up) against true", true.tolist(), predicted.tolist())
        for name, true, predicted in values
    ]
    return {"plots": [chart for chart in charts if chart]}


def outputs(evaluation: Evaluation) -> dict[str, Any]:
    """Returns a table of single outputs: `head`, `rows`, `numeric` columns and `order` of rows."""
    order, head, rows = evaluation.table()
    # A `Share` is a float, too, but becomes a bar: so numbers are found by their exact type.
    return {
        "order": order,
        "head": [_COLUMNS.get(name, name[0].upper() + name[1:]) for name in head],
        "rows": [[_cell(cell) for cell in row] for row in rows],
        "numeric": [i for i, cell in enumerate((*rows, ())[0]) if type(cell) in (int, float)],
    }


def _cell(value: str | float | None) -> str | Meter:
    if isinstance(value, Share):
        return Meter(value, percent(value))
    if isinstance(value, str):
        return value
    return "–" if value is None or finite(value) is None else number(value)


class Source(NamedTuple):
    """A record on the page.

    Attributes:
        shard: The file name of the shard.
        number: The number of the record in the shard.
        filename: The name of the original file; "" if unknown.
        thumb: A small picture; None if it cannot be decoded.
    """

    shard: str
    number: int
    filename: str
    thumb: Image.Image | None


def page_of(
    title: str,
    facts: Mapping[str, str],
    history: Sequence[Mapping[str, float | None]],
    evaluation: Evaluation | None,
    subset: Subset | None,
    served: str = "",
) -> str:
    """Returns the page as one HTML document without outside resources.

    Args:
        title: The heading of the page.
        facts: Setting or figure → its value.
        history: The objects of metrics.jsonl; none for an evaluation without training.
        evaluation: The results; None for a run that evaluates nothing.
        subset: The records of the evaluation, from which the most wrong pictures are read.
        served: The model of a run that the page describes.
    """
    chosen: list[int] = []
    sources: Mapping[int, Source] = {}
    figures: dict[str, Any] = {"matrix": None, "confusions": None, "plots": ()}
    if evaluation is not None:
        chosen = evaluation.most_wrong()[:WRONG_PICTURES].tolist()
        if subset is not None:
            sources = look_up(subset, [int(evaluation.record[i]) for i in chosen])
        if evaluation.num_examples and isinstance(evaluation, ClassEvaluation):
            figures |= confusion(evaluation)
        elif evaluation.num_examples and isinstance(evaluation, ValuesEvaluation):
            figures |= plots(evaluation)
    return render(
        "trainer.report",
        "page.jinja",
        title=title,
        served=served,
        tiles=tiles(history, evaluation),
        curves=curves(history),
        epochs=epochs(history),
        evaluation=evaluation,
        outputs=outputs(evaluation) if evaluation else None,
        most_wrong=chosen,
        sources=sources,
        facts=list(facts.items()),
        **figures,
    )


def look_up(subset: Subset, records: Collection[int]) -> dict[int, Source]:
    """Reads records again by their numbers in the split, as in `Evaluation.record`.

    The result lacks records that cannot be read; it is empty if the index is damaged.
    """
    dataset, split = subset.dataset, subset.split
    names = [dataset.image_feature, dataset.filename_feature or "", *BOX_FEATURES]
    names = [name for name in names if name in dataset.features]
    found: dict[int, Source] = {}
    try:
        source = RecordSource(dataset, split, names)
    except UserError:
        return found
    for place in records:
        # The page says in place of the picture that it cannot be shown.
        with contextlib.suppress(OSError, RecordError):
            record = source[place]
            encoded, filename = (
                record.get(name or "", b"")
                for name in (dataset.image_feature, dataset.filename_feature)
            )
            small = thumbnail(encoded, THUMB_PX) if isinstance(encoded, bytes) else None
            shard = bisect_right(split.starts, place) - 1
            found[place] = Source(
                os.path.basename(split.paths[shard]),
                place - split.starts[shard],
                filename.decode("utf-8", "replace") if isinstance(filename, bytes) else "",
                small and draw_boxes(small, record_boxes(record)),
            )
    return found
