"""How a batch of serialized records is parsed: picture, label, and further inputs of a model.

TensorFlow is imported when a parser is made, not before: flags are checked first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.dataset.spec import DataSet, FeatureSpec, ModelInputs, input_name


@dataclasses.dataclass(frozen=True)
class Parsed:
    """One batch of parsed records.

    Attributes:
        encoded: string [b], the JPEG; a black one for a placeholder (an empty record in place
            of a broken one).
        label: int64 [b], class ids of the data set; 0 for a placeholder.
        present: bool [b], False for a placeholder.
        inputs: The model's further inputs by `input_name`; 0 or empty for a placeholder.
    """

    encoded: Any
    label: Any
    present: Any
    inputs: Mapping[str, Any]


def batch_parser(dataset: DataSet, inputs: ModelInputs) -> Callable[..., Parsed]:
    """A function of a batch of serialized records, for `tf.data.Dataset.map`.

    It takes string [b] and, of joined data sets, which of them each record is of, int64 [b].

    Args:
        dataset: What the records hold.
        inputs: What the model is fed with. A sequence is padded with 0 to the batch's longest,
            or padded and cut to `inputs.sequence_length`, or stays ragged.
    """
    import tensorflow as tf

    pictures = role_features(dataset, lambda part: part.image_feature)
    labels = role_features(dataset, lambda part: part.label_feature)
    features = {**pictures, **labels, **inputs.features}
    image_names = [one.image_feature for one in dataset.parts or (dataset,)]
    if len(pictures) == 1:
        image_names = list(pictures)
    spec = parsing_spec(features)

    def batched(values: Any) -> Any:
        if not isinstance(values, tf.RaggedTensor) or inputs.sequences == "ragged":
            return values
        return values.to_tensor(shape=[None, inputs.sequence_length])

    def parse(serialized: Any, part: Any = None) -> Parsed:
        black = dict.fromkeys(pictures, _black_jpeg(dataset))
        filled, present = fill_empty(serialized, features, black)
        values = tf.io.parse_example(filled, spec)
        encoded = _pick([_scalars(values[name], "") for name in image_names], part)
        # A record whose picture is empty must not pass for a placeholder.
        check = tf.debugging.Assert(
            tf.reduce_all(tf.strings.length(encoded) > 0), ["A record has an empty picture."]
        )
        with tf.control_dependencies([check] if check is not None else []):
            encoded = tf.identity(encoded)
        return Parsed(
            encoded,
            checked_labels(dataset, values, present, part),
            present,
            {input_name(name): batched(values[name]) for name in inputs.features},
        )

    return parse


def role_features(dataset: DataSet, name_of: Callable[[DataSet], str]) -> dict[str, FeatureSpec]:
    """The features that hold the picture, or the label: of joined data sets perhaps several.

    They have a variable length where not every record has them.
    """
    parts = dataset.parts or (dataset,)
    found = {}
    for owner in parts:
        name = name_of(owner)
        same = all(part.features.get(name) == owner.features[name] for part in parts)
        found[name] = (
            owner.features[name] if same else FeatureSpec(owner.features[name].dtype, None)
        )
    return found


def parsing_spec(features: Mapping[str, FeatureSpec]) -> dict[str, Any]:
    """What `tf.io.parse_example` has to be told to find `features`.

    A feature of variable length becomes a RaggedTensor, and is empty where it is missing; a
    fixed one that is missing is an error.
    """
    import tensorflow as tf

    return {
        name: tf.io.RaggedFeature(spec.dtype)
        if spec.shape is None
        else tf.io.FixedLenFeature(spec.shape, spec.dtype)
        for name, spec in features.items()
    }


def fill_empty(
    serialized: Any, features: Mapping[str, FeatureSpec], values: Mapping[str, bytes]
) -> tuple[Any, Any]:
    """Replaces placeholders by a record that can be parsed.

    Args:
        serialized: string [b].
        features: What the replacement holds: zeros, or empty texts and sequences.
        values: What some texts are instead.

    Returns:
        (string [b], bool [b]: False for a placeholder).
    """
    import tensorflow as tf

    present = tf.strings.length(serialized) > 0
    empty = _empty_example(features, values)
    # `tf.where` copies every record, so it runs only where there is a placeholder.
    filled = tf.cond(
        tf.reduce_all(present),
        lambda: serialized,
        lambda: tf.where(present, serialized, empty),
    )
    return filled, present


def checked_labels(
    dataset: DataSet, values: Mapping[str, Any], present: Any, part: Any = None
) -> Any:
    """Labels as the records have them → class ids of the data set, checked.

    Args:
        dataset: Says what is subtracted, and how many classes there are; of joined data sets each
            does so for its own records, and numbers the classes itself.
        values: The parsed features of `role_features`, int64 [b]; or string [b], the class names
            themselves.
        present: bool [b]; the others get 0.
        part: int64 [b], which of joined data sets each record is of; None for a single one.

    Returns:
        int64 [b]. In the graph, an id outside the classes raises
        `tf.errors.InvalidArgumentError`.
    """
    import tensorflow as tf

    parts = dataset.parts or (dataset,)
    ids = [_class_ids(one, values[one.label_feature]) for one in parts]
    inside = [(i >= 0) & (i < len(one.classes)) for i, one in zip(ids, parts, strict=True)]
    labels, in_range = _pick(ids, part), _pick(inside, part) | ~present
    labels = tf.where(present, labels, tf.zeros_like(labels))
    check = tf.debugging.Assert(
        tf.reduce_all(in_range),
        [
            f"Label outside the {len(dataset.classes)} classes (label offset "
            f"{dataset.label_offset}):",
            tf.boolean_mask(labels, ~in_range),
        ],
    )
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(labels)


def _class_ids(dataset: DataSet, raw: Any) -> Any:
    """Labels of one data set → class ids, not checked; -1 for a name that is no class."""
    import tensorflow as tf

    if dataset.features[dataset.label_feature].dtype == "string":
        names = _scalars(raw, "")
        same = tf.equal(names[:, tf.newaxis], tf.constant(dataset.classes)[tf.newaxis, :])
        return tf.where(tf.reduce_any(same, 1), tf.argmax(same, 1), -1)
    return _scalars(raw, dataset.label_offset - 1) - dataset.label_offset


def _scalars(values: Any, default: Any) -> Any:
    """The only value of each record, of a feature of variable length; `default` without one."""
    import tensorflow as tf

    if not isinstance(values, tf.RaggedTensor):
        return values
    return values.to_tensor(tf.constant(default, values.dtype), shape=[None, 1])[:, 0]


def _pick(columns: Sequence[Any], part: Any) -> Any:
    """Of each record the value in the column of its data set."""
    import tensorflow as tf

    if len(columns) == 1:
        return columns[0]
    places = tf.range(tf.size(part, tf.int64))
    return tf.gather_nd(tf.stack(columns), tf.stack([part, places], 1))


def _black_jpeg(dataset: DataSet) -> bytes:
    import tensorflow as tf

    image = dataset.image
    with tf.init_scope():
        black = tf.zeros((*(image.size or (16, 16)), image.channels), tf.uint8)
        return bytes(tf.io.encode_jpeg(black).numpy())


def _empty_example(features: Mapping[str, FeatureSpec], values: Mapping[str, bytes]) -> bytes:
    import tensorflow as tf

    def feature(name: str, spec: FeatureSpec) -> Any:
        size = 0 if spec.shape is None else math.prod(spec.shape)
        if spec.dtype == "string":
            texts = tf.train.BytesList(value=[values.get(name, b"")] * max(size, name in values))
            return tf.train.Feature(bytes_list=texts)
        if spec.dtype == "int64":
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[0] * size))
        return tf.train.Feature(float_list=tf.train.FloatList(value=[0.0] * size))

    named = {name: feature(name, spec) for name, spec in features.items()}
    return bytes(tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString())
