"""Reads a dataset from Python: `ims.open` and the `Data` that it returns.

    import imageshards as ims

    data = ims.open("shards/")
    train = data.train(batch_size=256, image_size=224, augment="light", seed=1)
    val = data.evaluation(batch_size=256, image_size=224)
    model.fit(train.dataset(), steps_per_epoch=train.steps_per_epoch, epochs=90,
              validation_data=val.dataset())

`Data.train` and `Data.evaluation` check all arguments; only `dataset()` imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from imageshards.errors import Arg, UserError, names_arguments
from imageshards.index import read_index
from imageshards.manifest import VALIDATION_NAMES
from imageshards.storage import place
from imageshards.text import counted
from trainer.augment.augmentation import AugmentFunction
from trainer.config import ReadConfig, parse_image_size
from trainer.dataset.manifest import (
    check_shards,
    load_manifest,
    named_split,
    needed_split,
)
from trainer.dataset.open import check_sides, wanted_inputs
from trainer.dataset.spec import (
    BOXES,
    IMAGE_INPUT,
    OWN_LABEL,
    DatasetSpec,
    FeatureSpec,
)
from trainer.dataset.target import with_sample_weight, with_targets
from trainer.reader.batches import TrainingData, training_data
from trainer.reader.described import EvaluationData, evaluation_data
from trainer.strengths import NONE, Augment

if TYPE_CHECKING:
    import pyarrow as pa

    from trainer.dataset.source import RecordSource

ImageSize = int | str | Sequence[int]


@names_arguments(data="path")
def open(
    path: str | os.PathLike[str],
    *,
    skip_broken: int = 0,
    records_root: str | os.PathLike[str] | None = None,
) -> Data:
    """Opens a dataset, as `ims.open`. Loads neither TensorFlow nor a record.

    Args:
        path: Folder of a dataset that `imageshards build` wrote, or `imageshards adopt` described;
            local, `gs://` or `s3://`.
        skip_broken: Number of damaged records that training may leave out. Datasets of
            `Data.evaluation` stop at the first damaged record.
        records_root: Folder, or place in a store, below which the shards of an adopted dataset may
            also lie, besides the dataset's folder.

    Raises:
        UserError: There is no dataset at `path`, or an argument is wrong.
    """
    config = ReadConfig(
        data=place("path", path),
        skip_broken=skip_broken,
        records_root=None if records_root is None else place("records_root", records_root),
    )
    return Data(config, load_manifest(config.data, config.records_root))


@dataclasses.dataclass(frozen=True, repr=False)
class Data:
    """A dataset that `ims.open` has opened.

    Attributes:
        config: The options with which the dataset was opened.
        dataset: The checked content of its manifest.
    """

    config: ReadConfig
    dataset: DatasetSpec

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {count:,}" for name, count in self.splits.items())
        return (
            f"<imageshards {self.config.data!r}: {splits}; {counted(len(self.classes), 'class')}>"
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the class ids."""
        return self.dataset.classes

    @property
    def splits(self) -> dict[str, int]:
        """Number of records of each split, by the split's name."""
        return {name: split.num_records for name, split in self.dataset.splits.items()}

    @property
    def features(self) -> dict[str, FeatureSpec]:
        """Dtype and shape of each feature of a record, by name; `inputs` takes these names."""
        return dict(self.dataset.features)

    def index(
        self, split: str | Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Returns a table with a row for each record: its columns and its place. Reads no record.

        Args:
            split: Name of a split, or several in a list; None for all splits.
            columns: Names of columns, see `imageshards.index`; None for all columns.

        Raises:
            UserError: The index is missing or damaged, or a split or column does not exist.
        """
        columns = None if columns is None else _listed("columns", columns)
        data, manifest = self.dataset.data, self.dataset.manifest
        return read_index(data, manifest, splits_text(split), columns, "path")

    @names_arguments(data="path")
    def source(
        self,
        split: str | Sequence[str],
        *,
        features: Sequence[str] | None = None,
        decode: bool = False,
    ) -> RecordSource:
        """Returns the records of a split by number, for PyTorch's `DataLoader`, grain and loops.

        Record `i` belongs to row `i` of `index(split)`. It is a dict from feature names to values.
        A single number is a NumPy scalar, a single text is `bytes`. Several values are an array of
        the feature's shape, also if the length varies; texts in an array are `bytes` objects.
        Neither TensorFlow nor Beam is loaded.

        Args:
            split: Name of a split, or several in a list.
            features: Names among `Data.features`; None for all.
            decode: Whether Pillow decodes the picture. The record then has `image`, uint8 [height,
                width, channels], instead of the feature with the encoded bytes (`image/encoded`).

        Raises:
            UserError: The split or a feature does not exist, or the index or a shard is missing.
        """
        from trainer.dataset.source import RecordSource

        found = named_split(self.dataset, "split", splits_text(split) or "")
        check_shards(self.dataset, [found])
        return RecordSource(
            self.dataset, found, None if features is None else _listed("features", features), decode
        )

    @names_arguments(data="path", train_split="split")
    def train(
        self,
        *,
        batch_size: int,
        image_size: ImageSize | None = None,
        augment: str | Augment | AugmentFunction = "light",
        seed: int = 0,
        split: str | Sequence[str] | None = None,
        target: str | Sequence[str] | None = OWN_LABEL,
        target_kind: str | None = None,
        sample_weight: str | None = None,
        classes: Sequence[str] | None = None,
        where: Sequence[str] = (),
        balance: str = "none",
        inputs: Sequence[str] = (IMAGE_INPUT,),
        min_box_visibility: float = 0.1,
        sequence_length: int | None = None,
        cache: str = "none",
        cache_folder: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        augment_on: str = "host",
    ) -> TrainingData:
        """Describes an endless stream of batches for training.

        The feature that `target` names decides the kind of the labels:

        - A float, or k floats, are regression values: float32 [batch] or [batch, k]. Records
          without a value (NaN) are left out and counted in `subset.missing_target`.
        - A whole number or a text is a class: int64 [batch].
        - A list of whole numbers or texts, of variable length, is any number of labels: float32
          [batch, classes], 1 for each label of the record.

        Args:
            batch_size: Global batch size, summed over all replicas.
            image_size: Side in pixels, or (height, width); None for the dataset's size.
            augment: `none`; `light` (random-resized crop and flip); `strong` (also rotation,
                colour, noise, erasing, MixUp and CutMix); numbers of your own, `ims.Augment`; or a
                function (images, labels, seeds) → (images, labels), see
                `trainer.augment.user_function`. MixUp and CutMix make labels float32 [batch,
                classes]; `strong` mixes only if the picture is the only input.
            seed: Seed of the order and the augmentation, 0 to 2**31 - 1.
            split: Name of a split, or several in a list, which are read as one; None for `train` or
                `training`. Their order does not matter.
            target: `label` for the dataset's own label, the name of a feature, or `bounding_boxes`.
                A list of these gives several labels by name. None gives inputs alone.
            target_kind: `class` if the whole numbers of `target` are classes. None refuses more
                than 20 numbers, and numbers that do not count from 0: declare quantities as floats.
            sample_weight: Name of the feature with each record's weight, one number; None for 1.
            classes: Names of the classes to read, numbered in this order; None for all.
            where: Conditions like `image/width>=128`; a record must pass all of them.
            balance: `weights` gives every class the same total weight, through `sample_weight`;
                `sampling` reads every class equally often; `none`.
            inputs: Inputs of the model: `image`, names among `Data.features`, and `bounding_boxes`
                (boxes with labels, moved along with the pixels).
            min_box_visibility: Smallest share of a box's area that must remain visible after crop,
                flip, rotation and erasing. Boxes with less are dropped with their labels.
            sequence_length: Length to which features of variable length, and boxes, are padded or
                cut; None for the longest of each batch. Hidden boxes are dropped first.
            cache: `pixels` decodes every picture once and keeps the pixels; `none`.
            cache_folder: Local folder for the pixels, below `/dev/shm` to keep them in memory; None
                for a folder in the user's cache.
            threads: Threads of the reader; None for one per core.
            augment_on: `host`; or `device`, and `ims.fit` augments inside the training step.
                `dataset()` then makes the same pictures on the host, but more slowly.

        Raises:
            UserError: An argument is wrong, or does not fit the dataset.
        """
        function = _function_of(augment, augment_on)
        config = with_arguments(
            self.config, batch_size=batch_size, image_size=image_size, seed=seed,
            # A function replaces the built-in augmentation, so the configuration says "none".
            augment=NONE if function is not None else augment, augment_on=augment_on,
            train_split=splits_text(split), target_kind=target_kind, sample_weight=sample_weight,
            classes=classes, where=where, balance=balance, inputs=inputs,
            min_box_visibility=min_box_visibility, sequence_length=sequence_length, cache=cache,
            cache_folder=cache_folder, threads=threads,
        )  # fmt: skip
        dataset = self._with_targets(target, target_kind)
        described = training_data(config, dataset, wanted_inputs(config, dataset))
        described.check_pairs(1)
        if function is None:
            return described
        # The sides were checked for the augmentation "none".
        check_sides(described.model_inputs, function)
        if BOXES in described.model_inputs.names:
            raise UserError(
                argument="augment",
                received="a function with the input bounding_boxes, which it does not get",
                expected="'none', 'light' or 'strong', or " + Arg("target", "bounding_boxes"),
            )
        return dataclasses.replace(described, augment=function)

    @names_arguments(data="path", validation_split="split")
    def evaluation(
        self,
        *,
        batch_size: int,
        image_size: ImageSize | None = None,
        eval_crop: float = 1.0,
        split: str | Sequence[str] | None = None,
        target: str | Sequence[str] | None = OWN_LABEL,
        target_kind: str | None = None,
        sample_weight: str | None = None,
        classes: Sequence[str] | None = None,
        where: Sequence[str] = (),
        inputs: Sequence[str] = (IMAGE_INPUT,),
        min_box_visibility: float = 0.1,
        sequence_length: int | None = None,
        cache: str = "none",
        cache_folder: str | os.PathLike[str] | None = None,
        threads: int | None = None,
    ) -> EvaluationData:
        """Describes one pass over a split that reads each record once.

        The arguments that are not listed here are the same as for `train`.

        Args:
            batch_size: Global batch size, summed over all replicas.
            image_size: Side in pixels, or (height, width); None for the dataset's size.
            eval_crop: Share of each side that is kept around the centre before resizing. Published
                ImageNet figures use 0.875.
            split: Name of a split, or several in a list; None for the first of `validation`, `val`
                and `valid`.

        Raises:
            UserError: An argument is wrong, or does not fit the dataset.
        """
        config = with_arguments(
            self.config, batch_size=batch_size, image_size=image_size, eval_crop=eval_crop,
            augment=NONE, validation_split=splits_text(split), target_kind=target_kind,
            sample_weight=sample_weight, classes=classes, where=where, inputs=inputs,
            min_box_visibility=min_box_visibility, sequence_length=sequence_length, cache=cache,
            cache_folder=cache_folder, threads=threads,
        )  # fmt: skip
        found = needed_split(self.dataset, "split", config.validation_split, VALIDATION_NAMES)
        dataset = self._with_targets(target, target_kind)
        dataset = with_sample_weight(dataset, sample_weight)
        return evaluation_data(config, dataset, found, wanted_inputs(config, dataset))

    def _with_targets(self, target: Any, target_kind: str | None) -> DatasetSpec:
        if target is not None and not isinstance(target, str):
            target = _listed("target", target)
        return with_targets(self.dataset, target, target_kind)


def _function_of(augment: str | Augment | AugmentFunction, place: str) -> AugmentFunction | None:
    """Returns the function that augments, if any; refuses a `place` where it cannot run."""
    function = augment if callable(augment) and not isinstance(augment, type) else None
    if place == "auto":
        raise UserError(argument="augment_on", received="'auto'", expected="'host' or 'device'")
    if place == "device" and function is not None:
        raise UserError(
            argument="augment_on",
            received="'device' with a function, which runs on the host",
            expected="'host'",
            remedy="leave " + Arg("augment_on") + " out",
        )
    return function


def splits_text(split: str | Sequence[str] | None) -> str | None:
    """Returns the names of several splits as the command takes them; refuses all but texts."""
    return None if split is None else ",".join(_listed("split", split))


def with_arguments(config: ReadConfig, **values: Any) -> ReadConfig:
    """Returns `config` with values that a Python caller gave, converted to the right types.

    Raises:
        UserError: A value has the wrong type, or is out of range.
    """
    for name in ("classes", "where", "inputs"):
        if values.get(name) is not None:
            values[name] = _listed(name, values[name])
    if (size := values.get("image_size")) is not None:
        sides = _listed("image_size", size, (str, numbers.Integral), "a whole number or two")
        values["image_size"] = parse_image_size("x".join(map(str, sides)))
    return dataclasses.replace(config, **values)


def _listed(
    name: str, value: Any, kind: type | tuple[type, ...] = str, expected: str = "texts"
) -> tuple[Any, ...]:
    """Returns the items of a list, or a single item alone; refuses items of another kind."""
    # Bytes would be numbers. A set has no order, and the items of a dictionary are hardly meant.
    is_list = isinstance(value, Iterable) and not isinstance(value, bytes | Set | Mapping)
    with contextlib.suppress(TypeError):  # an array of NumPy may have no dimension
        found = (value,) if isinstance(value, kind) else tuple(value if is_list else [value])
        if all(isinstance(one, kind) for one in found):
            return found
    raise UserError(argument=name, received=repr(value), expected=f"{expected}, in a list")
