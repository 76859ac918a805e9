"""Keeps the weights of layers at first: `--freeze` and `--unfreeze_after`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras.optimizers.schedules import LearningRateSchedule

from imageshards.errors import UserError
from trainer.config import OptimizerConfig
from trainer.models.keras_internals import without_loss_scale
from trainer.models.optimizer import make_schedule

# The share of the learning rate with which all layers train.
_SHARE = 0.1


class Frozen(keras.callbacks.Callback):
    """A callback that keeps the weights of layers of a compiled model until an epoch begins.

    Batch normalisations among them use and keep their averages, as in Keras. The optimizer has all
    variables from the start, so that every checkpoint has the same variables.

    Args:
        model: Compiled by `trainer.models.model.compile_model`.
        freeze: `all` for all layers below the head, or the number of layers from the first one on,
            as `model.layers` of the architecture counts them.
        after: Number of epochs after which all layers train; None for never.
        schedule: Learning rates from that epoch on.

    Raises:
        UserError: The model has fewer layers.
    """

    def __init__(
        self,
        model: keras.Model,
        freeze: int | str,
        after: int | None = None,
        schedule: LearningRateSchedule | None = None,
    ) -> None:
        super().__init__()
        self.set_model(model)
        self._after, self._schedule = after, schedule
        # The head is the last layer with weights.
        head = [layer for layer in _leaves([model]) if layer.weights][-1]
        # If the model contains an architecture, the layers behind it are the new head.
        inside = [layer for layer in model.layers if isinstance(layer, keras.Model)]
        below = [layer for layer in _leaves(inside or [model]) if layer is not head]
        if isinstance(freeze, int) and freeze > len(below):
            raise UserError(
                argument="freeze",
                received=str(freeze),
                expected=f"at most {len(below)}, the layers of {model.name} below its head, or all",
            )
        first = below[:freeze] if isinstance(freeze, int) else below
        self._layers = [layer for layer in first if layer.trainable]
        for layer in self._layers:
            layer.trainable = False

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Frees the layers after `after` epochs.

        The optimizer then starts anew with its second schedule, as if the model was compiled again.
        """
        if self._after is None or epoch < self._after or not self._layers:
            return
        while self._layers:
            self._layers.pop().trainable = True
        optimizer = without_loss_scale(self.model.optimizer)
        optimizer.learning_rate = self._schedule
        # In a later epoch the run was resumed, and its checkpoint has the optimizer's state.
        if epoch == self._after:
            for variable in optimizer.variables:
                variable.assign(np.zeros(variable.shape))


def schedule_after(config: OptimizerConfig, batch_size: int, steps: int) -> LearningRateSchedule:
    """Returns the learning rates of the last `steps` of a run, in which all layers train."""
    # A tenth of the rates of a run with so many steps, without another warm-up.
    rate = _SHARE * config.learning_rate
    slower = dataclasses.replace(config, learning_rate=rate, warmup_steps=0)
    return make_schedule(slower, batch_size, steps)


def _leaves(layers: Sequence[keras.layers.Layer]) -> list[keras.layers.Layer]:
    """Returns the layers in order, with the layers of inner models in place of the models."""
    found: list[keras.layers.Layer] = []
    for layer in layers:
        found += _leaves(layer.layers) if isinstance(layer, keras.Model) else [layer]
    return found
