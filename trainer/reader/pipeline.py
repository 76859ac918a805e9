"""The reader: shards → batches to train on, or to evaluate with.

Why the stages stand in this order:

- what is read is decided before anything is read (`trainer.reader.plan`), so a resumed run seeks;
- `interleave` follows the plan, one turn of a stream after the other (`trainer.reader.records`);
- records come a batch at a time: one `parse_example` per batch costs a third of one per record;
- a batch is numbered before anything random happens: augmentation is a function of (seed,
  position), so it depends neither on threads, nor on replicas, nor on restarts;
- parsing, decoding and augmentation are one map over batches on all threads: that is where the
  time goes, and one function per batch needs the fewest calls and copies;
- whole batches are changed last (class weights, MixUp on the host), since that needs the labels;
- a fixed number of batches is prefetched. Pictures stay uint8 up to here: a quarter of the bytes
  to copy; the model's first layer scales them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import tensorflow as tf

from imageshards.images.encode import tune_allocator
from imageshards.tfrecord import RecordError
from trainer.augment.boxes import box_finisher, move_boxes
from trainer.augment.decode import DECODED_AT_ONCE, Pictures, batch_pictures
from trainer.augment.user_function import mapped
from trainer.dataset.parse import batch_parser
from trainer.dataset.pieces import PIECE_BYTES
from trainer.dataset.spec import (
    IMAGE_INPUT,
    WHOLE,
    Batch,
    ModelInputs,
    ReadOptions,
    ReplicaSlices,
)
from trainer.dataset.subset import model_labels
from trainer.reader.broken_records import BrokenRecords
from trainer.reader.order import evaluation_order, training_order, without_copies
from trainer.reader.pieces import PieceReader
from trainer.reader.pixel_cache import decode_once
from trainer.reader.plan import STREAMS, Order
from trainer.reader.read_ahead import READ_AHEAD_BYTES, Source
from trainer.reader.records import record_batches

if TYPE_CHECKING:
    from trainer.reader.batches import EvaluationData, TrainingData

    Described: TypeAlias = TrainingData | EvaluationData

Finish = Callable[[Batch], Batch]

# A fixed number: an autotuned prefetch may take all memory.
PREFETCH_BATCHES = 4
# Batches that are decoded at the same time take no more than this.
IN_FLIGHT_BYTES = 1024**3


# No function of the reader branches on tensors in Python. Looking for such branches in all of
# them took three quarters of the time in which the graph is built, seconds at every start.
@tf.autograph.experimental.do_not_convert
def training_batches(
    data: TrainingData,
    start_step: int = 0,
    slices: ReplicaSlices = WHOLE,
    broken: BrokenRecords | None = None,
) -> tf.data.Dataset:
    """Endless batches, of static shape, as the reader makes them: before `augmentation.device`.

    Batches are cut from the concatenated passes: records left over at the end of one pass
    open the first batch of the next, so none is dropped.

    Args:
        data: What is read.
        start_step: How many batches of the stream were read before.
        slices: Which parts of each batch are made, one after the other.
        broken: Notes damaged records for the caller, who counts them; None to raise the
            `RecordError` of one that is too many by `data.skip_broken`.

    Returns:
        `trainer.dataset.spec.Batch`es. A damaged record has the weight 0, a black picture and
        label 0; class weights multiply `weight`, which is 1 or what a column of the records says.
    """
    subset, augmentation = data.subset, data.augmentation
    weights, first = subset.class_weights, next(iter(subset.dataset.outputs), None)
    changes = [_weigh_classes(weights, first)] if weights is not None else []
    changes += [augmentation.finish] if augmentation.finish is not None else []
    changes += mapped(data.functions, data.batch_size, data.weighs)
    order = training_order(subset, data.batch_size, data.seed)
    return _batches(
        order, data, _shipped(data), augmentation.pictures, slices, broken, changes, start_step,
        augmentation.device is None,
    )  # fmt: skip


@tf.autograph.experimental.do_not_convert
def evaluation_batches(
    data: EvaluationData, slices: ReplicaSlices = WHOLE, broken: BrokenRecords | None = None
) -> tf.data.Dataset:
    """One pass, each record once, none augmented; the last batch may be a short one.

    Copies of rare classes are left out, and the cardinality is known. `broken` notes damaged
    records for the caller, who counts them; None to raise the `RecordError` of one.

    Where batches are made in slices the last one is filled up with black pictures of weight 0,
    label 0 and record -1: none of several replicas may have an empty share.
    """
    data = dataclasses.replace(data, subset=without_copies(data.subset))
    order, inputs = evaluation_order(data.subset, data.batch_size), data.model_inputs
    pictures = batch_pictures(inputs.image, inputs.size, inputs.eval_crop)
    changes = mapped(data.functions, weighs=data.weighs)
    return _batches(order, data, inputs, pictures, slices, broken, changes)


def memory_bytes(data: TrainingData) -> Mapping[str, int]:
    """An estimate of what the reader keeps in memory, in bytes, by stage."""
    split, options, inputs = data.subset.split, data.read_options, _shipped(data)
    mean_bytes = split.num_bytes // max(1, split.num_records)
    decoded = data.batch_size * _record_bytes(inputs, inputs.size)
    calls, _ = _parallel_calls(options, data.batch_size, inputs)
    ahead = min(READ_AHEAD_BYTES, split.num_bytes) if options.cache == "none" else 0
    return {
        "pieces": min(STREAMS, len(data.subset.pieces)) * PIECE_BYTES,
        "read ahead": ahead,
        "batches being decoded": calls * (data.batch_size * mean_bytes + decoded),
        "batches ahead": PREFETCH_BATCHES * decoded,
    }


def _shipped(data: TrainingData) -> ModelInputs:
    """What the model is fed with, pictures in the size in which the reader gives them."""
    return dataclasses.replace(data.model_inputs, size=data.augmentation.reader_size)


def _batches(
    order: Order,
    data: Described,
    model_inputs: ModelInputs,
    pictures: Pictures,
    slices: ReplicaSlices,
    broken: BrokenRecords | None,
    changes: Sequence[Finish] = (),
    start_step: int = 0,
    finishes_boxes: bool = True,
) -> tf.data.Dataset:
    """The parts of batches that `slices` asks for, after all `changes`.

    Unless it `finishes_boxes`, the device moves boxes once more, and does that.
    """
    subset, options = data.subset, data.read_options
    source: Source = PieceReader(subset)
    cache = None
    if options.cache == "pixels":
        source = cache = decode_once(subset, options, source, slices.hosts)

    def on_damage(record: int, position: int, error: RecordError) -> None:
        if broken is not None:
            broken.note(subset.split.name, record, position // data.batch_size, error)
            return
        damaged.add(record)
        if len(damaged) > getattr(data, "skip_broken", 0):
            raise error

    damaged: set[int] = set()
    records = record_batches(order, source, data.batch_size, slices, start_step, on_damage)
    share = data.batch_size // (slices.hosts * slices.replicas)
    tune_allocator()  # crops of all sizes come and go: 6 % of their CPU time
    calls, at_once = _parallel_calls(options, share, model_inputs)
    elsewhere = (slices.hosts - 1) * slices.replicas
    parse = batch_parser(subset.dataset, model_inputs, with_picture=cache is None)

    def assemble(number: tf.Tensor, elements: tuple[tf.Tensor, ...]) -> Batch:
        parsed = parse(elements[0])
        number += number // slices.replicas * elsewhere + slices.host * slices.replicas
        # Fewer than `share`, and known only when they come, where a pass ends.
        count = elements[-1].shape[0] or tf.size(elements[-1], tf.int64)
        position = number * share + tf.range(count, dtype=tf.int64)
        stored = cache.rows(elements[-1], parsed.present) if cache else parsed.encoded
        image = pictures(stored, position, at_once)
        batch = {
            "inputs": {IMAGE_INPUT: image, **parsed.inputs},
            "weight": tf.ensure_shape(parsed.weight, elements[-1].shape),
            "position": position,
            "record": elements[-1],
            "present": tf.ensure_shape(parsed.present, elements[-1].shape),
        }
        if parsed.label is not None:
            batch["label"] = tf.nest.map_structure(
                lambda one: tf.ensure_shape(one, [*elements[-1].shape, *one.shape[1:]]),
                model_labels(subset, parsed.label),
            )
        if model_inputs.boxes is not None and parsed.boxes is not None:
            view = pictures.view(stored, position)
            if finishes_boxes:
                finish = box_finisher(subset.dataset, model_inputs.boxes)
                batch = finish(batch | {"boxes": parsed.boxes}, view)
            else:
                batch["boxes"] = move_boxes(parsed.boxes, view)
        for change in changes:
            batch = change(batch)
        return batch

    numbered = records.enumerate(start_step * slices.replicas)
    batches = numbered.map(assemble, num_parallel_calls=calls, deterministic=True)
    return batches.with_options(_options(options)).prefetch(PREFETCH_BATCHES * slices.replicas)


def _weigh_classes(class_weights: tuple[float, ...], first: str | None) -> Finish:
    """Multiplies weights by those of classes: of the label, or of the `first` of several."""
    weights = tf.constant(class_weights, tf.float32)

    def weigh(batch: Batch) -> Batch:
        label = batch["label"][first] if first else batch["label"]
        return batch | {"weight": batch["weight"] * tf.gather(weights, label)}

    return weigh


def _options(read_options: ReadOptions) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    # Fixed parallelism: on few cores the autotuner is unsteady, and slower.
    options.autotune.enabled = False
    # Rewriting the graph copies what its functions capture: all pictures of the cache.
    if read_options.cache == "pixels":
        options.experimental_optimization.apply_default_optimizations = False
    # A pool of its own keeps decoding from queueing behind the model's operations.
    options.threading.private_threadpool_size = read_options.threads
    # One machine reads for all its replicas: there is nothing to shard.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _record_bytes(model_inputs: ModelInputs, size: tuple[int, int]) -> int:
    """Bytes of one decoded record; sequences of unknown length are left out."""
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
    """How many batches are decoded at a time, and how many pictures of each.

    Where batches are so large that only a few fit into memory, their pictures have to keep all
    threads busy.
    """
    # The reader may ship pictures as large as the records hold.
    largest = max(model_inputs.size, model_inputs.image.size or (0, 0))
    batch_bytes = batch_size * _record_bytes(model_inputs, largest)
    calls = max(1, min(read_options.threads, IN_FLIGHT_BYTES // max(1, batch_bytes)))
    return calls, max(DECODED_AT_ONCE, -(-read_options.threads // calls))
