"""The figures of single classes: recall, precision, the most frequent confusions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from trainer.evaluation.evaluator import Evaluation


class ClassFigures(NamedTuple):
    """One class: its examples, those predicted as it, and both; the other class that its examples
    were most often `taken_for`, if any, and how often.
    """

    name: str
    num_examples: int
    num_predicted: int
    num_right: int
    taken_for: str | None
    num_taken: int

    @property
    def recall(self) -> float | None:
        """Share of its examples that were predicted as it; None where it has none."""
        return self.num_right / self.num_examples if self.num_examples else None

    @property
    def precision(self) -> float | None:
        """Share of the examples predicted as it that are; None where there are none."""
        return self.num_right / self.num_predicted if self.num_predicted else None


class Confusion(NamedTuple):
    """How many examples of one class, by id, were predicted as another."""

    label: int
    predicted: int
    times: int


def figures_of(evaluation: Evaluation) -> list[ClassFigures]:
    """Every class of the model, in the order of its outputs."""
    size = len(evaluation.classes)
    examples = np.bincount(evaluation.label, minlength=size)
    predicted = np.bincount(evaluation.predicted, minlength=size)
    right = np.bincount(evaluation.label[evaluation.label == evaluation.predicted], minlength=size)
    taken: dict[int, Confusion] = {}
    for confusion in confusions_of(evaluation):
        taken.setdefault(confusion.label, confusion)
    return [
        ClassFigures(
            name,
            int(examples[i]),
            int(predicted[i]),
            int(right[i]),
            evaluation.classes[taken[i].predicted] if i in taken else None,
            taken[i].times if i in taken else 0,
        )
        for i, name in enumerate(evaluation.classes)
    ]


def confusions_of(evaluation: Evaluation) -> list[Confusion]:
    """Every pair of classes that was confused, the most frequent first.

    Counted without the matrix, which grows with the square of the number of classes.
    """
    wrong = evaluation.label != evaluation.predicted
    pairs, counts = np.unique(
        np.stack([evaluation.label[wrong], evaluation.predicted[wrong]]), axis=1, return_counts=True
    )
    order = np.lexsort((pairs[1], pairs[0], -counts))
    return [Confusion(int(pairs[0, i]), int(pairs[1, i]), int(counts[i])) for i in order]


def mean_recall(figures: list[ClassFigures]) -> float | None:
    """The mean over the classes that have examples: a rare one counts like a frequent one."""
    recalls = [figure.recall for figure in figures if figure.recall is not None]
    return sum(recalls) / len(recalls) if recalls else None


def worst(figures: list[ClassFigures], limit: int) -> list[ClassFigures]:
    """The classes with the lowest recall, the larger one first where it is equal."""
    present = [figure for figure in figures if figure.num_examples]
    return sorted(present, key=lambda f: (f.recall, -f.num_examples, f.name))[:limit]


def finite(value: float | None) -> float | None:
    """The value, or None where it is NaN or infinite, which JSON has no number for."""
    return float(value) if value is not None and math.isfinite(value) else None
