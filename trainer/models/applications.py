"""The architectures of `keras.applications`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import keras

from imageshards.errors import UserError


def application_names() -> list[str]:
    """The architectures of `keras.applications`, as their functions are called."""
    return sorted(name for name in dir(keras.applications) if name[0].isupper())


def application_logits(name: str, x: Any, num_classes: int) -> Any:
    """The logits of an architecture with random weights.

    Args:
        name: One of `application_names()`.
        x: Normalised pictures, symbolic [batch, height, width, channels].
        num_classes: Logits.

    Raises:
        UserError: The architecture refuses pictures of this size.
    """
    build: Callable[..., keras.Model] = getattr(keras.applications, name)
    options: dict[str, Any] = {"weights": None, "classes": num_classes}
    options |= {"classifier_activation": None, "input_shape": tuple(x.shape[1:])}
    if "include_preprocessing" in inspect.signature(build).parameters:
        options["include_preprocessing"] = False
    try:
        application = build(**options)
    except ValueError as e:
        reason = re.split(r"(?<=[.;]) ", " ".join(str(e).split()))[0].rstrip(".;")
        raise UserError(
            f"--model received {name}, which refuses pictures of {x.shape[1]}x{x.shape[2]} px "
            f"({reason}); expected a fitting --image_size."
        ) from e
    for layer in application.layers:
        # EfficientNet (V1) insists on dividing by 255 itself: let it find pixels to divide.
        if isinstance(layer, keras.layers.Rescaling):
            undo = keras.layers.Rescaling(1 / layer.scale, name="undo_rescaling", dtype="float32")
            x = undo(x)
            break
    return application(x)
