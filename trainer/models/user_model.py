"""Models of the user's own, `--model module:function`, and those of KerasHub, `keras_hub:NAME`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import keras

from imageshards.commands.command_line import is_ours, search_here
from imageshards.errors import Arg, UserError
from trainer.config import KERAS_HUB
from trainer.models.keras_internals import applies

# What the outputs of a function must not have passed through. The last layer of values adds their
# mean, so numbers around 0 are wanted.
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
    """Whether `name` means a function of the user's own."""
    return ":" in name


def is_preset(name: str) -> bool:
    """Whether `name` means a preset of KerasHub, which comes with its weights."""
    return name.startswith(KERAS_HUB)


def load_function(name: str) -> Builder:
    """Imports `module:function`, which takes (inputs, num_classes); also from where we are."""
    if is_preset(name):
        return _preset(name)
    return _load("model", name, ({}, 2), "(inputs, num_classes)")


def load_callbacks(name: str) -> list[keras.callbacks.Callback]:
    """Calls `module:function` without arguments for one or several Keras callbacks."""
    function = _load("callbacks", name, (), "no arguments")
    try:
        made = function()
    except Exception as e:  # The user's code may raise anything.
        raise UserError(
            argument="callbacks",
            received=f"{name!r}, whose function failed{_place(function, e)} "
            f"({type(e).__name__}: {_one_line(e)})",
            remedy="correct the function",
        ) from e
    found = list(made) if isinstance(made, list | tuple) else [made]
    for callback in found:
        if not isinstance(callback, keras.callbacks.Callback):
            raise UserError(
                argument="callbacks",
                received=f"{name!r}, whose function returned {type(callback).__name__}",
                expected="a list of keras.callbacks.Callback",
            )
    return found


def call_function(
    name: str,
    function: Builder,
    inputs: Mapping[str, keras.KerasTensor],
    num_outputs: int,
    target: str,
) -> keras.KerasTensor | keras.Model:
    """The outputs of the user's function, symbolic [batch, K], or the compiled model it returned.

    The function takes the inputs by name (`image` normalised, float [batch, height, width,
    channels]) and how many numbers K are wanted. It returns logits of classes or labels, or values,
    as `target` says, or a `keras.Model` that makes them from the inputs (from the picture alone, if
    there is nothing else). A compiled model may make and learn anything: it is fed with pictures as
    they are stored, uint8 0..255, and gets (inputs, label, sample_weight) in its `train_step`.

    Raises:
        UserError: It failed, or returned something else, or probabilities.
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
    except Exception as e:  # The user's code may raise anything.
        raise UserError(
            argument="model",
            received=f"{name!r}, whose function failed{_place(function, e)} "
            f"({type(e).__name__}: {_one_line(e)}) with the inputs "
            f"{', '.join(map(_described, inputs.items()))}",
            remedy="correct the function, or give other inputs by " + Arg("inputs"),
        ) from e
    if not isinstance(logits, keras.KerasTensor):
        raise UserError(
            argument="model",
            received=f"{name!r}, whose function returned {type(logits).__name__}",
            expected="logits (a symbolic tensor made from the inputs) or a keras.Model",
        )
    if target == "boxes":
        raise UserError(
            argument="model",
            received=f"{name!r}, whose function returned outputs, but the target is bounding "
            "boxes, for which there is no loss here",
            expected="a compiled model",
        )
    if tuple(logits.shape) != (None, num_outputs):
        shown = ", ".join("batch" if side is None else str(side) for side in logits.shape)
        raise UserError(
            argument="model",
            received=f"{name!r}, whose function returned the shape [{shown}]",
            expected=f"[batch, {num_outputs}], a {_OUTPUTS[target]}",
        )
    if applied := next((one for one in _REFUSED[target] if applies(one, logits)), None):
        made, wanted = "probabilities", "logits"
        if target == "values":
            made, wanted = "numbers of a range", "numbers around 0, as mean and deviation follow"
        raise UserError(
            argument="model",
            received=f"{name!r}, whose function returned {made} (its last layer applies {applied})",
            expected=wanted,
            remedy="leave the activation of the last layer out",
        )
    return logits


def _preset(name: str) -> Builder:
    """A function that makes KerasHub's image classifier of a preset, with a new head.

    It scales pixels as the preset's own preprocessing does; their size stays what it is.
    """
    try:
        hub = importlib.import_module("keras_hub")
    except ImportError as e:
        raise UserError(
            argument="model",
            received=f"{name!r}, for which KerasHub cannot be imported ({e})",
            remedy="pip install keras-hub",
        ) from e

    def build(inputs: Mapping[str, keras.KerasTensor], num_classes: int) -> keras.KerasTensor:
        task = hub.models.ImageClassifier.from_preset(
            name.removeprefix(KERAS_HUB), num_classes=num_classes, activation=None
        )
        converter = getattr(task.preprocessor, "image_converter", None)
        scale, offset = (getattr(converter, name, None) for name in ("scale", "offset"))
        scaling = (scale or 1.0, offset or 0.0)
        return task(keras.layers.Rescaling(*scaling, dtype="float32")(inputs["image"]))

    return build


def _place(function: Builder, error: Exception) -> str:
    """The line of the function's file that failed, or the function's first line."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    lines = [code.co_firstlineno]
    frames = traceback.extract_tb(error.__traceback__)
    lines += [frame.lineno or 0 for frame in frames if frame.filename == code.co_filename]
    return f" at {os.path.relpath(code.co_filename)}:{lines[-1]}"


def _one_line(error: Exception) -> str:
    # Keras prints some of its messages in bold.
    return " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())[:300]


def _described(item: tuple[str, keras.KerasTensor]) -> str:
    name, tensor = item
    sides = ["batch", *("any" if side is None else str(side) for side in tensor.shape[1:])]
    return f"{name} {tensor.dtype} [{', '.join(sides)}]"


def _load(
    argument: str, name: str, parameters: tuple[object, ...], expected: str
) -> Callable[..., Any]:
    """The function that `argument` names, if it takes `parameters`."""
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise UserError(
            argument=argument,
            received=repr(name),
            expected="module:function, for example recipes.multi_input:build",
        )
    module = _import(argument, name, module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        near = difflib.get_close_matches(function_name, known, n=1)
        raise UserError(
            argument=argument,
            received=f"{name!r}, but {module_name} has no function {function_name!r}",
            remedy=f"did you mean {module_name}:{near[0]}?" if near else f"it defines {known}",
        )
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as e:
        raise UserError(
            argument=argument,
            received=f"{name!r}, whose function takes {inspect.signature(function)}",
            expected=expected,
        ) from e
    return function


def _import(argument: str, name: str, module_name: str) -> ModuleType:
    search_here(module_name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name and (module_name == e.name or module_name.startswith(e.name + ".")):
            raise UserError(
                argument=argument,
                received=f"{name!r}, but there is no module {e.name!r}",
                expected=f"a module in the working directory ({os.getcwd()}) or on PYTHONPATH",
            ) from e
        raise UserError(
            argument=argument,
            received=f"{name!r}, but {module_name} imports {e.name!r}, which is not installed",
            remedy=f"install {e.name}",
        ) from e
    except (ImportError, SyntaxError) as e:
        raise UserError(
            argument=argument,
            received=f"{name!r}, but {module_name} cannot be imported ({e})",
            remedy=f"correct {module_name}",
        ) from e
    if is_ours(module):
        raise UserError(
            argument=argument,
            received=f"{name!r}, but imageshards itself has a module {module_name}",
            expected="another name of your package, or of the module",
        )
    return module
