"""Small untrained models with cards, to be saved, exported and served."""

import dataclasses
import pathlib
from typing import Any

from imageshards.images.options import ImageOptions
from trainer.dataset.spec import ImageSpec, ModelCard, ModelInputs, input_name

SIZE = (48, 48)
# As the manifest of a dataset of such pictures has it.
OPTIONS = ImageOptions(*SIZE, icc="drop").to_manifest()
IMAGE = ImageSpec(SIZE, False, 3, (0.5, 0.4, 0.3), (0.25, 0.2, 0.1), OPTIONS)


def card(features=None, classes=("cat", "dog"), target=None, **changes: Any) -> ModelCard:
    """`target` has what the card says of it, where that is not a class."""
    inputs = ModelInputs(SIZE, IMAGE, features or {}, **changes)
    made = ModelCard(classes, inputs, fingerprint="f00d", training={"epochs": 3}, step=7)
    return dataclasses.replace(made, **target or {})


def values_card(column: str, *shape: int) -> ModelCard:
    """Of a model that finds the values of a column."""
    target = {"target": "values", "target_shape": shape, "column": column, "label_feature": column}
    return card(classes=(), target=target)


def network(of: ModelCard) -> Any:
    """Random weights, but probabilities all over 0..1; sequences are summed up."""
    import keras

    keras.utils.set_random_seed(1)
    inputs = of.inputs
    image = keras.Input((*inputs.size, inputs.image.channels), dtype="uint8", name="image")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(image)
    for filters in (8, 16):
        x = keras.layers.Conv2D(filters, 3, strides=2, activation="relu")(x)
        x = keras.layers.BatchNormalization()(x)
    parts = [keras.layers.GlobalAveragePooling2D()(x), keras.layers.GlobalMaxPooling2D()(x)]
    taken = {"image": image}
    for feature, spec in inputs.features.items():
        name = input_name(feature)
        shape = (inputs.sequence_length,) if spec.shape is None else spec.shape
        taken[name] = keras.Input(shape, dtype=spec.dtype, name=name)
        number = keras.ops.cast(taken[name], "float32")
        number = number if shape else keras.ops.reshape(number, (-1, 1))
        parts.append(keras.ops.sum(number, -1, keepdims=True))
    x = keras.layers.Concatenate()(parts)
    logits = keras.layers.Dense(of.num_outputs, kernel_initializer="glorot_normal")(x)
    return keras.Model(taken if inputs.features else image, logits, name="small")


def picture_reader(of: ImageSpec, size: tuple[int, int], crop: float = 1.0) -> Any:
    """Files, string [b] → the pictures a model of `size` sees, uint8 [b, *size, channels]."""
    import tensorflow as tf

    from trainer.augment.decode import batch_pictures
    from trainer.serving.preprocess import record_jpeg

    options = ImageOptions.from_manifest(of.options)
    pictures = batch_pictures(of, size, crop)

    def read(encoded: Any) -> Any:
        records = tf.map_fn(lambda one: record_jpeg(one, options), encoded)
        return pictures(records, tf.zeros_like(encoded, tf.int64))

    return read


def saved(folder: pathlib.Path, of: ModelCard) -> Any:
    from trainer.serving import model_file

    folder.mkdir(parents=True, exist_ok=True)
    model = network(of)
    model_file.save_model(model, str(folder / "model.keras"), of)
    return model
