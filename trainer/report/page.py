"""`report/index.html`: curves, figures and the most wrong pictures on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import PAGE_NAME
from imageshards.page import render
from trainer.dataset.spec import Subset
from trainer.evaluation.classes import ClassEvaluation
from trainer.evaluation.evaluation import Evaluation
from trainer.evaluation.values import ValuesEvaluation
from trainer.report import sections
from trainer.report.pictures import Source, look_up

WRONG_PICTURES = 24

# What else is shown of a kind of target.
_OF_KIND: Mapping[type[Evaluation], Callable[[Any], dict[str, Any]]] = {
    ClassEvaluation: sections.confusion,
    ValuesEvaluation: sections.plots,
}


def write_report(
    folder: str,
    *,
    title: str,
    facts: Mapping[str, str],
    history: Sequence[Mapping[str, Any]],
    evaluation: Evaluation | None,
    subset: Subset | None,
    served: str = "",
) -> str:
    """Writes `folder`/index.html, whole or not at all; it needs no other file. Returns its path.

    `history` has the objects of metrics.jsonl, none for an evaluation without training. The most
    wrong pictures of `evaluation` are read again from the shards of `subset`. `served` names the
    model of a run that the page describes.

    Raises:
        UserError: The folder cannot be written.
    """
    text = page_of(title, facts, history, evaluation, subset, served)
    path = storage.join(folder, PAGE_NAME)
    try:
        storage.write(path, text)
    except OSError as e:
        raise UserError(
            f"{path} cannot be written ({e.strerror or e}); expected a folder with room "
            "where you may write, by --output or --report."
        ) from e
    return path


def page_of(
    title: str,
    facts: Mapping[str, str],
    history: Sequence[Mapping[str, Any]],
    evaluation: Evaluation | None,
    subset: Subset | None,
    served: str = "",
) -> str:
    """The page as one HTML document without outside resources."""
    chosen: list[int] = []
    sources: Mapping[int, Source] = {}
    figures: dict[str, Any] = {"matrix": None, "confusions": None, "plots": ()}
    if evaluation is not None:
        chosen = evaluation.most_wrong()[:WRONG_PICTURES].tolist()
        if subset is not None:
            sources = look_up(subset, [int(evaluation.record[i]) for i in chosen])
        if evaluation.num_examples and (own := _OF_KIND.get(type(evaluation))):
            figures |= own(evaluation)
    return render(
        "trainer.report",
        "page.jinja",
        title=title,
        served=served,
        tiles=sections.tiles(history, evaluation),
        curves=sections.curves(history),
        epochs=sections.epochs(history),
        evaluation=evaluation,
        outputs=sections.outputs(evaluation) if evaluation else None,
        most_wrong=chosen,
        sources=sources,
        facts=list(facts.items()),
        **figures,
    )
