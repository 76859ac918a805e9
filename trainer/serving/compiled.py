"""A compiled model of the user's own, made again by the function that made it."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import tensorflow as tf

from imageshards.errors import UserError
from trainer.dataset.spec import ModelCard, ModelInputs, model_input
from trainer.models.model import build_model, input_tensors
from trainer.models.step import build_variables, preprocessed
from trainer.models.user_model import is_softmax

_EXCLUSIVE = (keras.losses.SparseCategoricalCrossentropy, keras.losses.CategoricalCrossentropy)


def rebuild(name: str, card: ModelCard, path: str, local_path: str) -> Any:
    """The model by its function, compiled, with the weights of a file; refuses one with others.

    Its class, loss and metrics need not be known to Keras. Call it inside the strategy's scope.
    `path` is the file in messages, `local_path` where it is on this machine.
    """
    strategy = tf.distribute.get_strategy()
    model = build_model(name, card.inputs, len(card.classes))
    if not model.compiled:
        raise UserError(
            f"--model received {name!r}, which returns no compiled model; expected the function "
            f"that {path!r} was trained with, {card.training.get('model')!r}."
        )
    build_variables(model, strategy, _batch(card.inputs))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the optimizer's state, which is not needed
            model.load_weights(local_path)
    except (ValueError, KeyError) as e:
        reason = " ".join(str(e).split())[:200]
        raise UserError(
            f"--model received {name!r}, whose model has other variables than {path!r} "
            f"({reason}); expected the function in the version that it was trained with."
        ) from e
    return model


def classifier(model: Any, card: ModelCard, path: str) -> Any:
    """A compiled model as one that takes pictures 0..255 and gives a logit for each class.

    Refuses one whose loss does not say that classes exclude each other, or of another shape.
    """
    loss = keras.losses.get(model.loss) if isinstance(model.loss, str) else model.loss
    named = getattr(loss, "__name__", "")
    if named in ("sparse_categorical_crossentropy", "categorical_crossentropy"):
        is_logits: bool | None = False
    else:
        is_logits = loss.from_logits if isinstance(loss, _EXCLUSIVE) else None
    tensors = input_tensors(card.inputs)
    taken = model_input(tensors)
    found = model(preprocessed(model, taken, None, None)[0])
    if is_logits is None or getattr(found, "shape", ())[1:] != (len(card.classes),):
        raise UserError(
            f"--model_path received {path!r}, a compiled model that does not choose one of "
            f"{len(card.classes)} classes; expected a loss of categorical crossentropy and an "
            "output for each class: use imageshards evaluate, or load it with Keras in your own "
            "program."
        )
    if not is_logits or is_softmax(found._keras_history.operation):
        found = keras.ops.log(found)
    return keras.Model(taken, found, name=model.name)


def _batch(inputs: ModelInputs) -> tuple[Any, Any, Any]:
    """Specifications of (inputs, label, sample_weight), as training has them."""
    tensors = input_tensors(inputs)
    specs = {
        name: tf.RaggedTensorSpec((1, *t.shape[1:]), t.dtype, ragged_rank=1)
        if t.ragged
        else tf.TensorSpec((1, *t.shape[1:]), t.dtype)
        for name, t in tensors.items()
    }
    return model_input(specs), tf.TensorSpec((1,), tf.int64), tf.TensorSpec((1,), tf.float32)
