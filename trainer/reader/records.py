"""The serialized records of a host's part of every batch: `tf.data` interleaves the plan's streams.

One call of Python reads a row, the records of a piece that a stream takes: about 40.
"""

from __future__ import annotations

import secrets
import weakref

import numpy as np
import tensorflow as tf

from trainer.dataset.spec import WHOLE, ReplicaSlices
from trainer.reader.plan import Array, Order
from trainer.reader.read_ahead import OnDamage, RowReader, Source


def record_batches(
    order: Order,
    source: Source,
    batch_size: int,
    slices: ReplicaSlices = WHOLE,
    start_step: int = 0,
    on_damage: OnDamage | None = None,
) -> tf.data.Dataset:
    """(serialized string [share], record number within the split int64 [share]) of each part.

    Args:
        order: Which record is at which position.
        source: Reads the pieces.
        batch_size: Global batch.
        slices: Which parts of each batch are made, one after the other.
        start_step: Batches that were read before.
        on_damage: Called with each damaged record before its batch is made, in which the record is
            an empty one; None to raise the `RecordError`.

    Returns:
        A dataset without end, or with an order of one epoch all parts of the pass. There the last
        batch is filled up with empty records of the number -1, or is a short one where a batch is
        made in one slice.
    """
    of_host, deal = batch_size // slices.hosts, order.deal
    share, period = of_host // slices.replicas, deal.period // batch_size
    begin = slices.host * of_host
    turns = deal.turns_within(begin, begin + of_host, batch_size)
    reader = RowReader(order, source, turns, start_step // period, on_damage)
    sizes = tf.constant([len(places) for places in turns.values()], tf.int64)
    num_rows = tf.constant(reader.num_rows, tf.int64)
    # A random number: no other process has a reader of it.
    number = secrets.randbits(62)
    _readers[number] = reader

    def turns_of(stream: tf.Tensor) -> tf.data.Dataset:
        rows = tf.data.Dataset.range(num_rows[stream])
        return rows.map(lambda row: _read_piece(number, stream, row)).rebatch(sizes[stream])

    # One element is one turn of a stream.
    records = tf.data.Dataset.range(len(turns)).interleave(
        turns_of, cycle_length=len(turns), block_length=1
    )
    is_cut, num_parts = False, None
    if order.epochs is not None:
        is_cut = slices == WHOLE and order.num_records % batch_size > 0
        steps = -(-order.num_records // batch_size)
        rest = order.num_records - (steps - 1) * batch_size
        missing = of_host - min(of_host, max(0, rest - begin))
        num_parts = max(0, steps - start_step) * slices.replicas
        if missing and not is_cut:
            filling = tf.fill([missing], b""), tf.fill([missing], np.int64(-1))
            records = records.concatenate(tf.data.Dataset.from_tensors(filling))
    # A period may be several batches: those before the first one are dropped.
    parts = records.rebatch(share, drop_remainder=not is_cut)
    parts = parts.skip(start_step % period * slices.replicas)
    cardinality = tf.data.INFINITE_CARDINALITY if num_parts is None else num_parts
    parts = parts.apply(tf.data.experimental.assert_cardinality(cardinality))
    # Whatever is made of this dataset holds it, and each iterator holds what it iterates.
    parts.reader = reader
    return parts


# TensorFlow keeps every function that `numpy_function` is given, and all that belongs to it, for
# ever. So it is given a function of this module and a number; the dataset alone keeps the reader.
_readers: weakref.WeakValueDictionary[int, RowReader] = weakref.WeakValueDictionary()


def _read_piece(reader: int, stream: tf.Tensor, row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    kinds = [tf.string, tf.int64]
    records, numbers = tf.numpy_function(
        _read, [tf.constant(reader, tf.int64), stream, row], kinds, stateful=False
    )
    return tf.ensure_shape(records, [None]), tf.ensure_shape(numbers, [None])


def _read(reader: Array, stream: Array, row: Array) -> tuple[Array, Array]:
    return _readers[int(reader)].read(int(stream), int(row))
