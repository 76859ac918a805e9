"""Reads shards into batches, for training or for evaluation.

The order of the stages has these reasons:

- The plan (`trainer.reader.plan`) orders all records before any byte is read, so a resumed run can
  seek.
- `interleave` follows the plan and takes one turn of each stream after the other. Streams carry
  numbers alone; the records of a part of a batch are read together (`trainer.reader.records`).
- Records arrive in batches: one `parse_example` per batch costs a third of one call per record.
- Batches are numbered before anything random happens. Augmentation depends on (seed, position), and
  therefore not on threads, replicas or restarts.
- One map over batches parses, decodes and augments on all threads. These steps take most of the
  time, and one function per batch needs the fewest calls and copies.
- Changes that need whole batches with labels come last: class weights, and MixUp on the host.
- A fixed number of batches is prefetched. Pictures stay uint8, a quarter of the bytes of float32;
  the model's first layer scales them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from imageshards.images.encode import tune_allocator
from imageshards.tfrecord import RecordError
from trainer.augment.boxes import View, box_finisher, move_boxes
from trainer.augment.decode import DECODED_AT_ONCE, Pictures, batch_pictures
from trainer.augment.user_function import mapped
from trainer.dataset.batch import WHOLE, Batch, ReplicaSlices
from trainer.dataset.parse import Parsed, batch_parser
from trainer.dataset.spec import IMAGE_INPUT, ModelInputs, ReadOptions
from trainer.dataset.subset import Subset, model_labels
from trainer.reader.broken_records import BrokenRecords
from trainer.reader.order import evaluation_order, without_copies
from trainer.reader.pieces import PieceReader
from trainer.reader.pixel_cache import decode_once
from trainer.reader.plan import Order
from trainer.reader.read_ahead import HeldPieces
from trainer.reader.records import OnDamage, record_batches

if TYPE_CHECKING:
    from trainer.reader.batches import TrainingData
    from trainer.reader.described import DescribedSplit

Finish = Callable[[Batch], Batch]

# The number is fixed because an autotuned prefetch may take all memory.
PREFETCH_BATCHES = 4
# Batches that are decoded at the same time take at most this much, unless one batch takes more.
IN_FLIGHT_BYTES = 1024**3


class _Stages(NamedTuple):
    """The stages that a batch of records passes.

    Attributes:
        inputs: The model's inputs, with the size of pictures that the reader returns.
        pictures: Decodes the pictures.
        changes: Functions for whole batches with all keys of a `Batch`.
        finishes_boxes: False if the device moves boxes once more, and finishes them.
    """

    inputs: ModelInputs
    pictures: Pictures
    changes: Sequence[Finish]
    finishes_boxes: bool = True


# No function of the reader branches on tensors in Python. Without this decorator AutoGraph's search
# for branches takes three quarters of the time to build the graph, seconds at every start.
@tf.autograph.experimental.do_not_convert
def training_batches(
    data: TrainingData,
    start_step: int = 0,
    slices: ReplicaSlices = WHOLE,
    broken: BrokenRecords | None = None,
) -> tf.data.Dataset:
    """Returns endless batches from `start_step` on, of static shape, before `augmentation.device`.

    Batches are cut from the concatenated passes: records left over at the end of one pass open the
    first batch of the next pass, so no record is dropped. `slices` names the parts of each batch to
    return. `broken` notes damaged records, which the caller counts; None raises a `RecordError`
    when more than `data.skip_broken` records are damaged.

    A damaged record has weight 0, a black picture and label 0. `weight` is 1 or the value of a
    column, multiplied by the class weight.
    """
    subset, augmentation = data.subset, data.augmentation
    weights, first = subset.class_weights, next(iter(subset.dataset.outputs), None)
    changes = [_weigh_classes(weights, first)] if weights is not None else []
    changes += [augmentation.finish] if augmentation.finish is not None else []
    changes += mapped(data.functions, data.batch_size, data.weighs)
    stages = _Stages(_shipped(data), augmentation.pictures, changes, augmentation.device is None)
    return _batches(data.order, data, stages, slices, broken, start_step)


@tf.autograph.experimental.do_not_convert
def evaluation_batches(
    data: DescribedSplit, slices: ReplicaSlices = WHOLE, broken: BrokenRecords | None = None
) -> tf.data.Dataset:
    """Returns one pass over each record, without augmentation; the last batch may be short.

    The pass has no copies of rare classes, and its cardinality is known. `broken` notes damaged
    records, which the caller counts; None to raise the `RecordError` of a damaged record.

    If batches are returned in slices, black pictures fill the last batch, with weight 0, label 0
    and record -1, because TensorFlow fails if a replica has an empty share.
    """
    data = dataclasses.replace(data, subset=without_copies(data.subset))
    order, inputs = evaluation_order(data.subset, data.batch_size), data.model_inputs
    pictures = batch_pictures(inputs.image, inputs.size, inputs.eval_crop)
    stages = _Stages(inputs, pictures, mapped(data.functions, weighs=data.weighs))
    return _batches(order, data, stages, slices, broken)


def _shipped(data: TrainingData) -> ModelInputs:
    """Returns the model's inputs with the size of pictures that the reader returns."""
    return dataclasses.replace(data.model_inputs, size=data.augmentation.reader_size)


def _batches(
    order: Order,
    data: DescribedSplit,
    stages: _Stages,
    slices: ReplicaSlices,
    broken: BrokenRecords | None,
    start_step: int = 0,
) -> tf.data.Dataset:
    """Returns the parts of batches that `slices` names, after all `stages`."""
    subset, options = data.subset, data.read_options
    reader, cache = PieceReader(subset), None
    if options.cache == "pixels":
        cache = decode_once(subset, options, reader, slices.hosts)
    pieces_at_once = math.ceil(data.batch_size / order.records_per_piece)
    source = cache or HeldPieces(subset.pieces, reader.read, pieces_at_once)
    on_damage = _on_damage(data, broken)
    records = record_batches(order, source, data.batch_size, slices, start_step, on_damage)
    share = data.batch_size // (slices.hosts * slices.replicas)
    # The default allocator spends 6 % of the CPU time on crops, because their sizes vary.
    tune_allocator()
    calls, at_once = _parallel_calls(options, share, stages.inputs)
    elsewhere = (slices.hosts - 1) * slices.replicas
    parse = batch_parser(subset.dataset, stages.inputs, with_picture=cache is None)

    def assemble(number: tf.Tensor, serialized: tf.Tensor, numbers: tf.Tensor) -> Batch:
        parsed = parse(serialized)
        # From the number of a part on this host to the number among the parts of all hosts.
        number += number // slices.replicas * elsewhere + slices.host * slices.replicas
        # Only the last part of a pass has no static size, because it may hold fewer records.
        count = numbers.shape[0] or tf.size(numbers, tf.int64)
        position = number * share + tf.range(count, dtype=tf.int64)
        stored = cache.rows(numbers, parsed.present) if cache else parsed.encoded
        batch = _batch(subset, parsed, numbers) | {"position": position}
        batch["inputs"][IMAGE_INPUT] = stages.pictures(stored, position, at_once)
        if stages.inputs.boxes is not None:
            view = stages.pictures.view(stored, position)
            batch = _with_boxes(subset, stages, batch | {"boxes": parsed.boxes}, view)
        # All keys of a `Batch` exist from here on; `changes` replace their values.
        for change in stages.changes:
            batch = change(batch)
        return batch

    batches = records.map(assemble, num_parallel_calls=calls, deterministic=True)
    return batches.with_options(_options(options)).prefetch(PREFETCH_BATCHES * slices.replicas)


def _on_damage(data: DescribedSplit, broken: BrokenRecords | None) -> OnDamage:
    """Returns a function that notes damaged records, or refuses more than `data` allows."""
    damaged: set[int] = set()

    def on_damage(record: int, step: int, error: RecordError) -> None:
        if broken is not None:
            broken.note(data.subset.split.name, record, step, error)
            return
        damaged.add(record)
        if len(damaged) > getattr(data, "skip_broken", 0):
            raise error

    return on_damage


def _batch(subset: Subset, parsed: Parsed, numbers: tf.Tensor) -> Batch:
    """Returns a batch without pictures and boxes; `numbers` are those of its records."""
    batch = {
        "inputs": dict(parsed.inputs),
        "weight": tf.ensure_shape(parsed.weight, numbers.shape),
        "record": numbers,
        "present": tf.ensure_shape(parsed.present, numbers.shape),
    }
    if parsed.label is not None:
        batch["label"] = tf.nest.map_structure(
            lambda one: tf.ensure_shape(one, [*numbers.shape, *one.shape[1:]]),
            model_labels(subset, parsed.label),
        )
    return batch


def _with_boxes(subset: Subset, stages: _Stages, batch: Batch, view: View | None) -> Batch:
    """Returns a batch whose `boxes` are moved, and finished unless the device does it."""
    boxes = stages.inputs.boxes
    if boxes is None or not stages.finishes_boxes:
        return batch | {"boxes": move_boxes(batch["boxes"], view)}
    return box_finisher(subset.dataset, boxes, stages.inputs.sequence_length)(batch, view)


def _weigh_classes(class_weights: tuple[float, ...], first: str | None) -> Finish:
    """Returns a function that multiplies weights by class weights.

    `first` names the target whose labels count, None for the only target.
    """
    weights = tf.constant(class_weights, tf.float32)

    def weigh(batch: Batch) -> Batch:
        label = batch["label"][first] if first else batch["label"]
        return batch | {"weight": batch["weight"] * tf.gather(weights, label)}

    return weigh


def _options(read_options: ReadOptions) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    # On few cores the autotuner is unsteady, and slower than a fixed parallelism.
    options.autotune.enabled = False
    # The optimizer would copy the tensors that functions capture: all pictures of the cache.
    if read_options.cache == "pixels":
        options.experimental_optimization.apply_default_optimizations = False
    # In the shared thread pool decoding would queue behind the model's operations.
    options.threading.private_threadpool_size = read_options.threads
    # Slices divide batches among hosts, and a host reads for all its replicas: nothing to shard.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _record_bytes(model_inputs: ModelInputs, size: tuple[int, int]) -> int:
    sequence = model_inputs.sequence_length or 0
    values = sum(
        (sequence if spec.shape is None else math.prod(spec.shape))
        * (8 if spec.dtype == "int64" else 4)
        for spec in model_inputs.features.values()
    )
    return size[0] * size[1] * model_inputs.image.channels + values


def _parallel_calls(
    read_options: ReadOptions, batch_size: int, model_inputs: ModelInputs
) -> tuple[int, int]:
    """Returns how many batches are decoded at the same time, and how many pictures of each."""
    # For a device that crops them, the reader ships pictures in up to the size of the records.
    largest = max(model_inputs.size, model_inputs.image.size or (0, 0))
    batch_bytes = batch_size * _record_bytes(model_inputs, largest)
    calls = max(1, min(read_options.threads, IN_FLIGHT_BYTES // max(1, batch_bytes)))
    # If only few batches fit into memory, the pictures of each must keep all threads busy.
    return calls, max(DECODED_AT_ONCE, -(-read_options.threads // calls))
