"""The batches of a training, an endless stream, and of an evaluation, one pass.

Only the creation of a `tf.data.Dataset` imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from imageshards.errors import Arg, UserError, names_arguments
from trainer.augment.augmentation import (
    MapFunction,
    check_strengths,
)
from trainer.config import ReadConfig, refuse_uneven
from trainer.dataset.batch import WHOLE, Batch, ReplicaSlices, Tensors, input_of
from trainer.dataset.manifest import check_shards, train_split, validation_split
from trainer.dataset.open import open_dataset, read_options, wanted_inputs
from trainer.dataset.spec import (
    BOXES,
    IMAGE_INPUT,
    DatasetSpec,
    ModelInputs,
    Split,
)
from trainer.dataset.subset import (
    refuse_missing_inputs,
    refuse_overlap,
    select,
)
from trainer.dataset.target import with_sample_weight, with_target
from trainer.imports import CHANNELS_LAST, CHANNELS_REMEDY
from trainer.reader.described import DescribedSplit, DescribedTraining
from trainer.strengths import NONE, Augment

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.reader.broken_records import BrokenRecords


@dataclasses.dataclass(frozen=True, repr=False)
class TrainingData(DescribedTraining):
    """An endless stream of training batches, which `Data.train` returns.

    The batch of step k depends on the dataset and these attributes alone, so
    `dataset(start_step=k)` equals `dataset().skip(k)` but starts immediately.

    Attributes:
        seed: Seed of the order and of the augmentation.
        augment: The strengths of the augmentation, or a function.
        augment_on: `host` or `device`; `auto` until the devices are known.
        skip_broken: How many damaged records the reader may leave out.
    """

    def map(self, function: MapFunction) -> TrainingData:
        found = super().map(function)
        if self.augment_on == "device":
            raise UserError(
                argument="map",
                received="a function beside " + Arg("augment_on", "device"),
                expected=Arg("augment_on", "host") + ", which calls it after the augmentation",
            )
        return found

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Returns (height, width, channels) of a picture, before the functions of `map`."""
        if callable(self.augment):  # decides the shape of what it returns
            inputs = dataclasses.replace(self, functions=()).batches().element_spec["inputs"]
            return tuple(inputs[IMAGE_INPUT].shape[1:])
        return (*self.model_inputs.size, self.model_inputs.image.channels)

    @names_arguments(data="path")
    def dataset(
        self, start_step: int = 0, *, process_index: int = 0, process_count: int = 1
    ) -> tf.data.Dataset:
        """Returns endless batches from `start_step` on, for Keras's `fit`.

        Args:
            start_step: Number of batches that the training has used already.
            process_index: Index of the calling process. With JAX or PyTorch several processes can
                share each batch; each process reads little more than its part.
            process_count: Number of processes, a divisor of `batch_size`.

        Returns:
            A dataset of (inputs, label), or of (inputs, label, sample_weight) if `gives_weights`.
            Without a target the elements are inputs alone, or (inputs, None, sample_weight). Shapes
            are static, except for sequences without a `sequence_length`.

            - inputs: pictures, uint8 [batch, height, width, channels], 0 to 255. With several
              inputs a dictionary by name, in which `_` replaces `/`. `bounding_boxes` is a
              dictionary: `boxes`, float32 [batch, most, 4], has xmin, ymin, xmax and ymax as shares
              of the sides; `labels` is int64 [batch, most]. Both are -1 behind the last box. `most`
              is `sequence_length`, or the largest number of boxes in the batch;
            - label: for a class int64 [batch], or float32 [batch, classes] after mixing; for labels
              float32 [batch, classes], 1 for each label of the record; for values float32 [batch]
              or [batch, k]; for boxes as above. Several targets give a dictionary by name;
            - sample_weight: float32 [batch].
        """
        import tensorflow as tf

        if process_count < 1 or not 0 <= process_index < process_count:
            raise UserError(
                argument="process_index",
                received=f"{process_index} of process_count {process_count}",
                expected="0 to one less than the number of processes",
            )
        refuse_uneven(self.batch_size, process_count, "process")
        self.check_pairs(process_count, "process")
        if isinstance(self.augment, Augment) and not self.functions:
            self._check_lengths(process_count)
            slices = ReplicaSlices(1, process_count, process_index)
            batches = self.batches(start_step, slices)
            return _for_keras(batches, self.gives_weights, self.augmentation.device)
        # The user's functions take whole batches; each process takes its part of the result.
        whole = _for_keras(self.batches(start_step), self.gives_weights)
        if process_count == 1:
            return whole
        share = self.batch_size // process_count
        part = slice(process_index * share, (process_index + 1) * share)

        def cut(values: tf.Tensor | None) -> tf.Tensor | None:
            return None if values is None else values[part]

        return whole.map(lambda *batch: tf.nest.map_structure(cut, batch))

    def _check_lengths(self, process_count: int) -> None:
        inputs = self.model_inputs
        varying = [name for name, spec in inputs.features.items() if spec.shape is None]
        varying += [BOXES] * (inputs.boxes is not None)
        # A process pads to the longest sequence that it sees, which is in its part of the batch.
        if process_count > 1 and varying and inputs.sequence_length is None:
            raise UserError(
                argument="process_count",
                received=f"{process_count}, but each process pads {varying[0]} to another length",
                expected="a fixed " + Arg("sequence_length"),
            )

    @property
    def element_spec(self) -> Any:
        """Returns the `element_spec` of `dataset()`; reads no record and fills no cache."""
        import tensorflow as tf

        plain = dataclasses.replace(
            self, read_options=dataclasses.replace(self.read_options, cache="none")
        )
        if not isinstance(self.augment, Augment) or self.functions:
            return plain.dataset().element_spec
        # Tracing an augmentation takes seconds, and changes only the spec of a label that is mixed.
        spec = dataclasses.replace(plain, augment=NONE).dataset().element_spec
        if self.mixes:
            label = tf.TensorSpec([self.batch_size, len(self.classes)], tf.float32)
            return spec[0], label, *spec[2:]
        return spec

    def batches(
        self,
        start_step: int = 0,
        slices: ReplicaSlices = WHOLE,
        broken: BrokenRecords | None = None,
    ) -> tf.data.Dataset:
        """Returns the stream as `trainer.dataset.batch.Batch`es, which know positions and records.

        With `augment_on="device"` the batches hold pictures before `augmentation.device`. `slices`
        names the parts of each batch to return. `broken` notes damaged records, which the caller
        counts; None to allow `skip_broken` damaged records.
        """
        from trainer.reader import pipeline

        start_step = operator.index(start_step)
        if start_step < 0:
            raise UserError(argument="start_step", received=str(start_step), expected="at least 0")
        return pipeline.training_batches(self, start_step, slices, broken)


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
        batches, full = _for_keras(self.batches(), self.gives_weights), self.batch_size
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


def open_data(
    config: ReadConfig, output: str | None = None
) -> tuple[TrainingData, EvaluationData | None]:
    """Opens the training and the validation split of `config`; the latter is None if absent.

    `output` is the folder of a run, which may hold the cache of decoded pictures. An incomplete
    dataset is refused, and so is a missing split, class, input or target.
    """
    dataset = with_target(open_dataset(config), config.target, config.target_kind)
    split = validation_split(dataset, config.validation_split)
    inputs = wanted_inputs(config, dataset)
    training = training_data(config, dataset, inputs, output)
    if split is None:
        return training, None
    evaluation = evaluation_data(config, dataset, split, inputs, output)
    if not config.allow_overlap:
        refuse_overlap(training.subset, evaluation.subset)
    return training, evaluation


def training_data(
    config: ReadConfig, dataset: DatasetSpec, inputs: ModelInputs, output: str | None = None
) -> TrainingData:
    """Returns the stream of the training split; refuses what cannot be trained with."""
    split, augment = train_split(dataset, config.train_split), Augment.of(config.augment)
    if not config.skip_broken:
        check_shards(dataset, [split])
    # `sample_weight` weighs the training alone: the validation counts every record once.
    train = TrainingData(
        select(config, with_sample_weight(dataset, config.sample_weight), split, training=True),
        read_options(config, output),
        inputs,
        config.batch_size,
        config.seed,
        augment,
        config.augment_on,
        config.skip_broken,
    )
    refuse_missing_inputs(train.subset, inputs.features)
    check_strengths(augment, train.mixes, inputs.image.channels)
    if augment.mixes and inputs.boxes is not None:
        warnings.warn(
            "the augmentation strong leaves out MixUp and CutMix here: no layer can mix the "
            "bounding boxes of two pictures",
            stacklevel=4,  # names the line that calls `Data.train`
        )
    return train


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


def _for_keras(
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
