"""`report/index.html`: curves, confusions, classes and the most wrong pictures on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import PAGE_NAME
from imageshards.page import render
from trainer.dataset.spec import Subset
from trainer.evaluation.per_class import figures_of
from trainer.report import sections
from trainer.report.pictures import Source, look_up

if TYPE_CHECKING:
    from trainer.evaluation.evaluator import Evaluation


def write_report(
    folder: str,
    *,
    title: str,
    facts: Mapping[str, str],
    history: Sequence[Mapping[str, Any]],
    evaluation: Evaluation | None,
    subset: Subset | None,
) -> str:
    """Writes `folder`/index.html, whole or not at all; it needs no other file. Returns its path.

    `history` has the objects of metrics.jsonl, none for an evaluation without training. The most
    wrong pictures of `evaluation` are read again from the shards of `subset`.

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
    chosen: Sequence[int],
    sources: Mapping[int, Source],
) -> str:
    """The page as one HTML document without outside resources.

    `chosen` are the indices of the most wrong examples, `sources` their records by number.
    """
    return render(
        "trainer.report",
        "page.jinja",
        title=title,
        tiles=sections.tiles(history, evaluation),
        curves=sections.curves(history),
        epochs=sections.epochs(history),
        evaluation=evaluation,
        matrix=sections.matrix(evaluation) if evaluation else None,
        confusions=sections.confusions(evaluation) if evaluation else None,
        classes=sections.classes(figures_of(evaluation)) if evaluation else (),
        most_wrong=chosen,
        sources=sources,
        facts=list(facts.items()),
    )
