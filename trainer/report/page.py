"""`report/index.html`: what a run learned, and where it still errs, on one page for people."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards.errors import UserError
from imageshards.page.trainer_html import Markup, escape, page, percent, section, table, tiles
from trainer.dataset.spec import Subset
from trainer.evaluation.per_class import figures_of, mean_recall
from trainer.report import charts, sections
from trainer.report.pictures import Source, look_up

if TYPE_CHECKING:
    from trainer.evaluation.evaluator import Evaluation

PAGE_NAME = "index.html"


def write_report(
    folder: str,
    *,
    title: str,
    facts: Mapping[str, str],
    history: Sequence[Mapping[str, Any]],
    evaluation: Evaluation | None,
    subset: Subset | None,
) -> str:
    """Writes `folder`/index.html, whole or not at all; it needs no other file.

    Args:
        folder: Local; made where it is missing.
        title: Heading of the page.
        facts: What is worth knowing of the run.
        history: The objects of metrics.jsonl; empty for an evaluation without training.
        evaluation: Of the validation split; None where there is none.
        subset: What was evaluated: the most wrong pictures are read from its shards again.

    Returns:
        The page's path.

    Raises:
        UserError: The folder cannot be written.
    """
    sources: Mapping[int, Source] = {}
    chosen: list[int] = []
    if evaluation is not None:
        chosen = sections.most_wrong(evaluation)
        if subset is not None:
            sources = look_up(subset, [int(evaluation.record[i]) for i in chosen])
    text = page_of(title, facts, history, evaluation, chosen, sources)
    path = os.path.join(folder, PAGE_NAME)
    temporary = f"{path}.{os.getpid()}"
    try:
        os.makedirs(folder, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(temporary, path)
    except OSError as e:
        raise UserError(
            f"{path} cannot be written ({e.strerror or e}); expected a local folder with room "
            "where you may write, by --output or --report."
        ) from e
    return path


def page_of(
    title: str,
    facts: Mapping[str, str],
    history: Sequence[Mapping[str, Any]],
    evaluation: Evaluation | None,
    chosen: Sequence[int],
    sources: Mapping[int, Source],
) -> str:
    """The page as one HTML document without outside resources.

    Args:
        title, facts, history, evaluation: See `write_report`.
        chosen: Indices of the most wrong examples.
        sources: Their records, by number.
    """
    parts: dict[str, tuple[str, str]] = {
        "curves": ("Curves", charts.curves(history) + sections.epochs_table(history))
    }
    if evaluation is not None:
        parts["confusion"] = ("Confusion", sections.confusion_part(evaluation))
        parts["classes"] = ("Classes", sections.classes_part(figures_of(evaluation)))
        parts["wrong"] = (
            "Most wrong",
            sections.wrong_part(evaluation, chosen, sources),
        )
    rows = list(facts.items())
    parts["made"] = ("How it was made", table("", ("What", "Value"), rows) if rows else "")
    parts = {name: part for name, part in parts.items() if part[1]}
    links = "".join(f'<a href="#{name}">{escape(part[0])}</a>\n' for name, part in parts.items())
    return page(
        f"{title} – report",
        f"<header>\n<h1>{escape(title)}</h1>\n<nav>\n{links}</nav>\n",
        _tiles(history, evaluation),
        "</header>\n<main>\n",
        *(section(name, heading, content) for name, (heading, content) in parts.items()),
        "</main>\n",
    )


def _tiles(history: Sequence[Mapping[str, Any]], evaluation: Evaluation | None) -> Markup:
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
    best = charts.best_epoch(history)
    if best is not None:
        shown.append(
            ("Best epoch", str(best["epoch"]), f"of {len(history)}, loss {best['val_loss']:.4f}")
        )
    if history and history[-1].get("images_per_second"):
        waited = history[-1].get("wait_fraction")
        remark = f"waited {percent(waited)} for data" if waited is not None else ""
        shown.append(("Images per second", f"{history[-1]['images_per_second']:,.0f}", remark))
    return tiles(shown)


def _percent(value: float) -> str:
    # NaN: there is no example.
    return percent(value if value == value else None)
