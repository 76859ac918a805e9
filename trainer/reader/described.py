"""Describes what a split gives: which records, as which inputs, in batches of which size.

A description never changes and holds no state of the reader. Only the creation of a
`tf.data.Dataset` imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

from imageshards.errors import UserError, names_arguments
from imageshards.text import counted
from trainer.augment.augmentation import MapFunction
from trainer.config import ReadConfig
from trainer.dataset.batch import WHOLE, Batch, ReplicaSlices, Tensors, input_of
from trainer.dataset.manifest import check_shards
from trainer.dataset.open import read_options
from trainer.dataset.spec import (
    DatasetSpec,
    ModelInputs,
    ReadOptions,
    Split,
    described_target,
)
from trainer.dataset.subset import Subset, refuse_missing_inputs, select
from trainer.imports import CHANNELS_LAST, CHANNELS_REMEDY

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.reader.broken_records import BrokenRecords


@dataclasses.dataclass(frozen=True, repr=False)
class DescribedSplit:
    """The batches of a split, for training or for evaluation.

    Attributes:
        subset: The records to read.
        read_options: The number of threads, and the cache.
        model_inputs: The inputs of the model.
        batch_size: Records in a global batch.
        functions: The functions that `map` received, in order.
    """

    subset: Subset
    read_options: ReadOptions
    model_inputs: ModelInputs
    batch_size: int
    functions: tuple[MapFunction, ...] = dataclasses.field(default=(), kw_only=True)

    def __repr__(self) -> str:
        subset, inputs = self.subset, self.model_inputs
        shown = [counted(self.num_records, "record")]
        shown += [counted(len(subset.classes), "class")] if subset.classes else []
        if not subset.classes or subset.dataset.outputs:
            shown.append(f"target {described_target(subset.dataset)}")
        height_px, width_px = inputs.size
        shown += [f"batch size {self.batch_size:,}", f"pictures {height_px} x {width_px} pixels"]
        if len(inputs.names) > 1:
            shown.append(f"further inputs {', '.join(inputs.names[1:])}")
        where = f"{subset.dataset.data!r} {subset.split.name}"
        return f"<imageshards {type(self).__name__} {where}: {', '.join(shown)}>"

    @property
    def num_records(self) -> int:
        """Returns the number of records in a pass, including copies by `balance="sampling"`."""
        return self.subset.num_records

    @property
    def classes(self) -> tuple[str, ...]:
        """Returns the names of the classes, in the order of the labels."""
        return self.subset.classes

    @property
    def gives_weights(self) -> bool:
        """Returns whether `dataset()` yields a sample_weight behind inputs and label.

        A weight can differ from 1 with `sample_weight`, with `balance="weights"`, and in training
        with `skip_broken`, which gives broken records the weight 0.
        """
        subset = self.subset
        return subset.dataset.weight_feature is not None or subset.class_weights is not None

    @property
    def weighs(self) -> bool:
        """Returns whether batches hold `weight`; labels of a `map` may not fit weights of 1."""
        return self.gives_weights or not self.functions

    def map(self, function: MapFunction) -> Self:
        """Returns a description of batches with which `function` is called.

        The host calls the function with whole batches, after the augmentation and the functions of
        earlier calls; in an evaluation with a replica's share of a batch or a short last batch,
        too. Its operations must be TensorFlow's. A run resumes exactly, because `ims.fit` compares
        the function's source, but not values that the function takes from elsewhere.

            autoencoder = data.train(batch_size=64, target=None).map(lambda x: (x, x))

        Args:
            function: Takes (inputs, label) as `dataset()` yields them, or inputs alone if `target`
                was None. Returns (inputs, label), or inputs alone; the first dimension of each
                tensor is the batch. The function must not draw random numbers; use `augment`, which
                passes seeds.

        Raises:
            UserError: `augment_on` is `device`. When the dataset is created: the function returns
                another structure, or draws random numbers.
        """
        if not callable(function):
            raise UserError(
                argument="map",
                received=repr(function),
                expected="a function (inputs, label) -> (inputs, label)",
            )
        return dataclasses.replace(self, functions=(*self.functions, function))

    def as_numpy(self, *start_step: int, **process: int) -> Iterator[tuple[Any, ...]]:
        """Returns the batches of `dataset(…)` as NumPy arrays, as for JAX."""
        return iter(self.dataset(*start_step, **process).as_numpy_iterator())

    def dataset(self, *args: Any, **named: Any) -> tf.data.Dataset:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, repr=False)
class EvaluationData(DescribedSplit):
    """One pass over a split with each record once, which `Data.evaluation` returns."""

    @property
    def steps(self) -> int:
        """Returns the number of batches; the last batch may be short."""
        return -(-self.num_records // self.batch_size)

    @names_arguments(data="path")
    def dataset(self) -> tf.data.Dataset:
        """Returns the pass in `steps` batches; the last batch has the leftover records.

        Keras divides each batch among the replicas of a model's strategy, and fails if a replica
        gets no record. With several GPUs or logical CPUs, or inside a strategy's scope, the last
        two batches may therefore be divided at another record. No division helps if `batch_size` is
        larger than the split, or hardly larger than the number of replicas.

        Returns:
            A dataset of known cardinality with the elements of `TrainingData.dataset`. Keras's loss
            and metrics count every record exactly once, on any number of replicas.
        """
        import tensorflow as tf

        from trainer.reader.order import shareable_size

        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        # The model's strategy is unknown here; outside a scope it may use all devices.
        if replicas == 1:
            replicas = max(len(tf.config.list_logical_devices(kind)) for kind in ("GPU", "CPU"))
        batches, full = for_keras(self.batches(), self.gives_weights), self.batch_size
        # `rest` is the size of the last batch, and `last` the size that every replica can share.
        rest = self.num_records - (self.steps - 1) * full
        last = shareable_size(rest, full, replicas) if self.steps > 1 else rest
        # `rebatch` cannot join batches that have padded their sequences to different lengths.
        fits = all(
            one.shape[1:].is_fully_defined()
            for one in tf.nest.flatten(batches.element_spec)
            if isinstance(one, tf.TensorSpec)
        )
        if last == rest or not fits:
            return batches
        sizes = [full] * (self.steps - 2) + [full + rest - last, last]
        known = tf.data.experimental.assert_cardinality(self.steps)
        return batches.rebatch(sizes).apply(known)

    def batches(
        self, slices: ReplicaSlices = WHOLE, broken: BrokenRecords | None = None
    ) -> tf.data.Dataset:
        """Returns the pass as `trainer.dataset.batch.Batch`es, in the parts that `slices` names.

        `broken` notes damaged records, which the caller counts; None to allow no damaged record.
        """
        from trainer.reader import pipeline

        return pipeline.evaluation_batches(self, slices, broken)


def evaluation_data(
    config: ReadConfig,
    dataset: DatasetSpec,
    split: Split,
    inputs: ModelInputs,
    output: str | None = None,
) -> EvaluationData:
    """Returns the pass over a split; refuses missing shards, and records without an input."""
    # With `skip_broken` the reader counts the records of a missing shard as damaged records.
    if not config.skip_broken:
        check_shards(dataset, [split])
    subset = select(config, dataset, split)
    refuse_missing_inputs(subset, inputs.features)
    return EvaluationData(subset, read_options(config, output), inputs, config.batch_size)


def for_keras(
    batches: tf.data.Dataset, gives_weights: bool, change: Callable[[Batch], Batch] | None = None
) -> tf.data.Dataset:
    """Returns batches as `TrainingData.dataset` yields them, each passed through `change` first."""
    import tensorflow as tf

    # Only a process that has imported Keras feeds these batches to a model with a channel order.
    keras = sys.modules.get("keras")
    if keras is not None and (order := keras.config.image_data_format()) != CHANNELS_LAST:
        warnings.warn(
            f"Keras's image_data_format is {order!r}, but pictures are [height, width, channels]: "
            f"{CHANNELS_REMEDY}",
            stacklevel=4,  # names the line that calls `dataset`
        )

    # AutoGraph would search this function for branches on tensors, which takes seconds.
    @tf.autograph.experimental.do_not_convert
    def as_keras(batch: Batch) -> Tensors:
        batch = batch if change is None else change(batch)
        inputs, label = input_of(batch), batch.get("label")
        # Keras's `fit` refuses `class_weight` beside sample weights, even if all weights are 1.
        if gives_weights:
            return inputs, label, batch["weight"]
        return inputs if label is None else (inputs, label)

    return batches.map(as_keras)
