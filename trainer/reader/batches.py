"""Descriptions of what is read: an endless stream to train on, one pass to evaluate with.

They never change, and hold no state of the reader. TensorFlow is imported when a dataset is asked
for, not before.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from imageshards.errors import Arg, UserError, names_arguments
from trainer.augment.augmentation import (
    Augmentation,
    AugmentFunction,
    MapFunction,
    check_pairs,
    make_augmentation,
)
from trainer.config import ReadConfig, uneven_batch
from trainer.dataset.manifest import check_shards, train_split, validation_split
from trainer.dataset.notebook import facts_of, html_of_batches, one_line
from trainer.dataset.open import open_dataset, read_options, wanted_inputs
from trainer.dataset.spec import (
    BOXES,
    WHOLE,
    Batch,
    DatasetSpec,
    MeanStd,
    ModelInputs,
    ReadOptions,
    ReplicaSlices,
    Specs,
    Subset,
    Tensors,
    balancing_weights,
    input_of,
)
from trainer.dataset.subset import mean_and_std, refuse_missing_inputs, select
from trainer.dataset.target import target_name, with_sample_weight, with_target
from trainer.imports import CHANNELS_LAST, CHANNELS_REMEDY

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.augment.boxes import FinishBoxes
    from trainer.reader.broken_records import BrokenRecords


@dataclasses.dataclass(frozen=True, repr=False)
class TrainingData:
    """An endless stream of batches; made by `Data.train`.

    A notebook shows what a batch is made of, the classes, and the first pictures as stored.

    The batch of step k is a function of the data and of what stands here, whatever was read
    before, so `dataset(start_step=k)` is `dataset().skip(k)`, at once.

    Attributes:
        subset: What is read.
        read_options: How.
        model_inputs: What a model is fed with.
        batch_size: Global batch.
        seed: Of the order and the augmentation.
        augment: `none`, `light`, `strong`, or a function.
        augment_on: `host` or `device`; `auto` until it is known which devices there are.
        skip_broken: How many damaged records may be left out.
        functions: What `map` was given, in its order.
    """

    subset: Subset
    read_options: ReadOptions
    model_inputs: ModelInputs
    batch_size: int
    seed: int
    augment: str | AugmentFunction
    augment_on: str
    skip_broken: int = 0
    functions: tuple[MapFunction, ...] = ()

    def __repr__(self) -> str:
        return one_line(self, self._facts)

    def _repr_html_(self) -> str:
        """For notebooks: what a batch is made of, the classes, the first pictures as stored."""
        return html_of_batches(self, self._facts)

    @property
    def _facts(self) -> dict[str, str]:
        augment = self.augment
        if not isinstance(augment, str):
            augment = getattr(augment, "__name__", type(augment).__name__)
        return {
            **facts_of(self),
            "augment": augment,
            "steps per epoch": f"{self.steps_per_epoch:,}",
        }

    @property
    def num_records(self) -> int:
        """Records in one pass (an epoch), copies by `balance="sampling"` included."""
        return self.subset.num_records

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in one pass. The records left over open the next one: none is lost."""
        return self.num_records // self.batch_size

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the labels."""
        return self.subset.classes

    @property
    def num_outputs(self) -> int:
        """How many numbers a model gives for a picture: a logit for each class, or k values."""
        return self.subset.num_outputs

    @property
    def target_mean_std(self) -> MeanStd | dict[str, MeanStd] | None:
        """`mean` and `std`, the standard deviation, of each value of the target, in its own unit.

        Of the records that are read; None where the target is no values. Of several targets a
        dictionary by name, of those that are values. A model of your own that
        ends in `keras.layers.Rescaling(std, mean)` finds a quantity of any unit.
        """
        if not (outputs := self.subset.dataset.outputs):
            return self.subset.target_mean_std
        found = {name: mean_and_std(self.subset, one) for name, one in outputs.items()}
        return {name: one for name, one in found.items() if one is not None}

    @property
    def mixes(self) -> bool:
        """Whether `augment="strong"` mixes pairs: a label can be; text, numbers, boxes cannot."""
        alone = len(self.model_inputs.names) == 1 and not self.subset.dataset.outputs
        return alone and self.subset.dataset.has_classes

    @property
    def box_classes(self) -> tuple[str, ...]:
        """Names of the labels of boxes, in their order; none where records hold ids or no boxes."""
        boxes = self.model_inputs.boxes
        return boxes.classes if boxes is not None else ()

    def map(self, function: MapFunction) -> TrainingData:
        """The same stream with another content: `function` is called with each batch.

        It is called on the host with whole batches, after augmentation and after the functions of
        earlier calls, and its operations must be TensorFlow's. A run is resumed exactly, as
        `ims.fit` knows the function's source again; it does not see values that the function takes
        from elsewhere.

            autoencoder = data.train(batch_size=64, target=None).map(lambda x: (x, x))

        Args:
            function: Takes (inputs, label), or inputs alone where `target` was None, as `dataset()`
                gives them; returns (inputs, label), or inputs alone. Each tensor in them begins
                with the batch. It draws no random numbers: a function as `augment` gets seeds.

        Raises:
            UserError: `augment_on` is `device`; or, when the dataset is made, the function returns
                something else or draws random numbers.
        """
        _check_function(function)
        if self.augment_on == "device" and self.augment != "none":
            raise UserError(
                argument="map",
                received="a function together with "
                + Arg("augment_on", "device")
                + ", but functions run on the host, after augmentation",
                expected=Arg("augment_on", "host"),
            )
        return dataclasses.replace(self, functions=(*self.functions, function))

    @property
    def class_weight(self) -> dict[int, float] | None:
        """Label → the weight by which every class would weigh the same; see `balancing_weights`.

        For `ims.fit`, a loss or an estimator of your own, and Keras's own `fit`, which refuses
        `class_weight` where `gives_weights`. None where nothing is left to weigh, because of
        `balance`, or where the records of each class were not counted, or may have several labels.
        """
        counts = self.subset.class_counts
        dataset = self.subset.dataset
        one = dataset.target == "class" and not dataset.outputs
        if counts is None or self.subset.balance != "none" or not one:
            return None
        return dict(enumerate(balancing_weights(counts)))

    @property
    def gives_weights(self) -> bool:
        """Whether `dataset()` gives (inputs, label, sample_weight), else (inputs, label).

        Batches have weights where a record may weigh something other than 1: with `sample_weight`,
        with `balance="weights"`, and with `skip_broken`, by which a broken record weighs 0.
        """
        subset = self.subset
        weighs = subset.dataset.weight_feature is not None or subset.class_weights is not None
        return weighs or self.skip_broken > 0

    @property
    def weighs(self) -> bool:
        """Whether batches hold `weight`: a mapped label may have no place for weights of 1."""
        return self.gives_weights or not self.functions

    @property
    def identity(self) -> dict[str, Any]:
        """What decides what a step is trained on, as JSON values by the names of arguments.

        Neither the number of replicas nor anything that only changes the speed. Functions are
        known by their names and the hash of their sources.

        Raises:
            UserError: The source of a function cannot be read.
        """
        from trainer.augment.user_function import identity_of
        from trainer.reader.plan import ORDER_VERSION

        subset, inputs, augment = self.subset, self.model_inputs, self.augment
        if not isinstance(augment, str):
            augment = identity_of("augment", augment)
        crops = augment in ("light", "strong") and self.augment_on == "host"
        boxes = {"min_box_visibility": inputs.boxes.min_visibility} if inputs.boxes else {}
        functions = [identity_of("map", function) for function in self.functions]
        return (
            boxes
            | ({"map": functions} if functions else {})
            | {
                "data": subset.dataset.fingerprint,
                "target": target_name(subset.dataset),
                "sample_weight": subset.dataset.weight_feature,
                "train_split": subset.split.name,
                "classes": list(subset.classes),
                "where": sorted(subset.filters),
                "balance": subset.balance,
                "inputs": sorted(inputs.names),
                "sequence_length": inputs.sequence_length,
                "image_size": list(inputs.size),
                "batch_size": self.batch_size,
                "seed": self.seed,
                "order_version": ORDER_VERSION,
                "augment": augment,
                "augment_on": self.augment_on if augment != "none" else None,
                # The reader of JPEGs decodes a window that shrinks a lot at a smaller scale.
                "cache": "pixels" if crops and self.read_options.cache == "pixels" else None,
            }
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of a picture, unless a function as `augment` changes it."""
        return (*self.model_inputs.size, self.model_inputs.image.channels)

    @functools.cached_property
    def augmentation(self) -> Augmentation:
        """What happens to pictures, and on which side."""
        image, size = self.model_inputs.image, self.model_inputs.size
        if not isinstance(self.augment, str):
            from trainer.augment.user_function import function_augmentation

            return function_augmentation(
                self.augment,
                image=image,
                size=size,
                seed=self.seed,
                labels=self._label_spec,
                batch_size=self.batch_size,
            )
        return make_augmentation(
            self.augment,
            self.augment_on,
            image=image,
            size=size,
            seed=self.seed,
            num_classes=self.num_outputs,
            mix=self.mixes,
            boxes=self._box_finisher if self.augment_on == "device" else None,
        )

    @property
    def _box_finisher(self) -> FinishBoxes | None:
        from trainer.augment.boxes import box_finisher

        boxes = self.model_inputs.boxes
        return None if boxes is None else box_finisher(self.subset.dataset, boxes)

    @names_arguments(data="path")
    def dataset(
        self, start_step: int = 0, *, process_index: int = 0, process_count: int = 1
    ) -> tf.data.Dataset:
        """Endless batches from `start_step` on, for Keras's `fit`.

        Args:
            start_step: How many batches of the stream were trained on before.
            process_index: Which of several processes asks, each of which gets its part of every
                batch and reads little more than that (JAX, PyTorch with several).
            process_count: How many there are; `batch_size` is a multiple of it.

        Returns:
            A dataset of (inputs, label), or of (inputs, label, sample_weight) where
            `gives_weights`, with static shapes and its options set. Without a target it is one of
            inputs alone, or of (inputs, None, sample_weight).

            - inputs: pictures, uint8 [batch, height, width, channels], 0 to 255; where `inputs`
              named more, a dictionary of them by name, `/` replaced by `_`. `bounding_boxes` are a
              dictionary: `boxes`, float32 [batch, most, 4], xmin, ymin, xmax, ymax from 0 to 1 of
              the picture's sides, and `labels`, int64 [batch, most]; both -1 behind the last box.
              `most` is the largest number in the batch, or `sequence_length`;
            - label: of a class int64 [batch]; float32 [batch, classes] after mixing, and of labels,
              1 where a record has one; of values float32 [batch], or [batch, k]; of boxes as above;
              of several targets a dictionary of these by name;
            - sample_weight: float32 [batch].
        """
        if process_count < 1 or not 0 <= process_index < process_count:
            raise UserError(
                argument="process_index",
                received=f"{process_index} of process_count {process_count}",
                expected="0 to one less than the number of processes",
            )
        if self.batch_size % process_count:
            raise uneven_batch(self.batch_size, process_count, "process")
        if isinstance(self.augment, str) and not self.functions:
            check_pairs(self.augment, self.batch_size, process_count, self.mixes, "process")
            self._check_lengths(process_count)
            slices = ReplicaSlices(1, process_count, process_index)
            batches = self.batches(start_step, slices)
            return _for_keras(batches, self.gives_weights, self.augmentation.device)
        # The user's functions get whole batches.
        whole = _for_keras(self.batches(start_step), self.gives_weights)
        return whole if process_count == 1 else whole.map(_part(process_index, process_count))

    def _check_lengths(self, process_count: int) -> None:
        """Refuses sequences that each of several processes would pad to another length."""
        inputs = self.model_inputs
        varying = [name for name, spec in inputs.features.items() if spec.shape is None]
        varying += [BOXES] * (inputs.boxes is not None)
        if process_count > 1 and varying and inputs.sequence_length is None:
            raise UserError(
                argument="process_count",
                received=f"{process_count}, but the input {varying[0]} has no fixed length, and "
                "each process would pad its part to another length",
                expected="a fixed " + Arg("sequence_length"),
            )

    @property
    def element_spec(self) -> Any:
        """That of `dataset()`; no record is read for it, nor a cache filled."""
        import tensorflow as tf

        plain = dataclasses.replace(
            self, read_options=dataclasses.replace(self.read_options, cache="none")
        )
        if not isinstance(self.augment, str) or self.functions:
            return plain.dataset().element_spec
        # Our levels give pictures of the same type, and take seconds to trace.
        spec = dataclasses.replace(plain, augment="none").dataset().element_spec
        if self.augment == "strong" and self.mixes:
            label = tf.TensorSpec([self.batch_size, len(self.classes)], tf.float32)
            return spec[0], label, *spec[2:]
        return spec

    @property
    def _label_spec(self) -> Specs:
        """That of the labels before augmentation."""
        from trainer.dataset.parse import label_spec

        dataset = self.subset.dataset
        return label_spec(dataset, self.model_inputs, self.num_outputs, self.batch_size)

    def as_numpy(self, start_step: int = 0, **process: int) -> Iterator[tuple[Any, ...]]:
        """The batches of `dataset(start_step, …)` as NumPy arrays, for JAX or scikit-learn."""
        return iter(self.dataset(start_step, **process).as_numpy_iterator())

    def batches(
        self,
        start_step: int = 0,
        slices: ReplicaSlices = WHOLE,
        broken: BrokenRecords | None = None,
    ) -> tf.data.Dataset:
        """The same as `trainer.dataset.spec.Batch`es, which tell positions and records, too.

        With `augment_on="device"` they hold the pictures as they are sent to the device, for
        `augmentation.device`. Of each come those `slices` that are asked for. `broken` notes
        damaged records for the caller, who counts them; None to allow `skip_broken` of them.
        """
        from trainer.reader import pipeline

        start_step = operator.index(start_step)
        if start_step < 0:
            raise UserError(argument="start_step", received=str(start_step), expected="at least 0")
        return pipeline.training_batches(self, start_step, slices, broken)


@dataclasses.dataclass(frozen=True, repr=False)
class EvaluationData:
    """One pass over a split, each record once; made by `Data.evaluation`.

    A notebook shows what a batch is made of, the classes, and the first pictures as stored.

    Attributes:
        subset: What is read.
        read_options: How.
        model_inputs: What a model is fed with.
        batch_size: Global batch.
        functions: What `map` was given, in its order.
    """

    subset: Subset
    read_options: ReadOptions
    model_inputs: ModelInputs
    batch_size: int
    functions: tuple[MapFunction, ...] = ()

    def __repr__(self) -> str:
        return one_line(self, facts_of(self))

    def _repr_html_(self) -> str:
        """For notebooks: what a batch is made of, the classes, the first pictures as stored."""
        return html_of_batches(self, facts_of(self) | {"batches": f"{self.steps:,}"})

    @property
    def num_records(self) -> int:
        """Records, each of which counts once."""
        return self.subset.num_records

    @property
    def steps(self) -> int:
        """Batches, the last one perhaps a short one."""
        return -(-self.num_records // self.batch_size)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the labels."""
        return self.subset.classes

    def map(self, function: MapFunction) -> EvaluationData:
        """The same pass with another content, as `TrainingData.map` changes a stream.

        The function may be called with a share of a batch, as large as one replica's, and the last
        batch may be a short one.
        """
        _check_function(function)
        return dataclasses.replace(self, functions=(*self.functions, function))

    @property
    def gives_weights(self) -> bool:
        """Whether `dataset()` gives (inputs, label, sample_weight), else (inputs, label)."""
        return self.subset.dataset.weight_feature is not None

    @property
    def weighs(self) -> bool:
        """As of `TrainingData`."""
        return self.gives_weights or not self.functions

    @names_arguments(data="path")
    def dataset(self) -> tf.data.Dataset:
        """The pass, in `steps` batches, the last of which has the records that are left.

        Keras shares each batch among the replicas of a model's strategy, and fails where one of
        them gets nothing. So where this machine has several GPUs (or logical CPUs), or in the scope
        of a strategy, the last two batches together are cut elsewhere if need be. No cut helps
        where `batch_size` is larger than the split, or hardly larger than the number of replicas.

        Returns:
            A dataset of (inputs, label), or of (inputs, label, sample_weight) where
            `gives_weights`, as `TrainingData.dataset` gives it, of known cardinality. Keras's loss
            and metrics count every record exactly once, on any number of replicas.
        """
        import tensorflow as tf

        from trainer.reader.order import shareable_size

        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas == 1:
            replicas = max(len(tf.config.list_logical_devices(kind)) for kind in ("GPU", "CPU"))
        batches, full = _for_keras(self.batches(), self.gives_weights), self.batch_size
        rest = self.num_records - (self.steps - 1) * full
        last = shareable_size(rest, full, replicas) if self.steps > 1 else rest
        # Sequences are as long as the longest of their batch, so two batches may not fit together.
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
        """The same as `trainer.dataset.spec.Batch`es; of each those `slices` that are asked for.

        `broken` notes damaged records for the caller, who counts them; None to allow none.
        """
        from trainer.reader import pipeline

        return pipeline.evaluation_batches(self, slices, broken)

    def as_numpy(self) -> Iterator[tuple[Any, ...]]:
        """The batches of `dataset()` as NumPy arrays."""
        return iter(self.dataset().as_numpy_iterator())


def open_data(
    config: ReadConfig, dataset: DatasetSpec | None = None, output: str | None = None
) -> tuple[TrainingData, EvaluationData | None]:
    """Opens what is trained on and what is validated on, and checks both.

    Args:
        config: What is read.
        dataset: An open dataset with its targets; None to open that of `config`.
        output: Folder of a run, where decoded pictures may lie.

    Raises:
        UserError: The dataset is incomplete, or does not hold what is asked for.
    """
    if dataset is None:
        dataset = with_target(open_dataset(config), config.target, config.target_kind)
    training = train_split(dataset, config.train_split)
    validation = validation_split(dataset, config.validation_split)
    inputs = wanted_inputs(config, dataset)
    if not config.skip_broken:
        check_shards(dataset, [training] + ([validation] if validation else []))
    options = read_options(config, output)
    train = TrainingData(
        select(config, with_sample_weight(dataset, config.sample_weight), training, training=True),
        options,
        inputs,
        config.batch_size,
        config.seed,
        config.augment,
        config.augment_on,
        config.skip_broken,
    )
    refuse_missing_inputs(train.subset, inputs.features)
    if config.augment == "strong" and inputs.boxes is not None:
        warnings.warn(
            "the augmentation strong leaves out MixUp and CutMix here: no layer can mix the "
            "bounding boxes of two pictures",
            stacklevel=4,  # the line that calls `Data.train`
        )
    if validation is None:
        return train, None
    subset = select(config, dataset, validation)
    refuse_missing_inputs(subset, inputs.features)
    return train, EvaluationData(subset, options, inputs, config.batch_size)


def _check_function(function: object) -> None:
    """Refuses what `map` cannot call."""
    if not callable(function):
        raise UserError(
            argument="map",
            received=repr(function),
            expected="a function (inputs, label) -> (inputs, label)",
        )


def _part(process_index: int, process_count: int) -> Callable[..., Tensors]:
    """A function of whole batches that takes the part of one process."""
    import tensorflow as tf

    def part(values: tf.Tensor | None) -> tf.Tensor | None:
        if values is None:
            return None
        share = values.shape[0] // process_count
        return values[process_index * share : (process_index + 1) * share]

    return lambda *batch: tf.nest.map_structure(part, batch)


def _for_keras(
    batches: tf.data.Dataset,
    gives_weights: bool,
    change: Callable[[Batch], Batch] | None = None,
) -> tf.data.Dataset:
    """Batches → what `TrainingData.dataset` gives, after `change`."""
    import tensorflow as tf

    # Who has Keras loaded is about to feed it; others have no such order.
    keras = sys.modules.get("keras")
    if keras is not None and (order := keras.config.image_data_format()) != CHANNELS_LAST:
        sentence = (
            f"Keras's image_data_format is {order!r}, but pictures are [height, width, channels]: "
            f"{CHANNELS_REMEDY}"
        )
        warnings.warn(sentence, stacklevel=4)  # of the line that calls `dataset`

    # As in the reader, no function has branches for AutoGraph to convert, which takes seconds.
    @tf.autograph.experimental.do_not_convert
    def as_keras(batch: Batch) -> Tensors:
        batch = batch if change is None else change(batch)
        inputs, label = input_of(batch), batch.get("label")
        # Keras's `fit` refuses `class_weight` beside weights, even where all of them are 1.
        if gives_weights:
            return inputs, label, batch["weight"]
        return inputs if label is None else (inputs, label)

    return batches.map(as_keras)
