"""Writes `report/index.html`: curves, figures and the most wrong pictures on one page."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.manifest import BOX_FEATURES, PAGE_NAME
from imageshards.page import draw_boxes, record_boxes, render, thumbnail
from imageshards.tfrecord import RecordError
from trainer.dataset.source import RecordSource
from trainer.dataset.spec import Subset
from trainer.evaluation.classes import ClassEvaluation
from trainer.evaluation.evaluation import Evaluation
from trainer.evaluation.values import ValuesEvaluation
from trainer.report import sections

if TYPE_CHECKING:
    from PIL import Image

WRONG_PICTURES = 24
THUMB_PX = 224


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


# Kind of evaluation → the function that computes its own sections.
_OF_KIND: Mapping[type[Evaluation], Callable[[Any], dict[str, Any]]] = {
    ClassEvaluation: sections.confusion,
    ValuesEvaluation: sections.plots,
}


def write_report(
    folder: str,
    *,
    title: str,
    facts: Mapping[str, str],
    history: Sequence[Mapping[str, float | None]],
    evaluation: Evaluation | None,
    subset: Subset | None,
    served: str = "",
) -> str:
    """Writes `folder`/index.html, whole or not at all, and returns its path.

    Args:
        folder: The folder, local or in a store.
        title: The heading of the page.
        facts: Setting or figure → its value.
        history: The objects of metrics.jsonl; none for an evaluation without training.
        evaluation: The results; None for a run that evaluates nothing.
        subset: The records of the evaluation, from which the most wrong pictures are read.
        served: The model of a run that the page describes.

    Raises:
        UserError: The folder cannot be written.
    """
    text = page_of(title, facts, history, evaluation, subset, served)
    path = storage.join(folder, PAGE_NAME)
    try:
        storage.write(path, text)
    except OSError as e:
        raise UserError(
            f"{path} cannot be written ({e.strerror or e})",
            expected="a writable folder with free space, by "
            + Arg("output")
            + " or "
            + Arg("report"),
        ) from e
    return path


def page_of(
    title: str,
    facts: Mapping[str, str],
    history: Sequence[Mapping[str, float | None]],
    evaluation: Evaluation | None,
    subset: Subset | None,
    served: str = "",
) -> str:
    """Returns the page as one HTML document without outside resources."""
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
    for number in records:
        # The page says in place of the picture that it cannot be shown.
        with contextlib.suppress(OSError, RecordError):
            record = source[number]
            encoded, filename = (
                record.get(name or "", b"")
                for name in (dataset.image_feature, dataset.filename_feature)
            )
            small = thumbnail(encoded, THUMB_PX) if isinstance(encoded, bytes) else None
            shard = bisect_right(split.starts, number) - 1
            found[number] = Source(
                os.path.basename(split.shards[shard].path),
                number - split.starts[shard],
                filename.decode("utf-8", "replace") if isinstance(filename, bytes) else "",
                small and draw_boxes(small, record_boxes(record)),
            )
    return found
