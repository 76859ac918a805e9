"""Any number of labels: of each of them its average precision, and how often it is found."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from imageshards.page import percent
from trainer.evaluation.evaluation import (
    MAX_SHOWN,
    Collector,
    Concatenate,
    Evaluation,
    Share,
    Table,
    finite,
    isolated,
    mean,
    share,
)

# Up to so many logits (records x labels) are kept, 4 bytes each, and a byte for the label. Of more
# logits those of each label are counted by their size, in bins from `-_RANGE` to `_RANGE`. All
# counters together, two for each bin, are no more than this number either.
MAX_LOGITS = 32 * 1024**2
_MAX_BINS = 512
_RANGE = 16


class LabelsCollector(Collector):
    """Counts of each label how many examples have it, and how often it is predicted; collects what
    its average precision is computed from.
    """

    def __init__(self, kind: type[Evaluation], names: tuple[str, ...], num_records: int) -> None:
        super().__init__(kind, names, num_records)
        num_labels = len(self._names)
        self._counts = np.zeros((3, num_labels), np.int64)
        bins = 0
        if self._num_records * num_labels > MAX_LOGITS:
            bins = max(2, min(_MAX_BINS, MAX_LOGITS // (2 * num_labels)))
        self._binned = np.zeros((2, num_labels, bins), np.int32)

    def _kept(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        has, logits = rows["label"], rows["logits"]
        predicted = logits >= 0
        self._counts += [np.sum(one, 0) for one in (has, predicted, has & predicted)]
        if not self._binned.size:
            return rows
        num_labels, bins = self._binned.shape[1:]
        bin_of = (np.nan_to_num(logits, nan=-_RANGE) + _RANGE) * (bins / (2 * _RANGE))
        place = np.clip(bin_of, 0, bins - 1).astype(np.int64) + np.arange(num_labels) * bins
        every, relevant = self._binned.reshape(2, -1)
        # Within one example no place comes twice, so that a sum by index counts each of them.
        for own, one in zip(place, has, strict=True):
            every[own] += 1
            relevant[own[one]] += 1
        return {name: rows[name] for name in rows if name not in ("label", "logits")}

    def _sums(self, concatenate: Concatenate) -> dict[str, np.ndarray]:
        mine = {"counts": self._counts, "binned": self._binned}
        return concatenate("labels", mine, lambda parts: functools.reduce(np.add, parts))


@dataclasses.dataclass(frozen=True)
class LabelsEvaluation(Evaluation):
    """Of logits for labels of which an example may have any number.

    Attributes:
        wrong: bool [examples], whether any label is predicted wrongly.
        shown: int32 [examples, 2, k], of the labels that an example has, and of those predicted,
            the most probable ones; -1 where there are fewer.
        shown_logits: float32, theirs.
        counts: int64 [3, labels], how many examples have a label, are predicted to have it, both.
        binned: int32 [2, labels, bins], how many logits of all examples, and of those that have
            the label, are in each bin, the lowest first; no bins where all logits are kept.
        label: bool [examples, labels]; None where logits are counted in bins.
        logits: float32 [examples, labels], or None; a label is predicted where it is not negative.
    """

    collector = LabelsCollector
    wrong: np.ndarray
    shown: np.ndarray
    shown_logits: np.ndarray
    counts: np.ndarray
    binned: np.ndarray
    label: np.ndarray | None = None
    logits: np.ndarray | None = None

    @staticmethod
    def measure(outputs: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
        """Of logits, and 1 for each label that an example has, float32 [b, labels]."""
        has, predicted = label > 0.5, outputs >= 0
        both = tf.stack([has, predicted], 1)
        # One more than is shown, to know whether there are more.
        found = tf.where(both, outputs[:, tf.newaxis], -math.inf)
        logits, ids = tf.math.top_k(found, min(MAX_SHOWN + 1, outputs.shape[-1]))
        return {
            "label": has,
            "logits": outputs,
            "wrong": tf.reduce_any(tf.not_equal(has, predicted), 1),
            "shown": tf.where(tf.gather(both, ids, batch_dims=2), ids, -1),
            "shown_logits": logits,
        }

    @staticmethod
    def renumbered(label: tf.Tensor, ids: Sequence[int], num_outputs: int) -> tf.Tensor:
        """0 for labels that the data does not know."""
        return tf.matmul(label, tf.one_hot(ids, num_outputs))

    @property
    def estimate(self) -> str | None:
        """Of average precisions, where there are too many logits to keep."""
        if not (bins := self.binned.shape[2]):
            return None
        count, num_labels = self.num_examples + self.left_out, len(self.names)
        return (
            "Average precisions are estimates, of logits rounded down to multiples of "
            f"{2 * _RANGE / bins:g}: {count:,} records of {num_labels:,} labels have more than "
            f"{MAX_LOGITS:,} logits."
        )

    def figures(self) -> dict[str, float]:
        """The mean is that over the labels that an example has."""
        found = [one for one in self._average_precisions if not math.isnan(one)]
        return self.epoch_figures() | {"mean_average_precision": mean(found)}

    def table(self) -> Table:
        """The lowest average precision first, last the labels that no example has."""
        rows = []
        for name, average, own in zip(
            self.names, self._average_precisions, self.counts.T.tolist(), strict=True
        ):
            shares = [share(own[2], count) for count in own[:2]]
            known = None if finite(average) is None else Share(average)
            rows.append((name, *own, known, *shares))
        rows.sort(key=lambda row: math.inf if row[4] is None else row[4])
        head = ("label", "examples", "predicted", "right")
        return Table("worst", (*head, "average precision", "recall", "precision"), rows)

    def described(self, i: int) -> tuple[str, str]:
        """Labels with their probabilities, the most probable ones first, six at most."""
        shares = np.exp(-np.logaddexp(0, -self.shown_logits[i].astype(np.float64)))
        own, said = (
            [f"{isolated(self.names[k])} ({percent(float(p))})" for k, p in pairs if k >= 0]
            for pairs in map(zip, self.shown[i], shares)
        )
        return _listed(own), _listed(said)

    def most_wrong(self) -> np.ndarray:
        """Of examples with a mistake only."""
        order = super().most_wrong()
        return order[self.wrong[order]]

    @functools.cached_property
    def _average_precisions(self) -> list[float]:
        if self.label is None or self.logits is None:
            every, relevant = self.binned[..., ::-1]
            return [_average(*one) for one in zip(relevant, every, strict=True)]
        return [average_precision(*one) for one in zip(self.label.T, self.logits.T, strict=True)]


def _listed(names: list[str]) -> str:
    return ", ".join([*names[:MAX_SHOWN], *["…"] * (len(names) > MAX_SHOWN)]) or "without label"


def average_precision(relevant: np.ndarray, score: np.ndarray) -> float:
    """The precision at the threshold that finds a relevant example, averaged over all of them.

    That is Σ (Rₙ - Rₙ₋₁) Pₙ over the thresholds, highest first, with recall R and precision P;
    equal scores, float [n], are one threshold. NaN where nothing is `relevant`, bool [n].
    """
    if not len(score):
        return math.nan
    order = np.argsort(-score, kind="stable")
    ranked, hits = score[order], np.cumsum(relevant[order])
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    return _average(np.diff(hits[ends], prepend=0), np.diff(ends, prepend=-1))


def _average(relevant: np.ndarray, every: np.ndarray) -> float:
    """The average precision of how many examples each threshold adds, the highest one first."""
    hits, found = np.cumsum(relevant), np.cumsum(every)
    if not hits[-1]:
        return math.nan
    return float(np.sum(relevant * (hits / np.maximum(found, 1))) / hits[-1])
