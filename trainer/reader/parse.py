"""The features of a record: which may feed a model, and how a batch of them is parsed.

Nothing here imports TensorFlow before it is asked to parse: flags are checked first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imageshards.errors import UserError
from trainer.dataset.filters import unknown_feature
from trainer.dataset.spec import DataSet, FeatureSpec, ModelInputs, input_name

IMAGE_INPUT = "image"


@dataclasses.dataclass(frozen=True)
class Parsed:
    """One batch of parsed records.

    Attributes:
        encoded: string [b], the JPEG; a black one where the record is an empty placeholder.
        label: int64 [b], class ids of the data set; 0 for a placeholder.
        present: bool [b], False for a placeholder.
        inputs: The model's further inputs by `input_name`; 0 or empty for a placeholder.
    """

    encoded: Any
    label: Any
    present: Any
    inputs: Mapping[str, Any]


def check_inputs(dataset: DataSet, names: Sequence[str]) -> Mapping[str, FeatureSpec]:
    """The features besides the picture that a model is to be fed with.

    Args:
        dataset: What they are features of.
        names: As `--inputs` gives them; `image` stands for the picture.

    Returns:
        Their specifications by name, in the order of `names`, without `image`.

    Raises:
        UserError: `image` is missing, a name is unknown, or no model can be fed with it.
    """
    received = f"--inputs received {','.join(names)!r}"
    if IMAGE_INPUT not in names:
        raise UserError(f"{received}; expected image, the picture, among the names.")
    inputs: dict[str, FeatureSpec] = {}
    for name in names:
        if name == IMAGE_INPUT:
            continue
        if name == dataset.image_feature:
            raise UserError(f"{received}; expected the picture under the name image, not {name}.")
        if name == dataset.label_feature:
            raise UserError(
                f"{received}, but {name} is the label, which the model has to find; leave it out."
            )
        if name not in dataset.features:
            raise UserError(f"{received}; {unknown_feature(name, dataset.features)}.")
        if dataset.features[name].dtype == "string":
            raise UserError(
                f"{received}, but {name} is a text, and TensorFlow cannot put texts on devices; "
                "expected numbers: turn it into some with a column of python -m beam_pipeline "
                "(texts are shown in the report)."
            )
        same = [n for n in (IMAGE_INPUT, *inputs) if input_name(n) == input_name(name)]
        if same:
            raise UserError(
                f"{received}, but {same[0]} and {name} would both be called "
                f"{input_name(name)} as inputs of the model; leave one of them out."
            )
        inputs[name] = dataset.features[name]
    return inputs


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
    serialized: Any, features: Mapping[str, FeatureSpec], values: Mapping[str, bytes | int]
) -> tuple[Any, Any]:
    """Replaces empty records, the places of broken ones, by one that can be parsed.

    Args:
        serialized: string [b].
        features: What the replacement holds: zeros, or empty texts and sequences.
        values: What some scalars shall be instead.

    Returns:
        (string [b], bool [b]: whether the record was there).
    """
    import tensorflow as tf

    present = tf.strings.length(serialized) > 0
    empty = _empty_example(features, values)
    # Asked first: to choose one by one means to copy them all.
    filled = tf.cond(
        tf.reduce_all(present),
        lambda: serialized,
        lambda: tf.where(present, serialized, empty),
    )
    return filled, present


def checked_labels(dataset: DataSet, raw: Any, present: Any) -> Any:
    """Labels as the records say → class ids of the data set, checked.

    Args:
        dataset: Says what is subtracted, and how many classes there are.
        raw: int64 [b]; or string [b], the class names themselves.
        present: bool [b]; other places get 0.

    Returns:
        int64 [b]. In the graph, an id outside the classes raises
        `tf.errors.InvalidArgumentError`.
    """
    import tensorflow as tf

    if dataset.features[dataset.label_feature].dtype == "string":
        same = tf.equal(raw[:, tf.newaxis], tf.constant(dataset.classes)[tf.newaxis, :])
        labels = tf.where(tf.reduce_any(same, 1), tf.argmax(same, 1), -1)
    else:
        labels = raw - dataset.label_offset
    labels = tf.where(present, labels, tf.zeros_like(labels))
    in_range = (labels >= 0) & (labels < len(dataset.classes))
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


def batch_parser(dataset: DataSet, inputs: ModelInputs) -> Callable[[Any], Parsed]:
    """A function of a batch of serialized records, string [b], for `tf.data.Dataset.map`.

    Args:
        dataset: What the records hold.
        inputs: What the model is fed with. A sequence is padded with 0 to the batch's longest,
            or padded and cut to `inputs.sequence_length`, or stays ragged.
    """
    import tensorflow as tf

    features = {
        dataset.image_feature: dataset.features[dataset.image_feature],
        dataset.label_feature: dataset.features[dataset.label_feature],
        **inputs.features,
    }
    spec = parsing_spec(features)

    def parse(serialized: Any) -> Parsed:
        filled, present = fill_empty(
            serialized, features, {dataset.image_feature: _black_jpeg(dataset)}
        )
        values = tf.io.parse_example(filled, spec)
        encoded = values[dataset.image_feature]
        # A record without a picture must not pass for the place of a broken one.
        check = tf.debugging.Assert(
            tf.reduce_all(tf.strings.length(encoded) > 0), ["A record has an empty picture."]
        )
        with tf.control_dependencies([check] if check is not None else []):
            encoded = tf.identity(encoded)
        return Parsed(
            encoded,
            checked_labels(dataset, values[dataset.label_feature], present),
            present,
            {input_name(name): _batched(values[name], inputs) for name in inputs.features},
        )

    return parse


def _batched(values: Any, inputs: ModelInputs) -> Any:
    import tensorflow as tf

    if not isinstance(values, tf.RaggedTensor) or inputs.sequences == "ragged":
        return values
    return values.to_tensor(shape=[None, inputs.sequence_length])


def _black_jpeg(dataset: DataSet) -> bytes:
    import tensorflow as tf

    image = dataset.image
    with tf.init_scope():
        black = tf.zeros((*(image.size or (16, 16)), image.channels), tf.uint8)
        return bytes(tf.io.encode_jpeg(black).numpy())


def _empty_example(features: Mapping[str, FeatureSpec], values: Mapping[str, bytes | int]) -> bytes:
    import math

    import tensorflow as tf

    def feature(name: str, spec: FeatureSpec) -> Any:
        size = 0 if spec.shape is None else math.prod(spec.shape)
        if spec.dtype == "string":
            return tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[values.get(name, b"")] * size)
            )
        if spec.dtype == "int64":
            return tf.train.Feature(
                int64_list=tf.train.Int64List(value=[values.get(name, 0)] * size)
            )
        return tf.train.Feature(float_list=tf.train.FloatList(value=[0.0] * size))

    named = {name: feature(name, spec) for name, spec in features.items()}
    return bytes(tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString())
