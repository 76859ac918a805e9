"""Types of the trainer's data: a dataset, the subset that is read, what a model is fed with."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from imageshards.errors import UserError
from imageshards.manifest import (
    FILENAME_FEATURE,
    IMAGE_FEATURE,
    LABEL_FEATURE,
    Image,
    Manifest,
)
from imageshards.manifest import FeatureSpec as FeatureSpec
from imageshards.page import number
from imageshards.text import counted

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.dataset.pieces import Pieces

_NO_MANIFEST = Manifest(
    format_version=1, splits={}, classes=[], features={}, image=Image(size=None, mode="none"),
    listed=0, rejects={}, fingerprint="",
)  # fmt: skip
# The picture's name among a model's inputs.
IMAGE_INPUT = "image"
# The four sides of a record's boxes and their labels, as one input or target.
BOXES = "bounding_boxes"
# The dataset's own label among the targets.
OWN_LABEL = "label"

# What the reader makes and a model is trained on: `inputs` (`image` uint8 [B, height, width,
# channels], `bounding_boxes`, and further features by their `input_name`), `label` (of a class
# int64 [B], or float32 [B, classes] after MixUp; of labels float32 [B, classes], 1 where a record
# has one; of values float32 [B] or [B, k]; of boxes `BoxesOf`; of several targets these by name;
# left out where there is no target), `weight` float32 [B], `position` int64 [B] (index in the
# endless training stream), `record` int64 [B] (number within the split) and `present` bool [B]
# (false for a broken record, and for what fills up the last batch of an evaluation). A function of
# the user's (`TrainingData.map`) puts `mapped` in the place of `inputs`.
Batch = dict[str, Any]

# Bounding boxes of a batch, as Keras's layers take them: `boxes` float32 [B, most, 4], xmin, ymin,
# xmax, ymax relative to the picture; `labels` int64 [B, most]. Both are -1 behind the last box.
BoxesOf: TypeAlias = "dict[str, tf.Tensor]"

# The label of a batch: a tensor; or tensors by name, as of boxes and of several targets.
Labels: TypeAlias = "tf.Tensor | dict[str, Labels]"

# Tensors in any structure that `tf.nest` knows, and what is known of such before they are there.
Tensors: TypeAlias = "tf.Tensor | Sequence[Tensors] | Mapping[str, Tensors] | None"
Specs: TypeAlias = "tf.TypeSpec | Sequence[Specs] | Mapping[str, Specs] | None"

_Input = TypeVar("_Input")


def input_of(batch: Batch) -> Tensors:
    """What a model is called with for a batch."""
    return batch["mapped"] if "mapped" in batch else model_input(batch["inputs"])


def model_input(inputs: Mapping[str, _Input]) -> _Input | dict[str, _Input]:
    """What a model is called with: a lone picture, or all inputs by name."""
    return inputs[IMAGE_INPUT] if set(inputs) == {IMAGE_INPUT} else dict(inputs)


@dataclasses.dataclass(frozen=True)
class ReplicaSlices:
    """In how many equal slices a batch is made: one for each replica, so that nobody has to cut it.

    Attributes:
        replicas: Of each host.
        hosts: That share a batch.
        host: Whose slices are made, one after the other.
    """

    replicas: int = 1
    hosts: int = 1
    host: int = 0


# A batch in one slice.
WHOLE = ReplicaSlices()


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file.

    Attributes:
        path: Of this machine, `gs://` or `s3://`.
        num_records: How many it holds.
        num_bytes: Its size on disk.
        classes: Records per class name; None where they are not counted.
    """

    path: str
    num_records: int
    num_bytes: int
    classes: Mapping[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class Split:
    """One split, its shards in the manifest's order.

    Record number `i` of a split is counted over its shards in this order, from 0.
    """

    name: str
    shards: tuple[Shard, ...]

    @property
    def num_records(self) -> int:
        """Records in all shards."""
        return sum(shard.num_records for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Size of all shards on disk."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def starts(self) -> tuple[int, ...]:
        """The number of every shard's first record within the split."""
        counts = (shard.num_records for shard in self.shards)
        return tuple(itertools.accumulate(counts, initial=0))[:-1]


@dataclasses.dataclass(frozen=True)
class ImageSpec:
    """What the pictures of a dataset look like.

    Attributes:
        size: (height, width) in pixels, or None where it is not known; for the resize mode
            `shortest` the shortest side, twice.
        varies: Whether pictures may have other sizes than `size`.
        channels: 3 (RGB) or 1 (grey).
        mean, std: One number per channel, of pixels scaled to 0..1.
        options: How the pictures were made, as the manifest says; None where that is not known.
        formats: The formats of the encoded pictures, some of `imageshards.jpeg.FORMATS`.
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
        """Whether every picture is a JPEG, of which a part can be decoded alone."""
        return {*self.formats} <= {"JPEG"}


def find_feature(
    name: str, features: Mapping[str, FeatureSpec], argument: str, received: str | None = None
) -> FeatureSpec:
    """Returns the feature of this name, which `argument` received, or received as a part."""
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
    """A dataset.

    Attributes:
        data: As `--data` named it.
        splits: By name.
        classes: Names of the classes or labels, in the order of the ids; none of values, nor where
            records have no label.
        image: Its pictures.
        features: Every feature of a record, by its name in the records.
        image_feature, label_feature: Which of them hold the picture and the target; the latter is
            empty where records have no label.
        hot_features: Which of them hold a 0 or 1 for each of `classes`, in their order, in place of
            `label_feature`, which then names them all; empty where that holds ids or names.
        filename_feature: Which one names the source file; None where none does.
        label_offset: Subtracted from the label in a record to get the class id.
        target: What the label is: `class`, one of several; `labels`, any number of them; `values`;
            `boxes`; or `none`.
        label_values: What stands in the records for each of `classes`, in rising order, where that
            is a column's own numbers or texts; empty where it is ids, or the names themselves.
        column: The `--target`; None for the dataset's own label.
        weight_feature: The number that each record weighs; None where all weigh 1.
        fingerprint: Changes whenever the records, or what is known of them, change.
        adopted: Whether others wrote its records, and `imageshards adopt` its manifest.
        manifest: What was read and checked when it was opened.
        outputs: Where several targets are asked for, by the name of each the dataset with that
            target as its label; the attributes above describe the first target.
    """

    data: str
    splits: Mapping[str, Split]
    classes: tuple[str, ...]
    image: ImageSpec
    features: Mapping[str, FeatureSpec]
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
    manifest: Manifest = dataclasses.field(default=_NO_MANIFEST, repr=False, compare=False)
    hot_features: tuple[str, ...] = ()
    outputs: Mapping[str, DatasetSpec] = dataclasses.field(default_factory=dict)

    @property
    def targets(self) -> tuple[DatasetSpec, ...]:
        """The dataset with each of its targets as the label."""
        return tuple(self.outputs.values()) or (self,)

    @property
    def has_classes(self) -> bool:
        """Whether the label is a class, or labels."""
        return self.target in ("class", "labels")

    @property
    def label_features(self) -> tuple[str, ...]:
        """The features that a record's target is read from, besides boxes."""
        if self.outputs:
            names = (name for one in self.targets for name in one.label_features)
            return tuple(dict.fromkeys(names))
        if self.target in ("boxes", "none"):
            return ()
        return self.hot_features or (self.label_feature,)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Of the values of a record: (k,), or () for one number; () for a class, and for labels."""
        return (self.features[self.label_feature].shape or ()) if self.target == "values" else ()

    @property
    def num_outputs(self) -> int:
        """How many numbers a model gives: a logit for each class, or k values."""
        return len(self.classes) or math.prod(self.target_shape)


class MeanStd(NamedTuple):
    """The mean and the standard deviation of each value of a target, in the unit of its column."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Subset:
    """The records of a split that are read, and how often.

    Attributes:
        dataset: The dataset of `split`.
        split: The whole split, as it lies on disk.
        classes: The model's classes, in the order of its outputs.
        class_ids: Where only some classes are read: for each of `classes` its id in the
            dataset; None where all are, under their own ids.
        filters: What every record has to pass, as `--where` gives it.
        num_records: Records in one pass (an epoch), copies included.
        class_counts: Records per class, copies not counted; None where they are not counted.
        balance: How classes are balanced: by `weights` in the loss, or by `sampling`, which repeats
            records of rare classes, so that every class comes max(class_counts) times in each pass;
            `none`.
        record_classes: For each record of the split its class of the model, -1 where it is not
            read: NumPy int32 [records]; None where every record is read once.
        missing_target: How many records pass `filters`, but are not read as their target, values,
            is missing (NaN, or null in the index).
    """

    dataset: DatasetSpec
    split: Split
    classes: tuple[str, ...]
    class_ids: tuple[int, ...] | None
    filters: tuple[str, ...]
    num_records: int
    class_counts: tuple[int, ...] | None
    balance: str = "none"
    record_classes: Any = dataclasses.field(default=None, repr=False, compare=False)
    missing_target: int = 0

    @functools.cached_property
    def pieces(self) -> Pieces:
        """Those of the whole split, read from the index when they are first asked for."""
        from trainer.dataset.pieces import Pieces, record_sizes

        return Pieces.cut(record_sizes(self.dataset, self.split))

    @functools.cached_property
    def target_mean_std(self) -> MeanStd | None:
        """Of the target's values in the records that are read; None where it is no values."""
        from trainer.dataset.subset import mean_and_std

        return mean_and_std(self, self.dataset)

    @property
    def num_outputs(self) -> int:
        """How many numbers a model of it gives: a logit for each class, or k values."""
        return len(self.classes) or self.dataset.num_outputs

    @property
    def class_weights(self) -> tuple[float, ...] | None:
        """One weight in the loss for each class; None where all weigh 1."""
        if self.balance != "weights" or self.class_counts is None:
            return None
        return balancing_weights(self.class_counts)


def balancing_weights(counts: Sequence[float]) -> tuple[float, ...]:
    """For each class N / (K * n_c), with N records in K classes, n_c of them in c.

    A class without records keeps 1: there is nothing to weigh.
    """
    present = sum(1 for n in counts if n)
    return tuple(sum(counts) / (present * n) if n else 1.0 for n in counts)


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """How shards are read. Nothing here changes which records are read.

    Attributes:
        threads: Of the reader's own pool.
        cache: `none`, or `pixels`: pictures are decoded once.
        cache_folder: Local folder for them.
    """

    threads: int
    cache: str = "none"
    cache_folder: str | None = None


@dataclasses.dataclass(frozen=True)
class Boxes:
    """How the bounding boxes of a record become an input or a target.

    Attributes:
        label_feature: Feature with the label of each box; None where every label is 0.
        classes: Names of the labels, in the order of their ids; empty where records hold ids.
        min_visibility: Share of its area, 0 to 1, that must be left of a box after crop, flip and
            rotation; other boxes are dropped with their labels.
        is_input: Whether the model is fed with them; otherwise they are a target.
    """

    label_feature: str | None
    classes: tuple[str, ...] = ()
    min_visibility: float = 0.1
    is_input: bool = True


@dataclasses.dataclass(frozen=True)
class ModelInputs:
    """What a model is fed with.

    Attributes:
        size: (height, width) of the pictures it sees, in pixels.
        image: Channels, mean and standard deviation.
        features: Inputs besides the picture, by their name in the records.
        sequence_length: To which features of variable length are padded, or cut; None for a
            batch's longest.
        eval_crop: Share of each side that is kept around the centre, before resizing, of
            pictures that are evaluated or served.
        boxes: How bounding boxes are read; None where they are not.
    """

    size: tuple[int, int]
    image: ImageSpec
    features: Mapping[str, FeatureSpec] = dataclasses.field(default_factory=dict)
    sequence_length: int | None = None
    eval_crop: float = 1.0
    boxes: Boxes | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs as `--inputs` gives them: `image` and the others."""
        has_boxes = self.boxes is not None and self.boxes.is_input
        return IMAGE_INPUT, *self.features, *[BOXES] * has_boxes


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """What must be known to use a saved model: kept inside its `.keras` file.

    Attributes:
        classes: In the order of the logits; none of values.
        inputs: What it is fed with.
        image_feature, label_feature: Names in the records it was trained on.
        fingerprint: Of the dataset it was trained on.
        training: The training run's configuration, as JSON values.
        step: Training steps behind it.
        compiled: Whether it is a user's compiled model, which brings its own loss and metrics.
        target: What it finds, as `DatasetSpec.target`.
        target_shape: As `DatasetSpec.target_shape`.
        column: The `--target` it was trained with; None for the dataset's own label.
        target_mean_std: What the loss of values was divided by, and the model's last layer gives
            them their unit with; None of other targets, and of a compiled model.
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
        """How many numbers the model gives for a picture."""
        return len(self.classes) or math.prod(self.target_shape)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the outputs."""
        return self.classes or value_names(self.label_feature, self.target_shape)


def input_name(feature: str) -> str:
    """The name of a feature as an input of a model: Keras allows no `/` there."""
    return feature.replace("/", "_")


_KINDS = {
    "class": "a class",
    "labels": "any number of labels",
    "boxes": "bounding boxes",
    "none": "nothing",
}


def describe(target: DatasetSpec | ModelCard) -> str:
    """The kind of a target for people, such as `3 numbers` or `a class`."""
    if target.target == "values":
        return counted(target.num_outputs, "number")
    return _KINDS[target.target]


def described_target(dataset: DatasetSpec) -> str:
    """The target of a dataset for people, or all of several."""
    if dataset.outputs:
        return ", ".join(f"{name} ({describe(one)})" for name, one in dataset.outputs.items())
    return ", ".join(filter(None, [dataset.label_feature, describe(dataset)]))


def describe_scale(mean_std: MeanStd) -> str:
    """Mean and deviation of values for people."""
    mean, std = (", ".join([*map(number, one[:3]), *["…"] * (len(one) > 3)]) for one in mean_std)
    return f"mean {mean} and deviation {std} in training"


def value_names(column: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """What the values of a column are called: `price`, or `box[0]`, `box[1]`, … of a list."""
    return tuple(f"{column}[{i}]" for i in range(math.prod(shape))) if shape else (column,)
