"""Descriptions of the batches to read: an endless stream for training, and one pass for evaluation.

A description never changes and holds no state of the reader. Only the creation of a
`tf.data.Dataset` imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

from imageshards.errors import Arg, UserError, names_arguments
from imageshards.text import counted
from trainer.augment.augmentation import (
    Augmentation,
    AugmentFunction,
    MapFunction,
    check_strengths,
    make_augmentation,
)
from trainer.config import ReadConfig, uneven_batch
from trainer.dataset.manifest import check_shards, train_split, validation_split
from trainer.dataset.notebook import one_line
from trainer.dataset.open import open_dataset, read_options, wanted_inputs
from trainer.dataset.spec import (
    BOXES,
    IMAGE_INPUT,
    WHOLE,
    Batch,
    DatasetSpec,
    MeanStd,
    ModelInputs,
    ReadOptions,
    ReplicaSlices,
    Split,
    Subset,
    Tensors,
    balancing_weights,
    input_of,
)
from trainer.dataset.subset import mean_and_std, refuse_missing_inputs, refuse_overlap, select
from trainer.dataset.target import target_name, with_sample_weight, with_target
from trainer.imports import CHANNELS_LAST, CHANNELS_REMEDY
from trainer.strengths import NO_MIXING, NONE, Augment

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.reader.broken_records import BrokenRecords
    from trainer.reader.plan import Order


@dataclasses.dataclass(frozen=True, repr=False)
class SplitData:
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
class TrainingData(SplitData):
    """An endless stream of training batches, which `Data.train` returns.

    The batch of step k depends on the dataset and these attributes alone, so
    `dataset(start_step=k)` equals `dataset().skip(k)` but starts immediately.

    Attributes:
        seed: Seed of the order and of the augmentation.
        augment: The strengths of the augmentation, or a function.
        augment_on: `host` or `device`; `auto` until the devices are known.
        skip_broken: How many damaged records the reader may leave out.
    """

    seed: int
    augment: Augment | AugmentFunction
    augment_on: str
    skip_broken: int = 0

    def __repr__(self) -> str:
        augment, name = self.augment, str(self.augment)
        if not isinstance(augment, Augment):
            name = getattr(augment, "__name__", type(augment).__name__)
        return one_line(self, {"augment": name, "steps per epoch": f"{self.steps_per_epoch:,}"})

    @property
    def steps_per_epoch(self) -> int:
        """Returns the number of full batches in one pass; leftover records open the next pass."""
        return self.num_records // self.batch_size

    @property
    def num_outputs(self) -> int:
        """Returns how many numbers a model outputs for a picture: a logit per class or k values."""
        return self.subset.num_outputs

    @property
    def target_mean_std(self) -> MeanStd | dict[str, MeanStd] | None:
        """Returns the mean and the standard deviation (`std`) of each value of the target.

        Several targets give a dictionary by name; a target that is not made of numbers gives None.
        A model that ends in `keras.layers.Rescaling(std, mean)` learns quantities of any unit.
        """
        if not (outputs := self.subset.dataset.outputs):
            return self.subset.target_mean_std
        found = {name: mean_and_std(self.subset, one) for name, one in outputs.items()}
        return {name: one for name, one in found.items() if one is not None}

    @property
    def mixes(self) -> bool:
        """Returns whether pairs are mixed: there is no mean of two texts, values or boxes."""
        alone = len(self.model_inputs.names) == 1 and not self.subset.dataset.outputs
        asked = isinstance(self.augment, Augment) and self.augment.mixes
        return asked and alone and self.subset.dataset.has_classes

    @property
    def box_classes(self) -> tuple[str, ...]:
        """Returns the names of the boxes' labels; none if records hold ids, or no boxes."""
        boxes = self.model_inputs.boxes
        return boxes.classes if boxes is not None else ()

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
    def class_weight(self) -> dict[int, float] | None:
        """Returns for each label the weight that gives all classes the same total weight.

        Use the weights for `ims.fit`, a loss or another estimator. Keras's own `fit` refuses
        `class_weight` if `gives_weights`. Returns None if the target is not a single class, if
        `balance` is set, or if the records of each class were not counted.
        """
        counts = self.subset.class_counts
        dataset = self.subset.dataset
        one = dataset.target == "class" and not dataset.outputs
        if counts is None or self.subset.balance != "none" or not one:
            return None
        return dict(enumerate(balancing_weights(counts)))

    @property
    def gives_weights(self) -> bool:
        return super().gives_weights or self.skip_broken > 0

    @property
    def identity(self) -> dict[str, Any]:
        """Returns all that decides the contents of a step, as JSON values by names of arguments.

        The number of replicas and options of speed are absent. A function appears as its name and
        the hash of its source.

        Raises:
            UserError: The source of a function cannot be read.
        """
        from trainer.augment.user_function import identity_of
        from trainer.reader.plan import ORDER_VERSION

        subset, inputs, augment = self.subset, self.model_inputs, self.augment
        numbers: dict[str, Any] | str | None = None
        if not isinstance(augment, Augment):
            numbers = identity_of("augment", augment)
        elif augment != NONE:
            numbers = augment.as_json()
        crops = isinstance(numbers, dict) and self.augment_on == "host"
        found: dict[str, Any] = {
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
            "augment": numbers,
            "augment_on": self.augment_on if numbers is not None else None,
            # The cache changes pixels: without it JPEGs are decoded at a smaller scale.
            "cache": "pixels" if crops and self.read_options.cache == "pixels" else None,
        }
        # These keys exist only if a run needs them, so runs of older versions still resume.
        if inputs.boxes is not None:
            found["min_box_visibility"] = inputs.boxes.min_visibility
        if self.functions:
            found["map"] = [identity_of("map", function) for function in self.functions]
        return found

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Returns (height, width, channels) of a picture, before the functions of `map`."""
        if callable(self.augment):  # decides the shape of what it returns
            inputs = dataclasses.replace(self, functions=()).batches().element_spec["inputs"]
            return tuple(inputs[IMAGE_INPUT].shape[1:])
        return (*self.model_inputs.size, self.model_inputs.image.channels)

    @functools.cached_property
    def order(self) -> Order:
        """Returns the order of the records, which is the same for all numbers of replicas."""
        from trainer.reader.order import training_order

        return training_order(self.subset, self.batch_size, self.seed)

    @functools.cached_property
    def augmentation(self) -> Augmentation:
        """Returns the functions of the augmentation, each for the host or for the device."""
        inputs = self.model_inputs
        image, size = inputs.image, inputs.size
        if not isinstance(self.augment, Augment):
            from trainer.augment.user_function import function_augmentation
            from trainer.dataset.parse import label_spec

            return function_augmentation(
                self.augment,
                image=image,
                size=size,
                seed=self.seed,
                labels=label_spec(self.subset.dataset, inputs, self.num_outputs, self.batch_size),
                batch_size=self.batch_size,
            )
        boxes = pairs = None
        if self.mixes:
            from trainer.augment.pixels import Pairs

            pairs = Pairs(self.num_outputs, self.order.pair_distance)
        if self.augment_on == "device" and inputs.boxes is not None:
            from trainer.augment.boxes import box_finisher

            boxes = box_finisher(self.subset.dataset, inputs.boxes, inputs.sequence_length)
        return make_augmentation(
            self.augment,
            self.augment_on,
            image=image,
            size=size,
            seed=self.seed,
            pairs=pairs,
            boxes=boxes,
        )

    def check_pairs(self, shares: int, noun: str = "replica") -> None:
        """Refuses a number of shares of a batch (one for each `noun`) that cannot mix pairs."""
        from trainer.reader.plan import has_pairs

        # The functions of `map` take whole batches, which are divided later.
        shares, size = 1 if self.functions else shares, self.batch_size
        if not self.mixes or has_pairs(size, shares):
            return
        count = max(1, round(size / (2 * shares)))
        sizes = (2 * shares * n for n in (count, count + 1))
        works = next((f"for example {n}, or " for n in sizes if has_pairs(n, shares)), "")
        raise UserError(
            argument="batch_size",
            received=f"{size} with {counted(shares, noun)}, whose share cannot be mixed in pairs",
            expected=works + NO_MIXING,
        )

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
        if self.batch_size % process_count:
            raise uneven_batch(self.batch_size, process_count, "process")
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
        """Returns the stream as `trainer.dataset.spec.Batch`es, which know positions and records.

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
class EvaluationData(SplitData):
    """One pass over a split with each record once, which `Data.evaluation` returns."""

    def __repr__(self) -> str:
        return one_line(self, {})

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
        """Returns the pass as `trainer.dataset.spec.Batch`es, in the parts that `slices` names.

        `broken` notes damaged records, which the caller counts; None to allow no damaged record.
        """
        from trainer.reader import pipeline

        return pipeline.evaluation_batches(self, slices, broken)


def open_data(
    config: ReadConfig, dataset: DatasetSpec | None = None, output: str | None = None
) -> tuple[TrainingData, EvaluationData | None]:
    """Opens the training and the validation split of `config`; the latter is None if absent.

    `dataset` is an open dataset with its targets; None opens the dataset of `config`. `output` is
    the folder of a run, which may hold the cache of decoded pictures. An incomplete dataset is
    refused, and so is a missing split, class, input or target.
    """
    if dataset is None:
        dataset = with_target(open_dataset(config), config.target, config.target_kind)
    training = train_split(dataset, config.train_split)
    validation = validation_split(dataset, config.validation_split)
    inputs, augment = wanted_inputs(config, dataset), Augment.of(config.augment)
    if not config.skip_broken:
        check_shards(dataset, [training])
    # `sample_weight` weighs the training alone: the validation counts every record once.
    train = TrainingData(
        select(config, with_sample_weight(dataset, config.sample_weight), training, training=True),
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
    if validation is None:
        return train, None
    evaluation = evaluation_data(config, dataset, validation, inputs, output)
    if not config.allow_overlap:
        refuse_overlap(train.subset, evaluation.subset)
    return train, evaluation


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
