"""Reads the serialized records of a host's part of every batch; `tf.data` interleaves the streams.

One call into Python reads a row: the records of a piece that a stream takes, about 40.
"""

from __future__ import annotations

import secrets
import weakref

import numpy as np
import tensorflow as tf

from trainer.dataset.batch import WHOLE, ReplicaSlices
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
    """Returns a dataset of (serialized string [share], record number int64 [share]), parts of
    batches.

    Args:
        order: The order of the records.
        source: Reads the pieces.
        batch_size: Records of a global batch.
        slices: The parts of each batch to return, in order.
        start_step: Number of batches to skip.
        on_damage: Called with each damaged record before its batch is returned with an empty record
            in its place; None to raise the `RecordError`.

    Returns:
        A dataset of known cardinality; numbers count within the split. If an order has one epoch,
        its last batch is short, or in slices filled with empty records of number -1.
    """
    of_host, deal = batch_size // slices.hosts, order.deal
    share, period = of_host // slices.replicas, deal.period // batch_size
    begin = slices.host * of_host
    turns = deal.turns_within(begin, begin + of_host, batch_size)
    reader = RowReader(order, source, turns, start_step // period, on_damage)
    sizes = tf.constant([len(places) for places in turns.values()], tf.int64)
    num_rows = tf.constant(reader.num_rows, tf.int64)
    # A random number cannot name a reader of another process, should a graph get there.
    number = secrets.randbits(62)
    _readers[number] = reader

    def turns_of(stream: tf.Tensor) -> tf.data.Dataset:
        rows = tf.data.Dataset.range(num_rows[stream])
        return rows.map(lambda row: _read_piece(number, stream, row)).rebatch(sizes[stream])

    # An element of `turns_of` is one turn of a stream; `interleave` takes them in the plan's order.
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
    # A period may have several batches, so parts of batches before `start_step` are dropped.
    parts = records.rebatch(share, drop_remainder=not is_cut)
    parts = parts.skip(start_step % period * slices.replicas)
    cardinality = tf.data.INFINITE_CARDINALITY if num_parts is None else num_parts
    parts = parts.apply(tf.data.experimental.assert_cardinality(cardinality))
    # Derived datasets hold this dataset, and iterators hold their datasets, so the reader lives as
    # long as anything can call it.
    parts.reader = reader
    return parts


# TensorFlow keeps every function given to `numpy_function`, with all of its references, until the
# process ends. It therefore gets a function of this module and a number; the dataset alone keeps
# the reader.
_readers: weakref.WeakValueDictionary[int, RowReader] = weakref.WeakValueDictionary()


def _read_piece(reader: int, stream: tf.Tensor, row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    kinds = [tf.string, tf.int64]
    records, numbers = tf.numpy_function(
        _read, [tf.constant(reader, tf.int64), stream, row], kinds, stateful=False
    )
    return tf.ensure_shape(records, [None]), tf.ensure_shape(numbers, [None])


def _read(reader: Array, stream: Array, row: Array) -> tuple[Array, Array]:
    return _readers[int(reader)].read(int(stream), int(row))
