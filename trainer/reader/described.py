"""Describes what a split gives: which records, as which inputs, in batches of which size.

A description never changes, holds no state of the reader, and loads no TensorFlow.
`trainer.reader.batches` adds the batches.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from imageshards.errors import UserError
from imageshards.text import counted
from trainer.augment.augmentation import (
    Augmentation,
    AugmentFunction,
    MapFunction,
    make_augmentation,
)
from trainer.dataset.spec import (
    MeanStd,
    ModelInputs,
    ReadOptions,
    described_target,
    shown_size,
)
from trainer.dataset.subset import Subset, balancing_weights, mean_and_std
from trainer.dataset.target import target_name
from trainer.strengths import NO_MIXING, NONE, Augment

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.reader.plan import Order


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
        facts = {}
        if not subset.classes or subset.dataset.outputs:
            facts["target"] = described_target(subset.dataset)
        facts |= {"batch size": f"{self.batch_size:,}", "pictures": shown_size(inputs.size)}
        if len(inputs.names) > 1:
            facts["further inputs"] = ", ".join(inputs.names[1:])
        shown += [f"{name} {value}" for name, value in (facts | dict(self.facts)).items()]
        where = f"{subset.dataset.data!r} {subset.split.name}"
        return f"<imageshards {type(self).__name__} {where}: {', '.join(shown)}>"

    @property
    def facts(self) -> Mapping[str, str]:
        """Further facts for the `repr`."""
        return {}

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
class DescribedTraining(DescribedSplit):
    """The endless stream of a training; `TrainingData` describes the attributes."""

    seed: int
    augment: Augment | AugmentFunction
    augment_on: str
    skip_broken: int = 0

    @property
    def facts(self) -> Mapping[str, str]:
        augment, name = self.augment, str(self.augment)
        if not isinstance(augment, Augment):
            name = getattr(augment, "__name__", type(augment).__name__)
        return {"augment": name, "steps per epoch": f"{self.steps_per_epoch:,}"}

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
