"""Rebuilds a model that the user compiled, by calling the user's function again."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import tensorflow as tf

from imageshards.errors import UserError
from imageshards.text import counted
from trainer.dataset.batch import model_input
from trainer.dataset.parse import label_spec
from trainer.dataset.spec import ModelCard, describe
from trainer.models.keras_internals import applies
from trainer.models.model import Head, build_model, input_tensors
from trainer.models.step import build_variables, preprocessed

# Kind of target → the losses of models for this target, by name and by type; and the activation of
# outputs that are no logits, with the function that turns such outputs into logits.
_LOSSES: dict[str, Any] = {
    "class": (
        ("sparse_categorical_crossentropy", "categorical_crossentropy"),
        (keras.losses.SparseCategoricalCrossentropy, keras.losses.CategoricalCrossentropy),
        ("softmax", keras.ops.log),
    ),
    "labels": (
        ("binary_crossentropy", "binary_focal_crossentropy"),
        (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy),
        ("sigmoid", lambda shares: keras.ops.log(shares) - keras.ops.log1p(-shares)),
    ),
    "values": ((), object, ("linear", lambda values: values)),
}


def rebuild(name: str, card: ModelCard, path: str, local_path: str) -> keras.Model:
    """Calls the user's function `name`, and loads the weights of a file into its compiled model.

    The model's class, loss and metrics need not be registered with Keras. Call this function inside
    the strategy's scope. Errors name `path`, and `local_path` is the file or its local copy.

    Raises:
        UserError: The model is not compiled, or has different variables than the file.
    """
    strategy = tf.distribute.get_strategy()
    model = build_model(name, card.inputs, Head(card.num_outputs, card.target))
    if not model.compiled:
        raise UserError(
            argument="model",
            received=f"{name!r}, which returns no compiled model",
            expected=f"the function that {path!r} was trained with, {card.training.get('model')!r}",
        )
    specs = keras.tree.map_structure(
        lambda tensor: tf.TensorSpec((1, *tensor.shape[1:]), tensor.dtype),
        input_tensors(card.inputs),
    )
    label = label_spec(card, card.inputs, card.num_outputs, 1)
    # Weights can be loaded only into variables that exist.
    build_variables(model, strategy, (model_input(specs), label))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns that the optimizer's state is not loaded.
            model.load_weights(local_path)
    except (ValueError, KeyError) as e:
        reason = " ".join(str(e).split())[:200]
        raise UserError(
            argument="model",
            received=f"{name!r}, whose model has other variables than {path!r} ({reason})",
            expected=f"the function in the version that {path!r} was trained with",
        ) from e
    return model


def as_ours(model: keras.Model, card: ModelCard, path: str) -> keras.Model:
    """Converts a compiled model to a model from pictures 0..255 to logits or values.

    Raises:
        UserError: The loss or the shape of the output does not fit the card's target.
    """
    loss = keras.losses.get(model.loss) if isinstance(model.loss, str) else model.loss
    names, types, (activation, logits_of) = _LOSSES[card.target]
    is_logits: bool | None = None  # None means an unknown loss.
    if getattr(loss, "__name__", "") in names:
        is_logits = False
    elif isinstance(loss, types):
        is_logits = getattr(loss, "from_logits", True)
    tensors = input_tensors(card.inputs)
    taken = model_input(tensors)
    found = model(preprocessed(model, taken, None, None)[0])
    if is_logits is None or getattr(found, "shape", ())[1:] != (card.num_outputs,):
        raise UserError(
            argument="model_path",
            received=f"{path!r}, a compiled model that does not find {describe(card)}",
            expected=f"{counted(card.num_outputs, 'output')}"
            f"{' and a loss of ' * bool(names)}{' or '.join(names)}",
            remedy="use the model with Keras in your own program, or imageshards evaluate",
        )
    # A model may end with a softmax although its loss expects logits.
    if not is_logits or applies(activation, found):
        found = logits_of(found)
    return keras.Model(taken, found, name=model.name)
