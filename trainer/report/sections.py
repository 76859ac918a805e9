"""Parts of the report's page: what was confused, how classes fare, what went most wrong."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imageshards.page.trainer_html import (
    Markup,
    bar,
    data_uri,
    details,
    escape,
    paragraph,
    percent,
    table,
)
from trainer.evaluation.per_class import ClassFigures, confusions_of, worst
from trainer.report.pictures import Source

if TYPE_CHECKING:
    from trainer.evaluation.evaluator import Evaluation

# A matrix of more classes does not fit on a screen.
MAX_MATRIX = 20
# A picture of the matrix has a pixel per pair; beyond this nobody sees one.
MAX_HEAT = 1000
MAX_CONFUSIONS = 30
MAX_CLASSES = 40
MAX_ALL_CLASSES = 2000
WRONG_PICTURES = 24


def confusion_part(evaluation: Evaluation) -> Markup:
    """Who is taken for whom: all of it for a few classes, else what happens most often."""
    if not evaluation.num_examples:
        return Markup("")
    if len(evaluation.classes) <= MAX_MATRIX:
        return _matrix(evaluation)
    parts = [_heat(evaluation)] if len(evaluation.classes) <= MAX_HEAT else []
    return Markup("".join([*parts, _top_confusions(evaluation)]))


def classes_part(figures: Sequence[ClassFigures]) -> Markup:
    """Recall and precision of every class, the worst first."""
    present = worst(list(figures), len(figures))
    if not present:
        return Markup("")
    absent = len(figures) - len(present)
    note = paragraph(f"{absent} classes have no example here.") if absent else ""
    if len(present) <= MAX_CLASSES:
        return Markup(note + _class_table("Worst first", present))
    shown = _class_table(f"The {MAX_CLASSES} worst of {len(present):,}", present[:MAX_CLASSES])
    rest = present[MAX_CLASSES:MAX_ALL_CLASSES]
    what = f"{len(rest):,} more"
    if len(present) > MAX_ALL_CLASSES:
        what += f" (the {len(present) - MAX_ALL_CLASSES:,} best are not listed)"
    return Markup(note + shown + details(what, _class_table("Worst first", rest)))


def most_wrong(evaluation: Evaluation, limit: int = WRONG_PICTURES) -> list[int]:
    """Indices of wrongly classified examples, the highest loss first."""
    wrong = np.flatnonzero(evaluation.predicted != evaluation.label)
    order = np.lexsort((evaluation.record[wrong], -evaluation.losses[wrong]))
    return [int(i) for i in wrong[order][:limit]]


def wrong_part(
    evaluation: Evaluation, chosen: Sequence[int], sources: Mapping[int, Source]
) -> Markup:
    """The most wrong pictures, each with its source file."""
    if not chosen:
        return paragraph("No example was classified wrongly.")
    wrong = int(np.sum(evaluation.predicted != evaluation.label))
    first = paragraph(
        f"{len(chosen)} of {wrong:,} wrongly classified examples, those with the lowest "
        "probability of their own class. Some of them may be labelled wrongly."
    )
    items = "\n".join(_wrong_item(evaluation, i, sources) for i in chosen)
    return Markup(f'{first}<ul class="wrong">\n{items}\n</ul>\n')


def epochs_table(history: Sequence[Mapping[str, Any]]) -> Markup:
    """metrics.jsonl as a table."""
    if not history:
        return Markup("")
    keys = list(dict.fromkeys(key for record in history for key in record))
    rows = [[_figure(key, record.get(key)) for key in keys] for record in history]
    shown = table("As in metrics.jsonl", keys, rows, numeric=range(1, len(keys)))
    return details("Every epoch in figures", shown)


def _matrix(evaluation: Evaluation) -> Markup:
    names, matrix = evaluation.classes, evaluation.confusion
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = []
    for i, name in enumerate(names):
        total = int(matrix[i].sum())
        cells = "".join(_cell(names, i, j, int(matrix[i, j]), total) for j in range(len(names)))
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    body = "\n".join(rows)
    return Markup(
        '<div class="wide"><table class="matrix"><caption>Rows: the class of the example. '
        "Columns: the class predicted. Colour: share of the row.</caption>\n"
        f"<thead><tr><td></td>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _cell(names: Sequence[str], i: int, j: int, count: int, total: int) -> str:
    share = count / total if total else 0.0
    kind = " ".join(
        word
        for word, holds in (("right", i == j), ("full", share > 0.6), ("none", not count))
        if holds
    )
    what = f"{names[i]} said to be {names[j]}: {count} of {total}, {percent(share)}"
    return f'<td class="{kind}" style="--share:{share:.3f}" title="{escape(what)}">{count:,}</td>'


def _heat(evaluation: Evaluation) -> Markup:
    """The whole matrix as a picture: blocks and stripes are seen at once."""
    from PIL import Image

    matrix = evaluation.confusion
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    size = len(evaluation.classes)
    pixels = np.zeros((size, size, 4), np.uint8)
    pixels[..., :3] = (180, 84, 26)
    pixels[np.arange(size), np.arange(size), :3] = (47, 111, 143)
    # The root lifts what is rare: a single mistake must be visible.
    pixels[..., 3] = np.round(255 * np.sqrt(shares))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return Markup(
        paragraph(
            f"All {size:,} classes, one pixel per pair: rows are the classes of the examples, "
            "columns the classes predicted, in the order of the class ids; the diagonal is right."
        )
        + f'<img class="heat" alt="confusion matrix" src="{data_uri(buffer.getvalue(), "png")}">\n'
    )


def _top_confusions(evaluation: Evaluation) -> Markup:
    confusions = confusions_of(evaluation)
    totals = np.bincount(evaluation.label, minlength=len(evaluation.classes))
    rows = [
        (
            evaluation.classes[c.label],
            evaluation.classes[c.predicted],
            f"{c.times:,}",
            bar(c.times / int(totals[c.label])),
        )
        for c in confusions[:MAX_CONFUSIONS]
    ]
    if not rows:
        return paragraph("No example was classified wrongly.")
    return table(
        f"The most frequent of {len(confusions):,} confusions",
        ("Class", "Taken for", "Examples", "Share of the class"),
        rows,
        numeric=(2,),
    )


def _class_table(caption: str, figures: Sequence[ClassFigures]) -> Markup:
    rows = [
        (
            figure.name,
            f"{figure.num_examples:,}",
            bar(figure.recall),
            bar(figure.precision),
            f"{figure.taken_for} ({figure.num_taken:,})" if figure.taken_for else "–",
        )
        for figure in figures
    ]
    head = ("Class", "Examples", "Found (recall)", "Right (precision)", "Most often taken for")
    return table(caption, head, rows, numeric=(1,))


def _wrong_item(evaluation: Evaluation, i: int, sources: Mapping[int, Source]) -> str:
    label = evaluation.classes[int(evaluation.label[i])]
    predicted = evaluation.classes[int(evaluation.predicted[i])]
    record = int(evaluation.record[i])
    source = sources.get(record)
    if source is None or source.thumb is None:
        picture = '<div class="absent">The picture cannot be shown.</div>'
    else:
        picture = f'<img alt="{escape(label)}" src="{data_uri(source.thumb, "jpeg")}">'
    lines = [f"record {record}"]
    if source is not None:
        lines = [f"{source.shard}, record {source.number}"]
        lines += [f"{name}: {text}" for name, text in source.texts.items()]
    said = percent(float(evaluation.probability_of_prediction[i]))
    own = percent(float(evaluation.probability_of_label[i]))
    return (
        f"<li>{picture}<div><strong>{escape(source.filename or 'unnamed') if source else ''}"
        f"</strong>is {escape(label)} ({own})<br><em>said to be {escape(predicted)} ({said})</em>"
        + "".join(f"<span>{escape(line)}</span>" for line in lines)
        + "</div></li>"
    )


def _figure(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if key == "learning_rate" else f"{value:,.4f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else str(value)
