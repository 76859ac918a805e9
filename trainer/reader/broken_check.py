"""Whether a record can be understood: parsed and decoded by the reader's own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from imageshards.example import decode_example
from trainer.dataset.counting import RecordProblem, class_id
from trainer.dataset.spec import DataSet, FeatureSpec, ModelInputs

# Payloads → what is wrong with each, empty where nothing is.
Check = Callable[[Sequence[bytes]], list[str]]

# Where pictures vary in size, any size will do to see whether they can be decoded.
_ANY_SIZE = (64, 64)


def make_check(dataset: DataSet, inputs: Mapping[str, FeatureSpec]) -> Check:
    """A function that says what is wrong with serialized records.

    Args:
        dataset: What they should hold.
        inputs: Features besides picture and label that have to be there.
    """
    import tensorflow as tf

    from trainer.augment.decode import batch_pictures
    from trainer.dataset.parse import batch_parser

    size = dataset.image.size or _ANY_SIZE
    parse = batch_parser(dataset, ModelInputs(size, dataset.image, inputs))
    pictures = batch_pictures(dataset.image, size)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def read(serialized: tf.Tensor) -> tf.Tensor:
        encoded = parse(serialized).encoded
        return tf.shape(pictures(encoded, tf.range(tf.size(encoded, tf.int64))))

    def check(payloads: Sequence[bytes]) -> list[str]:
        if not payloads:
            return []
        try:
            with tf.device("CPU"):
                read(tf.constant(list(payloads), tf.string))
        # TensorFlow quotes a record that is no tf.train.Example, and stumbles over its bytes.
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:
            if len(payloads) == 1:
                return [_reason(dataset, payloads[0], str(getattr(e, "message", e)))]
            half = len(payloads) // 2
            return [*check(payloads[:half]), *check(payloads[half:])]
        return ["" if payload else "it is empty" for payload in payloads]

    return check


def _reason(dataset: DataSet, payload: bytes, message: str) -> str:
    """A reason for people: TensorFlow's own names its kernels, and may quote the picture."""
    try:
        class_id(dataset, payload)
    except RecordProblem as e:
        return str(e)
    name = dataset.image_feature
    encoded = decode_example(payload, {name}).get(name, [])
    if len(encoded) != 1 or not encoded[0]:
        return f"it has no picture in {name}"
    if "Name: <unknown>" in message or "parse" in message:
        return "a feature is missing, or has another type or length than it should"
    if not dataset.image.varies and ("nsure" in message or "ncompatible shape" in message):
        return f"its picture is not of {'x'.join(map(str, dataset.image.size or ()))} px"
    first = encoded[0][:4] if isinstance(encoded[0], bytes) else b""
    return f"its picture cannot be decoded (it begins with {first.hex(' ')})"
