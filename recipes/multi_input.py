"""Model with several inputs, for `--model`: an image, numbers and token sequences.

    imageshards train --data DATA --model recipes.multi_input:build --inputs image,age,tokens

The type of an input selects its branch. Floats enter a dense layer unchanged, so scale floats when
you build the dataset. Integers are tokens of a vocabulary; the model averages the embeddings of a
sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import layers, ops

# Tokens from VOCABULARY - 1 upwards share the last embedding.
VOCABULARY = 10_000
EMBEDDING_SIZE = 16


def build(inputs: Mapping[str, Any], num_classes: int) -> Any:
    """Builds a small network with a branch for each input and returns the logits.

    Args:
        inputs: Symbolic tensors by name. `image` is a normalised float tensor [batch, height,
            width, channels]. Every other input is float32 or int64 and has the shape [batch],
            [batch, n] or [batch, length]; sequences are padded with 0.
        num_classes: Number of classes.

    Returns:
        Logits, float [batch, num_classes].
    """
    branches = [_picture(inputs["image"])]
    for name, tensor in sorted(inputs.items()):
        if name == "image":
            continue
        branches.append(_tokens(tensor) if "int" in tensor.dtype else _numbers(tensor))
    x = layers.Concatenate()(branches) if len(branches) > 1 else branches[0]
    x = layers.Dense(64, activation="relu")(x)
    x = layers.Dropout(0.2)(x)
    return layers.Dense(num_classes)(x)


def _picture(x: Any) -> Any:
    for filters in (16, 32, 64):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9)(x)
        x = layers.ReLU()(x)
    return layers.GlobalAveragePooling2D()(x)


def _numbers(x: Any) -> Any:
    size = 1
    for side in x.shape[1:]:
        size *= side
    return layers.Dense(8, activation="relu")(layers.Reshape((size,))(x))


def _tokens(x: Any) -> Any:
    """Returns the mean embedding of all tokens except the padding 0; zeros without tokens."""
    if len(x.shape) == 1:
        x = layers.Reshape((1,))(x)
    embedded = layers.Embedding(VOCABULARY, EMBEDDING_SIZE)(ops.clip(x, 0, VOCABULARY - 1))
    given = ops.expand_dims(ops.cast(ops.not_equal(x, 0), embedded.dtype), -1)
    # GlobalAveragePooling1D would divide by zero in a record without tokens.
    return ops.sum(embedded * given, 1) / ops.maximum(ops.sum(given, 1), 1.0)
