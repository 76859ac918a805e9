"""The batches of a training, an endless stream; and the data of a run, opened by its options."""

from __future__ import annotations

import dataclasses
import functools
import operator
import warnings
from typing import TYPE_CHECKING, Any

from imageshards.errors import Arg, UserError, names_arguments
from imageshards.manifest import TRAIN_NAMES
from imageshards.text import counted
from trainer.augment.augmentation import (
    Augmentation,
    AugmentFunction,
    MapFunction,
    check_strengths,
    make_augmentation,
)
from trainer.config import ReadConfig, refuse_uneven
from trainer.dataset.batch import WHOLE, ReplicaSlices
from trainer.dataset.manifest import check_shards, load_manifest, needed_split, validation_split
from trainer.dataset.open import read_options, wanted_inputs
from trainer.dataset.spec import BOXES, IMAGE_INPUT, DatasetSpec, MeanStd, ModelInputs
from trainer.dataset.subset import (
    balancing_weights,
    mean_and_std,
    refuse_missing_inputs,
    refuse_overlap,
    select,
)
from trainer.dataset.target import target_name, with_sample_weight, with_target
from trainer.reader.described import DescribedSplit, EvaluationData, evaluation_data, for_keras
from trainer.strengths import NO_MIXING, NONE, Augment

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.reader.broken_records import BrokenRecords
    from trainer.reader.plan import Order


@dataclasses.dataclass(frozen=True, repr=False)
class TrainingData(DescribedSplit):
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
            return for_keras(batches, self.gives_weights, self.augmentation.device)
        # The user's functions take whole batches; each process takes its part of the result.
        whole = for_keras(self.batches(start_step), self.gives_weights)
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


def open_data(
    config: ReadConfig, output: str | None = None
) -> tuple[TrainingData, EvaluationData | None]:
    """Opens the training and the validation split of `config`; the latter is None if absent.

    `output` is the folder of a run, which may hold the cache of decoded pictures. An incomplete
    dataset is refused, and so is a missing split, class, input or target.
    """
    dataset = with_target(
        load_manifest(config.data, config.records_root), config.target, config.target_kind
    )
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
    augment = Augment.of(config.augment)
    split = needed_split(dataset, "train_split", config.train_split, TRAIN_NAMES)
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
