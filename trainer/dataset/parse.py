"""How a batch of serialized records is parsed: picture, label, and further inputs of a model.

TensorFlow is imported when a parser is made, not before: flags are checked first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imageshards.example import encode_example
from trainer.dataset.spec import DataSet, FeatureSpec, ModelInputs, input_name


@dataclasses.dataclass(frozen=True)
class Parsed:
    """One batch of parsed records.

    Attributes:
        encoded: string [b], the JPEG; a black one for a placeholder (an empty record in place
            of a broken one). None where records hold none.
        label: Class ids of the data set, int64 [b]; labels, float32 [b, classes], 1 where a record
            has one; or values, float32 [b] or [b, k]. 0 for a placeholder.
        weight: float32 [b], what each record weighs; 0 for a placeholder.
        present: bool [b], False for a placeholder.
        inputs: The model's further inputs by `input_name`; 0 or empty for a placeholder.
    """

    encoded: Any
    label: Any
    weight: Any
    present: Any
    inputs: Mapping[str, Any]


def batch_parser(
    dataset: DataSet, inputs: ModelInputs, with_picture: bool = True
) -> Callable[..., Parsed]:
    """A function of a batch of serialized records, for `tf.data.Dataset.map`.

    Args:
        dataset: What the records hold.
        inputs: What the model is fed with. A sequence is padded with 0 to the batch's longest,
            or padded and cut to `inputs.sequence_length`.
        with_picture: Whether the records hold their pictures.
    """
    import tensorflow as tf

    roles = [*[dataset.image_feature] * with_picture, *dataset.label_features]
    roles += [dataset.weight_feature] if dataset.weight_feature else []
    features = {name: dataset.features[name] for name in roles} | dict(inputs.features)
    # A feature of variable length becomes a RaggedTensor, and is empty where it is missing; a fixed
    # one that is missing is an error.
    spec = {
        name: tf.io.RaggedFeature(one.dtype)
        if one.shape is None
        else tf.io.FixedLenFeature(one.shape, one.dtype)
        for name, one in features.items()
    }
    empty = _empty_example(dataset, features)

    def batched(values: Any) -> Any:
        is_ragged = isinstance(values, tf.RaggedTensor)
        return values.to_tensor(shape=[None, inputs.sequence_length]) if is_ragged else values

    def parse(serialized: Any) -> Parsed:
        present = tf.strings.length(serialized) > 0
        # `tf.where` copies every record, so it runs only where there is a placeholder.
        filled = tf.cond(
            tf.reduce_all(present),
            lambda: serialized,
            lambda: tf.where(present, serialized, empty),
        )
        values = tf.io.parse_example(filled, spec)
        encoded, weight = None, tf.cast(present, "float32")
        if with_picture:
            raw = values[dataset.image_feature]
            # One whose picture is empty must not pass for a placeholder.
            encoded = _checked(raw, tf.strings.length(raw) > 0, ["A record has an empty picture."])
        if dataset.weight_feature:
            raw = tf.cast(values[dataset.weight_feature], "float32")
            weight = _checked(raw, tf.math.is_finite(raw) & (raw >= 0), ["A weight is wrong."])
        return Parsed(
            encoded,
            _labels(dataset, [values[name] for name in dataset.label_features], present),
            weight,
            present,
            {input_name(name): batched(values[name]) for name in inputs.features},
        )

    return parse


def _checked(values: Any, good: Any, said: list[Any]) -> Any:
    """`values`; in the graph raises `tf.errors.InvalidArgumentError` where not all is `good`."""
    import tensorflow as tf

    check = tf.debugging.Assert(tf.reduce_all(good), said)
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(values)


def _labels(dataset: DataSet, found: Sequence[Any], present: Any) -> Any:
    """Labels as the records have them → as `Parsed` has them; 0 where not `present`."""
    import tensorflow as tf

    if dataset.hot_features:
        return _hot_labels(dataset, found, present)
    (raw,) = found
    if dataset.target == "values":
        return _checked(raw, tf.math.is_finite(raw), ["A value is no number."])
    if dataset.target == "class":
        return _class_ids(dataset, raw, present)
    ids = _class_ids(dataset, raw.values, tf.ones_like(raw.values, tf.bool))
    hot = tf.one_hot(ids, len(dataset.classes))
    # Equal ones of a record count once.
    return tf.minimum(tf.math.unsorted_segment_sum(hot, raw.value_rowids(), raw.nrows()), 1.0)


def _hot_labels(dataset: DataSet, found: Sequence[Any], present: Any) -> Any:
    """Labels that records have as a 0 or 1 for each class, in the graph checked."""
    import tensorflow as tf

    columns = [tf.reshape(one, [tf.size(present), math.prod(one.shape[1:])]) for one in found]
    hot = tf.concat([tf.cast(one, "float32") for one in columns], axis=1)
    good = tf.equal(hot, 0) | tf.equal(hot, 1)
    if dataset.target == "labels":
        return _checked(hot, good, ["A label is neither 0 nor 1."])
    good &= tf.equal(tf.reduce_sum(hot, 1), tf.cast(present, "float32"))[:, tf.newaxis]
    return _checked(tf.argmax(hot, 1), good, ["A record has not one class."])


def _class_ids(dataset: DataSet, raw: Any, present: Any) -> Any:
    """Labels as the records have them → class ids of the data set, checked; 0 where not `present`.

    In the graph, an id outside the classes raises `tf.errors.InvalidArgumentError`.
    """
    import tensorflow as tf

    known = dataset.label_values or (dataset.classes if raw.dtype == tf.string else ())
    if known:
        same = tf.equal(raw[:, tf.newaxis], tf.constant(known, raw.dtype)[tf.newaxis, :])
        ids = tf.where(tf.reduce_any(same, 1), tf.argmax(same, 1), -1)
    else:
        ids = raw - dataset.label_offset
    labels = tf.where(present, ids, tf.zeros_like(ids))
    in_range = (labels >= 0) & (labels < len(dataset.classes))
    count, first = len(dataset.classes), dataset.label_offset
    said = f"Label outside the {count} classes (label offset {first}):"
    return _checked(labels, in_range, [said, tf.boolean_mask(labels, ~in_range)])


def _empty_example(dataset: DataSet, features: Mapping[str, FeatureSpec]) -> bytes:
    """What a placeholder is parsed as: zeros, a black picture, empty texts and sequences."""
    import tensorflow as tf

    empty = {"string": b"", "int64": 0, "float32": 0.0}
    values: dict[str, Any] = {
        name: [empty[spec.dtype]] * (0 if spec.shape is None else math.prod(spec.shape))
        for name, spec in features.items()
    }
    image = dataset.image
    with tf.init_scope():
        black = tf.zeros((*(image.size or (16, 16)), image.channels), tf.uint8)
        values[dataset.image_feature] = [bytes(tf.io.encode_jpeg(black).numpy())]
    return encode_example(values)
