"""The formats of `python -m trainer.export` that need TensorFlow."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import tensorflow as tf

from imageshards.errors import UserError
from trainer.dataset.spec import ModelCard
from trainer.serving.servable import SIGNATURE, Servable

_LABELS_ASSET = "labels.txt"


def write_saved_model(model: Any, card: ModelCard, transform: str | None, path: str) -> list[str]:
    """Writes a SavedModel whose signature takes image files.

    Args:
        model: The `keras.Model`.
        card: How it was trained.
        transform: Folder of the data set's tensorflow-transform graph, or None.
        path: A folder that is not there yet.

    Returns:
        Lines that describe the signature.
    """
    with tempfile.TemporaryDirectory() as folder:
        labels = os.path.join(folder, _LABELS_ASSET)
        with open(labels, "w", encoding="utf-8") as f:
            f.writelines(f"{name}\n" for name in card.classes)
        servable = Servable(model, card, transform, labels)
        signatures = servable.signatures()
        tf.saved_model.save(servable, path, signatures=signatures)
    return _described(servable, card, signatures[SIGNATURE])


def write_tflite(model: Any, card: ModelCard, path: str) -> list[str]:
    """Writes a TFLite model: pixels in, probabilities out.

    Args:
        model: The `keras.Model`.
        card: How it was trained.
        path: A file that is not there yet.

    Returns:
        Lines that describe its inputs.

    Raises:
        UserError: The model takes sequences of any length.
    """
    inputs = card.inputs
    unbounded = [name for name, spec in inputs.features.items() if spec.shape is None]
    if unbounded and inputs.sequence_length is None:
        raise UserError(
            f"--format tflite received a model that takes {', '.join(unbounded)} of any length, "
            "where TFLite wants a fixed one; train with --sequence_length, or use --format "
            "saved_model."
        )
    specs = {tensor.name: _one(tensor) for tensor in model.inputs}

    def predict(**tensors: Any) -> dict[str, Any]:
        fed = dict(tensors) if inputs.features else tensors["image"]
        return {"probabilities": tf.nn.softmax(tf.cast(model(fed, training=False), tf.float32))}

    function = tf.function(predict, autograph=False).get_concrete_function(**specs)
    # Of a Keras 3 model alone the converter would not find the variables, and write NaNs.
    keeper = tf.Module()
    keeper.weights = [variable.value for variable in model.variables]
    data = tf.lite.TFLiteConverter.from_concrete_functions([function], keeper).convert()
    with open(path, "wb") as f:
        f.write(data)
    height_px, width_px = inputs.size
    return [
        f"input    {name}: {spec.dtype.name} {spec.shape.as_list()}"
        for name, spec in sorted(specs.items())
    ] + [
        f"pictures are decoded and fitted to {height_px}x{width_px} px by the caller, 0..255",
    ]


def _one(tensor: Any) -> Any:
    return tf.TensorSpec((1, *tensor.shape[1:]), tensor.dtype, tensor.name)


def _shown(spec: Any) -> str:
    sides = ["batch", *("any" if side is None else str(side) for side in spec.shape[1:])]
    return f"{spec.dtype.name} [{', '.join(sides)}]"


def _described(servable: Servable, card: ModelCard, function: Any) -> list[str]:
    positional, named = function.structured_input_signature
    taken = {spec.name: spec for spec in (*positional, *named.values())}
    lines = [f"input    {name}: {_shown(spec)}" for name, spec in sorted(taken.items())]
    lines += [
        f"output   {name}: {spec.dtype.name}"
        for name, spec in sorted(function.structured_outputs.items())
    ]
    lines.append(f"classes  {len(card.classes)}, also in assets/{_LABELS_ASSET}")
    if servable.columns.taken_as_recorded:
        lines.append(
            "note: no transform makes " + ", ".join(servable.columns.taken_as_recorded)
            + "; give the values that the records have"
        )  # fmt: skip
    if not card.inputs.image.options:
        lines.append(
            "note: nothing says how the records' pictures were made: JPEGs are decoded as they "
            "are, without EXIF"
        )
    return lines
