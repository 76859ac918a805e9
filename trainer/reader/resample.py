"""The stage that leaves records out, or repeats those of rare classes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.dataset.spec import Subset
from trainer.reader.sources import LOOK_RECORDS, Source


def choose(records: tf.data.Dataset, source: Source, subset: Subset) -> tf.data.Dataset:
    """Keeps the records that `subset` asks for, each as often as it asks for.

    With `subset.sampling` a record of class c comes floor(max/n_c) times and, if it is among
    the first max mod n_c of its class in this pass, once more: exactly max(n_c) of every class.

    An empty record, the place of a broken one, tells no class. It is left out, and at the end
    of the pass empty ones fill up what is missing because of it: a pass keeps its length.

    Args:
        records: Elements of `source`, one pass.
        source: Looks at them.
        subset: What is asked for.
    """
    look = source.look
    if look is None:
        return records
    batches = records.batch(LOOK_RECORDS).map(lambda *e: (e, False))
    # An empty batch of its own says that the pass is over.
    nothing = tuple(tf.zeros([0], value.dtype) for value in source.filling)
    batches = batches.concatenate(tf.data.Dataset.from_tensors((nothing, True)))
    looked = batches.map(lambda e, last: (e, last, look(*e)))
    chooser = _Chooser(source, subset)
    chosen = looked.scan(chooser.start(), chooser.step)
    return chosen.unbatch().take(subset.num_records)


class _Chooser:
    """A step of `tf.data.Dataset.scan`, and the state it begins with."""

    def __init__(self, source: Source, subset: Subset) -> None:
        self._filling = source.filling
        self._num_records = subset.num_records
        self._num_classes = len(subset.classes)
        self._sampling = subset.sampling
        self._copies, self._once_more = [1] * self._num_classes, [0] * self._num_classes
        if subset.sampling and subset.class_counts:
            most = max(subset.class_counts)
            self._copies = [most // n for n in subset.class_counts]
            self._once_more = [most % n for n in subset.class_counts]

    def start(self) -> Any:
        """Nothing read, no empty record met, no record of any class met."""
        zero = tf.constant(0, tf.int64)
        return zero, zero, tf.zeros([self._num_classes], tf.int64)

    def step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        emitted, empty, met = state
        elements, last, (classes, keep, present) = batch
        times, met = self._times(classes, keep, met)
        places = tf.repeat(tf.range(tf.size(times)), times)
        emitted += tf.size(places, tf.int64)
        empty += tf.math.count_nonzero(~present)
        missing = tf.minimum(self._num_records - emitted, empty * (max(self._copies) + 1))
        missing = tf.where(last, tf.maximum(missing, 0), 0)
        chosen = tuple(
            tf.concat([tf.gather(values, places), tf.repeat(one, missing)], 0)
            for values, one in zip(elements, self._filling, strict=True)
        )
        return (emitted, empty, met), chosen

    def _times(self, classes: Any, keep: Any, met: Any) -> tuple[Any, Any]:
        """How often each record of a batch is read, and how many of each class were met."""
        once = tf.cast(keep, tf.int64)
        if not self._sampling:
            return once, met
        one_hot = tf.one_hot(tf.where(keep, classes, -1), self._num_classes, dtype=tf.int64)
        before = met + tf.cumsum(one_hot, exclusive=True)
        first = before < tf.constant(self._once_more, tf.int64)
        times = one_hot * (tf.constant(self._copies, tf.int64) + tf.cast(first, tf.int64))
        return tf.reduce_sum(times, 1), met + tf.reduce_sum(one_hot, 0)
