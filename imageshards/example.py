"""Reads and writes `tf.train.Example` messages without TensorFlow, which is slow to import."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from imageshards.errors import UserError
from imageshards.tfrecord import Record, RecordError

Values = Sequence[bytes] | Sequence[int] | Sequence[float]
"""The values of one feature."""

# The first entry that accepts the types of all values names their field.
_FIELDS: tuple[tuple[Any, str], ...] = (
    (bytes, "bytes_list"),
    (int, "int64_list"),
    ((int, float), "float_list"),
)

_Field = descriptor_pb2.FieldDescriptorProto


def _example_class() -> Any:
    """Declares the message types of TensorFlow's feature.proto and example.proto.

    https://github.com/tensorflow/tensorflow/tree/master/tensorflow/core/example
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="imageshards/example.proto", package="tensorflow", syntax="proto3"
    )

    def add(message: Any, number: int, name: str, kind: str, *, many: bool = False) -> Any:
        label = _Field.LABEL_REPEATED if many else _Field.LABEL_OPTIONAL
        field = message.field.add(name=name, number=number, label=label)
        if kind.isupper():
            field.type = _Field.Type.Value(f"TYPE_{kind}")
        else:
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".tensorflow.{kind}"
        return field

    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (kind, values) in enumerate(
        (("BYTES", "BytesList"), ("FLOAT", "FloatList"), ("INT64", "Int64List")), 1
    ):
        add(file.message_type.add(name=values), 1, "value", kind, many=True)
        add(feature, number, f"{kind.lower()}_list", values).oneof_index = 0
    features = file.message_type.add(name="Features")
    add(features, 1, "feature", "Features.FeatureEntry", many=True)
    entry = features.nested_type.add(name="FeatureEntry")
    add(entry, 1, "key", "STRING")
    add(entry, 2, "value", "Feature")
    entry.options.map_entry = True
    add(file.message_type.add(name="Example"), 1, "features", "Features")
    # TensorFlow registers the same names in protobuf's default pool, so this needs its own.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_Example = _example_class()


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Serialises features; equal features give equal bytes.

    Args:
        features: Name → values: a list or tuple, a NumPy array of any shape, or a single value.
            Bytes and texts (as UTF-8) become a bytes list, whole numbers and booleans an int64
            list, floats a float32 list. An empty list becomes a feature without a kind.

    Raises:
        UserError: A value has a wrong type, a list mixes types, or a whole number has more than 64
            bits.
    """
    example = _Example()
    feature = example.features.feature
    for name, given in features.items():
        if hasattr(given, "ravel"):  # NumPy's arrays and scalars have this method.
            given = given.ravel().tolist()
        elif not isinstance(given, list | tuple):
            given = [given]
        values, entry = [_plain(value) for value in given], feature[name]
        if not values:
            continue
        try:
            getattr(entry, _field_of(frozenset(map(type, values)))).value.extend(values)
        except (TypeError, ValueError) as e:
            shown = ", ".join(repr(value)[:40] for value in values[:4])
            raise UserError(
                argument="features",
                received=f"{name!r} with the values {shown}",
                expected="one value or a list of bytes, of texts, of whole numbers of 64 bits, or "
                "of floats",
            ) from e
    return bytes(example.SerializeToString(deterministic=True))


@functools.cache
def _field_of(types: frozenset[type]) -> str:
    for accepted, field in _FIELDS:
        if all(issubclass(each, accepted) for each in types):
            return field
    raise TypeError("values of other types, or of several")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | int):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value.item() if hasattr(value, "item") else value


def decode_example(data: bytes, only: Collection[str] | None = None) -> dict[str, Values]:
    """Returns the features of a serialised example, each as a list of its values.

    Args:
        data: The record.
        only: Names of the features to return; None for all features.

    Raises:
        ValueError: The record is not a `tf.train.Example`.
    """
    found = _parsed(data).features.feature
    # Protobuf finds a label beside a picture of 110 kB in 8 us; copying both takes 50 us.
    names = found if only is None else [name for name in only if name in found]
    features: dict[str, Values] = {}
    for name in names:
        feature = found[name]
        kind = feature.WhichOneof("kind")
        features[name] = list(getattr(feature, kind).value) if kind else []
    return features


def _parsed(data: bytes) -> Any:
    try:
        return _Example.FromString(data)
    except DecodeError as e:
        raise ValueError("it is no tf.train.Example") from e


def without_feature(data: bytes, name: str) -> tuple[bytes, bytes]:
    """Returns the single bytes value of a feature, and the example serialised without the feature.

    Raises:
        ValueError: The record is not a `tf.train.Example`, or the feature has not one bytes value.
    """
    example = _parsed(data)
    (value,) = example.features.feature[name].bytes_list.value
    del example.features.feature[name]
    return value, bytes(example.SerializeToString())


def decode_record(
    path: str, record: Record, only: Collection[str] | None = None
) -> dict[str, Values]:
    """Returns the features of a record of the file `path`, as `decode_example` returns them.

    Raises:
        RecordError: The record is not a `tf.train.Example`.
    """
    try:
        return decode_example(record.payload, only)
    except ValueError as e:
        raise RecordError(path, record.number, record.offset_bytes, str(e)) from e


Dtype = Literal["int64", "float32", "string"]


def dtype_of(values: Values) -> Dtype | None:
    """Returns the dtype of a feature as the manifest records it; None without values."""
    if not values:
        return None
    kind = type(values[0])
    return "string" if kind is bytes else "float32" if kind is float else "int64"
