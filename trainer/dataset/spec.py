"""Types of the trainer's data: a dataset, the inputs of a model, and the card of a saved model."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from imageshards.errors import UserError
from imageshards.manifest import (
    FILENAME_FEATURE,
    IMAGE_FEATURE,
    LABEL_FEATURE,
    Image,
    Manifest,
    Shard,
)
from imageshards.manifest import FeatureSpec as FeatureSpec
from imageshards.page import number
from imageshards.text import counted

# Name of the model card inside a `.keras` file.
CARD_FILE = "imageshards.json"
# Name of the picture among a model's inputs.
IMAGE_INPUT = "image"
# Name of a record's boxes with their labels, as one input or target.
BOXES = "bounding_boxes"
# Name of the dataset's own label among the targets.
OWN_LABEL = "label"


@dataclasses.dataclass(frozen=True)
class Split:
    """A split, or several as one; records are numbered over all shards.

    Attributes:
        name: As the manifest has it; several names are separated by commas.
        shards: In the manifest's order.
        paths: Of the shards: local, `gs://` or `s3://`.
    """

    name: str
    shards: Sequence[Shard]
    paths: Sequence[str]

    @staticmethod
    def joined(splits: Sequence[Split]) -> Split:
        """Returns the shards of several splits as one split, whose records follow one another."""
        return Split(
            ",".join(split.name for split in splits),
            [shard for split in splits for shard in split.shards],
            [path for split in splits for path in split.paths],
        )

    @property
    def num_records(self) -> int:
        return sum(shard.num_records for shard in self.shards)

    @property
    def starts(self) -> tuple[int, ...]:
        """The number of each shard's first record within the split."""
        counts = (shard.num_records for shard in self.shards)
        return tuple(itertools.accumulate(counts, initial=0))[:-1]


@dataclasses.dataclass(frozen=True)
class ImageSpec:
    """The form of a dataset's pictures.

    Attributes:
        size: (height, width) in pixels, or None if it is not known. For the resize mode `shortest`,
            both are the shortest side.
        varies: Whether pictures may differ from `size`.
        channels: 3 (RGB) or 1 (grey).
        mean, std: A number for each channel, for pixels scaled to 0..1.
        options: How the pictures were made, from the manifest; None if it is not known.
        formats: Formats of the encoded pictures, among `imageshards.jpeg.FORMATS`.
    """

    size: tuple[int, int] | None
    varies: bool
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    options: Image | None = None
    formats: tuple[str, ...] = ("JPEG",)

    @property
    def is_jpeg(self) -> bool:
        """Whether every picture is a JPEG, so that a part of it can be decoded alone."""
        return {*self.formats} <= {"JPEG"}


def find_feature(
    name: str, features: Mapping[str, FeatureSpec], argument: str, received: str | None = None
) -> FeatureSpec:
    """Returns the feature called `name`; refuses an unknown name.

    `argument` received the name, or a text `received` that contains it.
    """
    if name in features:
        return features[name]
    near = difflib.get_close_matches(name, features, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    what = "which the records do not have" if received is None else f"but there is no {name!r}"
    raise UserError(
        argument=argument,
        received=f"{received or name!r}, {what}{hint}",
        expected=f"one of {', '.join(features)}",
    )


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """A dataset, with the target that was asked for.

    Attributes:
        data: The place of the dataset, as `--data` named it.
        splits: Splits by name.
        classes: Names of the classes or labels, in the order of their ids; empty for values, and if
            records have no label.
        image: The form of the pictures.
        features: Every feature of a record, by name.
        image_feature: Feature with the encoded picture.
        label_feature: Feature with the target; empty if records have no label.
        hot_features: Features with a 0 or 1 for each of `classes`, in their order. `label_feature`
            then lists their names. Empty if `label_feature` has ids or names.
        filename_feature: Feature with the name of the source file; None if there is none.
        label_offset: Number that is subtracted from a record's label to get the class id.
        target: Kind of the label: `class`, `labels` (any number), `values`, `boxes` or `none`.
        label_values: Values of the target's column for each of `classes`, in rising order. Empty if
            records have ids, or the names themselves.
        column: The `--target`; None for the dataset's own label.
        weight_feature: Feature with the weight of each record; None if all weigh 1.
        fingerprint: A hash that changes with the records and with their description.
        adopted: Whether `imageshards adopt` wrote the manifest, for records from elsewhere.
        manifest: The manifest, read and checked.
        outputs: For several targets, the dataset with each target as its label, by the target's
            name. The attributes above then describe the first target.
    """

    data: str
    splits: Mapping[str, Split]
    classes: tuple[str, ...]
    image: ImageSpec
    features: Mapping[str, FeatureSpec]
    manifest: Manifest = dataclasses.field(repr=False, compare=False)
    image_feature: str = IMAGE_FEATURE
    label_feature: str = LABEL_FEATURE
    filename_feature: str | None = FILENAME_FEATURE
    label_offset: int = 0
    target: str = "class"
    label_values: tuple[int, ...] | tuple[str, ...] = ()
    column: str | None = None
    weight_feature: str | None = None
    fingerprint: str = ""
    adopted: bool = False
    hot_features: tuple[str, ...] = ()
    outputs: Mapping[str, DatasetSpec] = dataclasses.field(default_factory=dict)

    @property
    def targets(self) -> tuple[DatasetSpec, ...]:
        """The dataset with each of its targets as the label."""
        return tuple(self.outputs.values()) or (self,)

    @property
    def has_classes(self) -> bool:
        """Whether the target is a class, or labels."""
        return self.target in ("class", "labels")

    @property
    def label_features(self) -> tuple[str, ...]:
        """The features from which a record's target is read, except for boxes."""
        if self.outputs:
            names = (name for one in self.targets for name in one.label_features)
            return tuple(dict.fromkeys(names))
        if self.target in ("boxes", "none"):
            return ()
        return self.hot_features or (self.label_feature,)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of a record's values: (k,), or () for a single number, a class and labels."""
        return (self.features[self.label_feature].shape or ()) if self.target == "values" else ()

    @property
    def num_outputs(self) -> int:
        """Number of a model's outputs: a logit for each class, or k values."""
        return len(self.classes) or math.prod(self.target_shape)

    def refused(self, why: str, expected: str = "", remedy: str = "") -> UserError:
        """Returns the error about the dataset; `why` follows its place."""
        received = f"{self.data!r}, {why}"
        return UserError(argument="data", received=received, expected=expected, remedy=remedy)


class MeanStd(NamedTuple):
    """Mean and standard deviation of each value of a target, in the unit of its column."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """How shards are read. No option changes which records are read.

    Attributes:
        threads: Number of threads of the reader.
        cache: `none`, or `pixels`: pictures are decoded once.
        cache_folder: Local folder for the decoded pictures.
    """

    threads: int
    cache: str = "none"
    cache_folder: str | None = None


@dataclasses.dataclass(frozen=True)
class Boxes:
    """How the bounding boxes of a record become an input or a target.

    Attributes:
        label_feature: Feature with the label of each box; None if every label is 0.
        classes: Names of the labels, in the order of their ids; empty if records have ids.
        min_visibility: Share of a box's area, 0 to 1, that must remain visible after crop, flip,
            rotation and erasing. Boxes with less are dropped with their labels.
        is_input: Whether boxes are an input of the model; otherwise they are a target.
    """

    label_feature: str | None
    classes: tuple[str, ...] = ()
    min_visibility: float = 0.1
    is_input: bool = True


@dataclasses.dataclass(frozen=True)
class ModelInputs:
    """The inputs of a model.

    Attributes:
        size: (height, width) of the model's pictures, in pixels.
        image: Channels, mean and standard deviation.
        features: Inputs besides the picture, by their name in the records.
        sequence_length: Length to which features of variable length are padded or cut; None for the
            longest of each batch.
        eval_crop: Share of each side that is kept around the centre, before resizing, when pictures
            are evaluated or served.
        boxes: How bounding boxes are read; None if they are not read.
    """

    size: tuple[int, int]
    image: ImageSpec
    features: Mapping[str, FeatureSpec] = dataclasses.field(default_factory=dict)
    sequence_length: int | None = None
    eval_crop: float = 1.0
    boxes: Boxes | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs, as `--inputs` gives them."""
        has_boxes = self.boxes is not None and self.boxes.is_input
        return IMAGE_INPUT, *self.features, *[BOXES] * has_boxes


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """The facts that are needed to use a saved model. The `.keras` file contains them.

    Attributes:
        classes: Names in the order of the logits; empty for values.
        inputs: The model's inputs.
        image_feature, label_feature: Names of both features in the records of the training.
        fingerprint: Fingerprint of the training dataset.
        training: Configuration of the training run, as JSON values.
        step: Number of training steps.
        compiled: Whether the user compiled the model, with a loss and metrics of the user's choice.
        target: Kind of the target, as `DatasetSpec.target`.
        target_shape: Shape of a record's values, as `DatasetSpec.target_shape`.
        column: The `--target` of the training; None for the dataset's own label.
        target_mean_std: Mean and deviation by which the loss of values was divided, and with which
            the model's last layer restores their unit. None for other targets and compiled models.
    """

    classes: tuple[str, ...]
    inputs: ModelInputs
    image_feature: str = IMAGE_FEATURE
    label_feature: str = LABEL_FEATURE
    fingerprint: str = ""
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step: int = 0
    compiled: bool = False
    target: str = "class"
    target_shape: tuple[int, ...] = ()
    column: str | None = None
    target_mean_std: MeanStd | None = None

    @property
    def num_outputs(self) -> int:
        """Number of the model's outputs for a picture."""
        return len(self.classes) or math.prod(self.target_shape)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model's outputs."""
        return self.classes or value_names(self.label_feature, self.target_shape)


def input_name(feature: str) -> str:
    """Returns the name of a feature as an input of a model."""
    # Keras allows no "/" in the name of an input.
    return feature.replace("/", "_")


_KINDS = {
    "class": "a class",
    "labels": "any number of labels",
    "boxes": "bounding boxes",
    "none": "nothing",
}


def describe(target: DatasetSpec | ModelCard) -> str:
    """Returns the kind of a target for people, for example `3 numbers` or `a class`."""
    if target.target == "values":
        return counted(target.num_outputs, "number")
    return _KINDS[target.target]


def described_target(dataset: DatasetSpec) -> str:
    """Returns the target of a dataset, or all its targets, for people."""
    if dataset.outputs:
        return ", ".join(f"{name} ({describe(one)})" for name, one in dataset.outputs.items())
    return ", ".join(filter(None, [dataset.label_feature, describe(dataset)]))


def describe_scale(mean_std: MeanStd) -> str:
    """Returns the mean and deviation of values, for people."""
    mean, std = (", ".join([*map(number, one[:3]), *["…"] * (len(one) > 3)]) for one in mean_std)
    return f"mean {mean} and deviation {std} in training"


def value_names(column: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Returns the names of a column's values: `price`, or `box[0]`, `box[1]`, … for a list."""
    return tuple(f"{column}[{i}]" for i in range(math.prod(shape))) if shape else (column,)
