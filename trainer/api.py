"""What people import to read a dataset: `ims.open`, and what it gives.

    import imageshards as ims

    data = ims.open("shards/")
    train = data.train(batch_size=256, image_size=224, augment="light", seed=1)
    val = data.evaluation(batch_size=256, image_size=224)
    model.fit(train.dataset(), steps_per_epoch=train.steps_per_epoch, epochs=90,
              validation_data=val.dataset())

Everything is checked when `train` or `evaluation` is called, and TensorFlow is imported when they
are asked for a dataset.
"""

from __future__ import annotations

import dataclasses
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageshards.errors import Arg, UserError, names_arguments
from imageshards.index import read_index
from imageshards.manifest import TRAIN_NAMES
from imageshards.storage import place
from imageshards.text import counted
from trainer.augment.augmentation import AugmentFunction, check_pairs
from trainer.config import ReadConfig, parse_image_size
from trainer.dataset.boxes import check_sides
from trainer.dataset.manifest import check_shards, find_split, validation_split
from trainer.dataset.open import open_dataset, read_options, wanted_inputs
from trainer.dataset.spec import IMAGE_INPUT, OWN_LABEL, DatasetSpec, FeatureSpec
from trainer.dataset.subset import refuse_missing_inputs, select
from trainer.dataset.target import with_sample_weight, with_targets
from trainer.reader.batches import EvaluationData, TrainingData, open_data

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
    """Opens a dataset; `ims.open`.

    Neither TensorFlow nor a record is loaded.

    Args:
        path: Folder of a dataset as `imageshards build` writes it, or `imageshards adopt` for
            TFRecords that others wrote; local, `gs://` or `s3://`.
        skip_broken: How many damaged records may be left out of training; evaluation datasets stop
            at the first.
        records_root: Where the shards of an adopted dataset may lie besides its own folder: a
            folder, or a place in a store, and all below it.

    Raises:
        UserError: There is no dataset, or the arguments do not fit it.
    """
    config = ReadConfig(
        data=place("path", path),
        skip_broken=_whole_number("skip_broken", skip_broken),
        records_root=None if records_root is None else place("records_root", records_root),
    )
    return Data(config, open_dataset(config))


@dataclasses.dataclass(frozen=True, repr=False)
class Data:
    """A dataset; made by `ims.open`.

    A notebook shows its records by split, its classes with their counts, and its first pictures.

    Attributes:
        config: How it was opened.
        dataset: What is known of it.
    """

    config: ReadConfig
    dataset: DatasetSpec

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {count:,}" for name, count in self.splits.items())
        return (
            f"<imageshards {self.config.data!r}: {splits}; {counted(len(self.classes), 'class')}>"
        )

    def _repr_html_(self) -> str:
        """For notebooks: records by split, classes with their counts, the first pictures."""
        from trainer.dataset.notebook import counts_of, html_of, pixels

        dataset = self.dataset
        facts = {name: counted(count, "record") for name, count in self.splits.items()}
        facts["pictures"] = pixels(dataset.image.size) + " or others" * dataset.image.varies
        filled = [split for split in dataset.splits.values() if split.num_records]
        usual = [split for split in filled if split.name in TRAIN_NAMES]
        split = next(iter([*usual, *filled]), None)
        records = range(split.num_records if split else 0)
        return html_of(
            f"Data {self.config.data!r}", facts, [*self.splits], counts_of(dataset), dataset, split,
            records,
        )  # fmt: skip

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the labels."""
        return self.dataset.classes

    @property
    def splits(self) -> dict[str, int]:
        """Name of each split → its number of records."""
        return {name: split.num_records for name, split in self.dataset.splits.items()}

    @property
    def features(self) -> dict[str, FeatureSpec]:
        """Name of each feature of a record → its dtype and shape: what `inputs` may name."""
        return dict(self.dataset.features)

    def index(self, split: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """A row for each record: what it holds, and where it is. No record is read.

        Args:
            split: None for all.
            columns: None for all; see `imageshards.index`.

        Raises:
            UserError: The dataset has no index, or a damaged one, or no such split or column.
        """
        return read_index(self.dataset.data, self.dataset.manifest, split, columns, "path")

    @names_arguments(data="path")
    def source(
        self, split: str, *, features: Sequence[str] | None = None, decode: bool = False
    ) -> RecordSource:
        """The records of a split by their numbers, for PyTorch's `DataLoader`, grain and loops.

        Record `i` is the one of row `i` in `index(split)`. It is a dict of features: a single
        number is a NumPy scalar, a single text `bytes`; several are an array of the feature's
        shape, of variable length too, texts as objects (`bytes`). Neither TensorFlow nor Beam is
        loaded.

        Args:
            split: One of the splits.
            features: Names among `Data.features`; None for all.
            decode: Whether the picture is decoded, by Pillow: `image`, uint8 [height, width,
                channels], in place of the feature with its bytes (`image/encoded`).

        Raises:
            UserError: There is no such split or feature, no index, or a shard is missing.
        """
        from trainer.dataset.source import RecordSource

        found = find_split(self.dataset, "split", split)
        check_shards(self.dataset, [found])
        return RecordSource(
            self.dataset, found, None if features is None else _names("features", features), decode
        )

    @names_arguments(data="path", train_split="split")
    def train(
        self,
        *,
        batch_size: int,
        image_size: ImageSize | None = None,
        augment: str | AugmentFunction = "light",
        seed: int = 0,
        split: str | None = None,
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
        """Describes an endless stream of batches to train on.

        Args:
            batch_size: Global: the sum over all replicas.
            image_size: Side in pixels, or (height, width); None for the dataset's own.
            augment: `none`, `light` (random-resized crop and flip), `strong` (also rotation,
                colour, noise, erasing, MixUp and CutMix: labels become float32 [batch, classes]
                where only the picture is asked for), or a function (images, labels, seeds) →
                (images, labels): see `trainer.augment.user_function`.
            seed: Of the order and the augmentation; 0 to 2**31 - 1.
            split: None for `train` or `training`.
            target: `label`, the dataset's own; or a feature to find in its place: a float, or k of
                them (labels are these values, float32 [batch] or [batch, k]; records that lack one,
                NaN, are left out and counted in `subset.missing_target`), a whole number or a text
                (a class), or a list of these of variable length (any number of labels: float32
                [batch, classes], 1 where a record has one), or `bounding_boxes`. A list of these
                gives several labels by name; None gives inputs alone.
            target_kind: `class` where the whole numbers of `target` are classes, also more than 20
                of them, or not numbered from 0; None to refuse these, as quantities are floats.
            sample_weight: Feature, one number, that a record weighs; None for 1.
            classes: Only records of these, numbered in this order; None for all.
            where: Conditions such as `image/width>=128`; a record has to pass all.
            balance: `weights`: every class weighs the same, by `sample_weight`; `sampling`:
                every class is read equally often; `none`.
            inputs: What the model is fed with: `image`, names among `Data.features`, and
                `bounding_boxes`, the boxes of a record with their labels, which follow the pixels.
            min_box_visibility: Least share of its area that is left of a box after crop, flip and
                rotation; others are dropped with their labels.
            sequence_length: To which features of variable length are padded or cut; None for a
                batch's longest.
            cache: `pixels` keeps the pictures decoded once; `none`.
            cache_folder: For them, in memory below `/dev/shm`; None for one in the user's
                own cache folder.
            threads: Of the reader; None for one per core.
            augment_on: `host`; or `device`, where `ims.fit` augments inside the step. `dataset()`
                makes the same pictures on the host then, more slowly.

        Raises:
            UserError: The dataset does not hold that, or an argument is wrong.
        """
        asked = {**locals()}  # the arguments
        if not isinstance(augment, str) and not callable(augment):
            raise UserError(
                argument="augment",
                received=repr(augment),
                expected="'none', 'light', 'strong', or a function (images, labels, seeds) -> "
                "(images, labels)",
            )
        if augment_on == "auto":
            raise UserError(argument="augment_on", received="'auto'", expected="'host' or 'device'")
        if augment_on == "device" and callable(augment):
            raise UserError(
                argument="augment_on",
                received="'device' with a function as "
                + Arg("augment")
                + ", which runs on the host",
                expected="'host'",
                remedy="leave " + Arg("augment_on") + " out",
            )
        asked["augment"] = augment if isinstance(augment, str) else "none"
        config = self._config(asked, train_split=split, validation_split="none")
        described, _ = open_data(config, with_targets(self.dataset, target, target_kind))
        check_pairs(config.augment, config.batch_size, 1, described.mixes)
        boxes = described.model_inputs.boxes
        if callable(augment):
            check_sides(described.model_inputs, augment)
        if callable(augment) and boxes is not None and boxes.is_input:
            raise UserError(
                argument="augment",
                received="a function together with the input bounding_boxes, which the function "
                "is not given",
                expected="'none', 'light' or 'strong', or " + Arg("target", "bounding_boxes"),
            )
        return dataclasses.replace(described, augment=augment)

    @names_arguments(data="path", validation_split="split")
    def evaluation(
        self,
        *,
        batch_size: int,
        image_size: ImageSize | None = None,
        eval_crop: float = 1.0,
        split: str | None = None,
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
        """Describes one pass over a split, each record once.

        What is not told here is as for `train`.

        Args:
            batch_size: Global: the sum over all replicas.
            image_size: Side in pixels, or (height, width); None for the dataset's own.
            eval_crop: Share of each side that is kept around the centre, before resizing: 0.875
                as published ImageNet figures are measured.
            split: None for `validation`, `val` or `valid`, the first there is.

        Raises:
            UserError: The dataset does not hold that, or an argument is wrong.
        """
        config = self._config({**locals()}, validation_split=split, augment="none")
        found = validation_split(self.dataset, None if split == "none" else split)
        if found is None:
            raise UserError(
                argument="split",
                received=f"{split!r}, and {config.data!r} has no split with records that is called "
                "validation, val or valid",
                expected=f"one of {', '.join(self.splits)}",
            )
        dataset = with_targets(self.dataset, target, target_kind)
        dataset = with_sample_weight(dataset, sample_weight)
        model_inputs = wanted_inputs(config, dataset)
        if not config.skip_broken:
            check_shards(dataset, [found])
        subset = select(config, dataset, found)
        refuse_missing_inputs(subset, model_inputs.features)
        return EvaluationData(subset, read_options(config), model_inputs, config.batch_size)

    def _config(self, asked: dict[str, Any], **splits: str | None) -> ReadConfig:
        """How the dataset was opened, and the arguments of a method by the names of `ReadConfig`.

        A method calls its split `split`, so `splits` has the other name.
        """
        others = ("self", "split", "target", "target_kind")
        asked = {name: one for name, one in asked.items() if name not in others}
        return with_arguments(self.config, asked | splits)


def with_arguments(config: ReadConfig, asked: Mapping[str, Any]) -> ReadConfig:
    """`config` with other values, as people give them to a function.

    Raises:
        UserError: A value is of another type, or outside of its limits.
    """
    values = dict(asked)
    for name in ("batch_size", "seed", "sequence_length", "skip_broken", "threads"):
        if name in values:
            values[name] = _whole_number(name, values[name])
    for name in ("classes", "where", "inputs"):
        if values.get(name) is not None:
            values[name] = _names(name, values[name])
    if "image_size" in values:
        values["image_size"] = _image_size(values["image_size"])
    return dataclasses.replace(config, **values)


def _whole_number(name: str, value: object) -> Any:
    """`value` as an int; None stays."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise UserError(argument=name, received=repr(value), expected="a whole number")
    return int(value)


def _names(name: str, value: str | Iterable[str]) -> tuple[str, ...]:
    # A text would be taken for a list of its letters.
    values = (value,) if isinstance(value, str) else tuple(value)
    wrong = [one for one in values if not isinstance(one, str)]
    if wrong:
        raise UserError(argument=name, received=f"{wrong[0]!r} among {values!r}", expected="texts")
    return values


def _image_size(value: ImageSize | None) -> tuple[int, int] | None:
    if value is None:
        return None
    sides = [value] if isinstance(value, str | int) else list(value)
    return parse_image_size("x".join(str(side) for side in sides))
