"""Loads the user's models, `--model module:function`, and KerasHub's, `--model keras_hub:NAME`."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import keras

from imageshards.commands.command_line import search_here
from imageshards.errors import Arg, UserError
from trainer.config import KERAS_HUB
from trainer.models.keras_internals import applies

# Activations that a function's outputs must not end with. The trainer adds a last layer with the
# mean of the values, so the function must return numbers around 0.
_REFUSED = {
    "class": ("softmax",),
    "labels": ("sigmoid",),
    "values": ("sigmoid", "softmax", "tanh", "relu", "softplus", "exponential"),
}
_OUTPUTS = {
    "class": "logit for every class", "labels": "logit for every label", "values": "number for each"
}  # fmt: skip

Builder = Callable[[Mapping[str, keras.KerasTensor], int], keras.KerasTensor | keras.Model]


def is_user_model(name: str) -> bool:
    """Returns whether `name` is a function of the user, or a preset of KerasHub."""
    return ":" in name


def is_preset(name: str) -> bool:
    """Returns whether `name` is a preset of KerasHub, which comes with its weights."""
    return name.startswith(KERAS_HUB)


def load_function(name: str) -> Builder:
    """Imports the user's function (inputs, num_classes), or makes one for a preset of KerasHub."""
    if is_preset(name):
        return _preset(name)
    return _load("model", name, ({}, 2), "(inputs, num_classes)")


def load_callbacks(name: str) -> list[keras.callbacks.Callback]:
    """Calls `module:function` without arguments, and returns its Keras callbacks."""
    function = _load("callbacks", name, (), "no arguments")
    try:
        made = function()
    # The user's code may raise anything.
    except Exception as e:
        why = f", whose function failed{_described_error(function, e)}"
        raise _refused("callbacks", name, why, remedy="correct the function") from e
    found = list(made) if isinstance(made, list | tuple) else [made]
    for callback in found:
        if not isinstance(callback, keras.callbacks.Callback):
            why = f", whose function returned {type(callback).__name__}"
            raise _refused("callbacks", name, why, "a list of keras.callbacks.Callback")
    return found


def call_function(
    name: str,
    function: Builder,
    inputs: Mapping[str, keras.KerasTensor],
    num_outputs: int,
    target: str,
) -> keras.KerasTensor | keras.Model:
    """Calls the user's function; returns its symbolic outputs [batch, K], or its compiled model.

    The function takes the inputs by name (`image` normalised, float [batch, height, width,
    channels]) and the number of outputs K. It returns logits of classes or labels, or values, as
    `target` says; or a `keras.Model` that makes them from the inputs, or from the picture if this
    is the only input. A compiled model may make and learn anything: it gets pictures as they are
    stored, uint8 0..255, and (inputs, label, sample_weight) in its `train_step`.

    Raises:
        UserError: The function failed, or returned something else, or probabilities.
    """
    try:
        logits = function(dict(inputs), num_outputs)
        if isinstance(logits, keras.Model):
            if logits.compiled:
                return logits
            by_name = len(inputs) > 1 or isinstance(getattr(logits, "input", None), dict)
            logits = logits(dict(inputs) if by_name else inputs["image"])
    except UserError:
        raise
    # The user's code may raise anything.
    except Exception as e:
        given = keras.tree.map_structure(lambda one: f"{one.dtype} {one.shape}", dict(inputs))
        why = f", whose function failed{_described_error(function, e)} with the inputs {given}"
        other = "correct the function, or give other inputs by " + Arg("inputs")
        raise _refused("model", name, why, remedy=other) from e
    returned = ", whose function returned"
    if not isinstance(logits, keras.KerasTensor):
        expected = "logits (a symbolic tensor made from the inputs) or a keras.Model"
        raise _refused("model", name, f"{returned} {type(logits).__name__}", expected)
    if target == "boxes":
        why = f"{returned} outputs, but bounding boxes have no loss here"
        raise _refused("model", name, why, "a compiled model")
    if tuple(logits.shape) != (None, num_outputs):
        shown = ", ".join("batch" if side is None else str(side) for side in logits.shape)
        expected = f"[batch, {num_outputs}], a {_OUTPUTS[target]}"
        raise _refused("model", name, f"{returned} the shape [{shown}]", expected)
    if applied := next((one for one in _REFUSED[target] if applies(one, logits)), None):
        made, wanted = "probabilities", "logits"
        if target == "values":
            made, wanted = "numbers of a range", "numbers around 0, as mean and deviation follow"
        why = f"{returned} {made} (its last layer applies {applied})"
        remedy = "leave the activation of the last layer out"
        raise _refused("model", name, why, wanted, remedy)
    return logits


def _refused(argument: str, name: str, why: str, expected: str = "", remedy: str = "") -> UserError:
    received = f"{name!r}{why}"
    return UserError(argument=argument, received=received, expected=expected, remedy=remedy)


def _preset(name: str) -> Builder:
    """Returns a function that makes KerasHub's image classifier of a preset, with a new head."""
    try:
        hub = importlib.import_module("keras_hub")
    except ImportError as e:
        why = f", for which KerasHub cannot be imported ({e})"
        raise _refused("model", name, why, remedy="pip install keras-hub") from e

    def build(inputs: Mapping[str, keras.KerasTensor], num_classes: int) -> keras.KerasTensor:
        task = hub.models.ImageClassifier.from_preset(
            name.removeprefix(KERAS_HUB), num_classes=num_classes, activation=None
        )
        # Pixels are scaled by the preset's own preprocessing, but keep their size.
        converter = getattr(task.preprocessor, "image_converter", None)
        scale, offset = (getattr(converter, name, None) for name in ("scale", "offset"))
        scaling = (scale or 1.0, offset or 0.0)
        return task(keras.layers.Rescaling(*scaling, dtype="float32")(inputs["image"]))

    return build


def _described_error(function: Builder, error: Exception) -> str:
    """Returns the line of the function's file that failed, and the error."""
    place = ""
    if code := getattr(inspect.unwrap(function), "__code__", None):
        # Without a frame in the user's file, the error points at the function's first line.
        lines = [code.co_firstlineno]
        frames = traceback.extract_tb(error.__traceback__)
        lines += [frame.lineno or 0 for frame in frames if frame.filename == code.co_filename]
        place = f" at {os.path.relpath(code.co_filename)}:{lines[-1]}"
    # Some of Keras's messages have escape sequences for bold text.
    message = " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())[:300]
    return f"{place} ({type(error).__name__}: {message})"


def _load(
    argument: str, name: str, parameters: tuple[object, ...], expected: str
) -> Callable[..., Any]:
    """Imports the function that `argument` names, and checks that it takes `parameters`."""
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        example = "module:function, for example recipes.multi_input:build"
        raise _refused(argument, name, "", example)
    search_here()
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as e:
        why = f", but {module_name} cannot be imported ({type(e).__name__}: {e})"
        place = f"a module in the working directory ({os.getcwd()}) or on PYTHONPATH"
        raise _refused(argument, name, why, place) from e
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        why = f", but {module_name} has no function {function_name!r}"
        raise _refused(argument, name, why, f"one of {', '.join(known)}")
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as e:
        why = f", whose function takes {inspect.signature(function)}"
        raise _refused(argument, name, why, expected) from e
    return function
