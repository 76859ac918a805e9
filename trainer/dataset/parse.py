"""Parses batches of serialized records: the picture, the label, and a model's further inputs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from imageshards.example import encode_example
from imageshards.manifest import BOX_FEATURES
from trainer.dataset.batch import BoxesOf, Specs
from trainer.dataset.spec import Boxes, DatasetSpec, FeatureSpec, ModelCard, ModelInputs, input_name

_HASHES = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Parsed:
    """A batch of parsed records, with placeholders: empty records in place of broken ones.

    Attributes:
        encoded: The JPEG, string [b]; a black picture for a placeholder. None without pictures.
        label: Class ids of the dataset, int64 [b]; labels, float32 [b, classes], 1 if a record has
            the label; or values, float32 [b] or [b, k]. 0 for a placeholder. For several targets a
            dictionary by name, without boxes; None without a target.
        weight: Weight of each record, float32 [b]; 0 for a placeholder.
        present: False for a placeholder, bool [b].
        inputs: The model's further inputs by `input_name`; 0 or empty for a placeholder.
        boxes: Boxes relative to the stored pictures, as `trainer.augment.boxes` takes them; None if
            no boxes are read.
    """

    encoded: Any
    label: Any
    weight: tf.Tensor
    present: tf.Tensor
    inputs: Mapping[str, tf.Tensor]
    boxes: BoxesOf | None = None


def label_spec(
    target: DatasetSpec | ModelCard, inputs: ModelInputs, num_outputs: int, size: int
) -> Specs:
    """Returns the `tf.TensorSpec` of the labels of a batch of `size`, before any augmentation.

    Several targets have a dictionary by name, and no target has None. `num_outputs` is the number
    of the model's outputs for the first target.
    """
    if isinstance(target, DatasetSpec) and target.outputs:
        counts = [num_outputs, *(one.num_outputs for one in target.targets[1:])]
        named = zip(target.outputs.items(), counts, strict=True)
        return {name: label_spec(one, inputs, count, size) for (name, one), count in named}
    if target.target == "none":
        return None
    if target.target == "boxes":
        most = inputs.sequence_length
        boxes = tf.TensorSpec([size, most, len(BOX_FEATURES)], tf.float32)
        return {"boxes": boxes, "labels": tf.TensorSpec([size, most], tf.int64)}
    if target.target == "class":
        return tf.TensorSpec([size], tf.int64)
    shape = target.target_shape if target.target == "values" else (num_outputs,)
    return tf.TensorSpec([size, *shape], tf.float32)


def batch_parser(
    dataset: DatasetSpec, inputs: ModelInputs, with_picture: bool = True
) -> Callable[..., Parsed]:
    """Returns a function that parses a batch of serialized records, for `tf.data.Dataset.map`.

    Args:
        dataset: The dataset of the records.
        inputs: The model's inputs. Sequences are padded to the longest of the batch, or padded and
            cut to `inputs.sequence_length`. Boxes are not cut, as hidden ones are dropped first.
        with_picture: Whether the records have their pictures.
    """
    features = _features(dataset, inputs, with_picture)
    # `RaggedFeature` makes a missing feature empty, but a missing `FixedLenFeature` is an error.
    spec = {
        name: tf.io.RaggedFeature(one.dtype)
        if one.shape is None
        else tf.io.FixedLenFeature(one.shape, one.dtype)
        for name, one in features.items()
    }
    empty = _empty_example(dataset, features)

    def batched(values: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        is_ragged = isinstance(values, tf.RaggedTensor)
        return values.to_tensor(shape=[None, inputs.sequence_length]) if is_ragged else values

    def parse(serialized: tf.Tensor) -> Parsed:
        present = tf.strings.length(serialized) > 0
        # `tf.where` copies every record, so it runs only if the batch has a placeholder.
        filled = tf.cond(
            tf.reduce_all(present), lambda: serialized, lambda: tf.where(present, serialized, empty)
        )
        values = tf.io.parse_example(filled, spec)
        encoded, weight = None, tf.cast(present, "float32")
        if with_picture:
            raw = values[dataset.image_feature]
            # A record with an empty picture must not be taken for a placeholder.
            said = f"it has no picture in {dataset.image_feature}"
            encoded = _checked(raw, tf.strings.length(raw) > 0, said)
        if dataset.weight_feature:
            raw = tf.cast(values[dataset.weight_feature], "float32")
            said = f"its weight {dataset.weight_feature} is no number of at least 0"
            weight = _checked(raw, tf.math.is_finite(raw) & (raw >= 0), said, raw)
        labels = {
            name: _labels(one, [values[feature] for feature in one.label_features], present)
            for name, one in (dataset.outputs or {"": dataset}).items()
            if one.label_features
        }
        return Parsed(
            encoded,
            labels if dataset.outputs else labels.get(""),
            weight,
            present,
            {input_name(name): batched(values[name]) for name in inputs.features},
            _boxes(values, inputs),
        )

    return parse


def _features(
    dataset: DatasetSpec, inputs: ModelInputs, with_picture: bool
) -> Mapping[str, FeatureSpec]:
    roles = [*[dataset.image_feature] * with_picture, *dataset.label_features]
    roles += [dataset.weight_feature] if dataset.weight_feature else []
    roles += box_features(inputs.boxes)
    return {name: dataset.features[name] for name in roles} | dict(inputs.features)


def _checked(
    values: tf.Tensor, good: tf.Tensor, said: str, of: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns `values`; the graph raises `tf.errors.InvalidArgumentError` if not all are `good`.

    `said` is the reason, without a full stop, and the wrong values `of` follow it:
    `trainer.reader.unreadable` shows both.
    """
    wrong = [] if of is None else [tf.boolean_mask(of, ~good)]
    # The values depend on the check, so that it runs before their use. Eagerly it is None.
    check = tf.debugging.Assert(tf.reduce_all(good), [said, *wrong])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(values)


def box_features(boxes: Boxes | None) -> list[str]:
    """Returns the features from which bounding boxes are read, if any."""
    if boxes is None:
        return []
    return [*BOX_FEATURES, *([boxes.label_feature] if boxes.label_feature is not None else [])]


def _boxes(values: Mapping[str, tf.RaggedTensor], inputs: ModelInputs) -> BoxesOf | None:
    """Returns boxes and their labels for `Parsed`, padded with NaN and 0 behind the last box."""
    boxes = inputs.boxes
    if boxes is None:
        return None
    found = [values[name] for name in box_features(boxes)]
    splits = [one.row_splits for one in found]
    same = [tf.reduce_all(tf.equal(splits[0], other)) for other in splits[1:]]
    # All five features are one list of boxes, so a record must have as many values of each.
    said = "its boxes have sides or labels of different numbers"
    first = _checked(splits[0], tf.reduce_all(same), said)
    xmin, xmax, ymin, ymax = (one.values for one in found[:4])
    labels = tf.zeros_like(xmin, tf.int64)
    if boxes.label_feature is not None:
        labels = found[4].values
        if boxes.classes:
            labels = _numbered(boxes.label_feature, labels, boxes.classes)
    corners = tf.RaggedTensor.from_row_splits(tf.stack([xmin, ymin, xmax, ymax], -1), first, False)
    labels = tf.RaggedTensor.from_row_splits(labels, first, False)
    padded = corners.to_tensor(math.nan, shape=[None, None, len(BOX_FEATURES)])
    # Each picture has at least the boxes to which they are cut, once hidden boxes are dropped.
    more = [[0, 0], [0, inputs.sequence_length or 0]]
    return {
        "boxes": tf.pad(padded, [*more, [0, 0]], constant_values=math.nan),
        "labels": tf.pad(labels.to_tensor(), more),
    }


def _labels(
    dataset: DatasetSpec, found: Sequence[tf.Tensor | tf.RaggedTensor], present: tf.Tensor
) -> tf.Tensor:
    """Converts the labels of records to the labels of `Parsed`; 0 if not `present`."""
    name = dataset.label_feature
    if dataset.hot_features:
        # Records store a 0 or 1 for each class.
        columns = [tf.reshape(one, [tf.size(present), math.prod(one.shape[1:])]) for one in found]
        hot = tf.concat([tf.cast(one, "float32") for one in columns], axis=1)
        good = tf.equal(hot, 0) | tf.equal(hot, 1)
        if dataset.target == "labels":
            return _checked(hot, good, f"its {name} are not 0 or 1", hot)
        good &= tf.equal(tf.reduce_sum(hot, 1), tf.cast(present, "float32"))[:, tf.newaxis]
        return _checked(tf.argmax(hot, 1), good, f"its {name} are not 0 or 1, and one 1", hot)
    (raw,) = found
    if dataset.target == "values":
        return _checked(raw, tf.math.is_finite(raw), f"its {name} is no number", raw)
    if dataset.target == "class":
        return _class_ids(dataset, raw, present)
    ids = _class_ids(dataset, raw.values, tf.ones_like(raw.values, tf.bool))
    hot = tf.one_hot(ids, len(dataset.classes))
    # A label that a record has twice counts once.
    return tf.minimum(tf.math.unsorted_segment_sum(hot, raw.value_rowids(), raw.nrows()), 1.0)


def _class_ids(dataset: DatasetSpec, raw: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
    """Converts labels of records to class ids, int64, and checks them; 0 if not `present`."""
    known = dataset.label_values or (dataset.classes if raw.dtype == tf.string else ())
    name, count, first = dataset.label_feature, len(dataset.classes), dataset.label_offset
    if known:
        return tf.where(present, _numbered(name, raw, known, present), 0)
    labels = tf.where(present, raw - first, tf.zeros_like(raw))
    said = f"its {name} is no class, {first} to {first + count - 1} (see label_offset)"
    return _checked(labels, (labels >= 0) & (labels < count), said, raw)


def _numbered(
    name: str, raw: tf.Tensor, known: Sequence[int | str], present: tf.Tensor | bool = True
) -> tf.Tensor:
    """Returns the places of values of a feature among the `known` values, int64.

    Values are checked if they are `present`.
    """

    # A binary search needs only constants. A lookup table would be a resource of each graph.
    def sortable(values: tf.Tensor, seed: int) -> tf.Tensor:
        is_text = values.dtype == tf.string
        return tf.strings.to_hash_bucket_strong(values, _HASHES, [seed, 0]) if is_text else values

    with tf.init_scope(), tf.device("CPU"):  # eagerly, also while a graph is being traced
        for seed in itertools.count():
            keys = sortable(tf.constant(known, raw.dtype), seed).numpy()
            keys, places = np.unique(keys, return_index=True)
            if len(keys) == len({*known}):  # Otherwise two texts have the same hash.
                break
    # `tf.searchsorted` refuses empty batches.
    sought = sortable(raw, seed)[tf.newaxis]
    found = tf.raw_ops.LowerBound(sorted_inputs=keys[np.newaxis], values=sought, out_type="int64")
    # Behind the last key, and between two keys, `found` leads to another value.
    found = tf.gather(places, tf.minimum(found[0], len(keys) - 1))
    is_known = tf.equal(tf.gather(tf.constant(known, raw.dtype), found), raw)
    is_known |= tf.logical_not(present)
    return _checked(found, is_known, f"its {name} is no class", raw)


def _empty_example(dataset: DatasetSpec, features: Mapping[str, FeatureSpec]) -> bytes:
    """Returns the record for a placeholder: zeros, a black picture, empty texts and lists."""
    empty = {"string": b"", "int64": 0, "float32": 0.0}
    values: dict[str, Any] = {
        name: [empty[spec.dtype]] * (0 if spec.shape is None else math.prod(spec.shape))
        for name, spec in features.items()
    }
    image = dataset.image
    # The picture is encoded eagerly, also while a graph is being traced.
    with tf.init_scope():
        black = tf.zeros((*(image.size or (16, 16)), image.channels), tf.uint8)
        values[dataset.image_feature] = [bytes(tf.io.encode_jpeg(black).numpy())]
    return encode_example(values)
