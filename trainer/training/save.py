"""Implements `ims.save`: a model of `ims.fit` becomes a model of the commands."""

from __future__ import annotations

import dataclasses
import os

import keras
import numpy as np

from imageshards import storage
from imageshards.errors import Arg, UserError, names_arguments
from trainer.dataset.spec import described_target
from trainer.reader.batches import TrainingData
from trainer.reader.described import EvaluationData
from trainer.serving.compiled import as_ours
from trainer.serving.model_file import (
    BEST_MODEL_FILE,
    MODEL_FILE,
    card_of,
    not_compiled,
    save_model,
)
from trainer.training.fit import check_model
from trainer.training.output_folder import copy_transform

_KINDS = ("class", "labels", "values")


@names_arguments(model_path="model", output="path")
def save(
    model: keras.Model,
    data: TrainingData | EvaluationData,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> str:
    """Saves a compiled model for `imageshards predict`, `evaluate` and `export`.

        ims.fit(model, train, epochs=5)
        ims.save(model, train, "mine/")
        rows = ims.predict("mine/", "photos/")

    The file has the card of a model of `imageshards train`: classes, target, and how pictures are
    prepared. It holds the model without its loss and optimizer; a layer behind it turns
    probabilities into logits.

    Args:
        model: A compiled model, with the loss of a class, of several labels, or of values.
        data: What `Data.train` returned for the model; or `Data.evaluation`, whose `eval_crop` then
            applies to photos, too.
        path: Folder, or `.keras` file; local, `gs://` or `s3://`.
        overwrite: Replaces a model that `ims.save` wrote there.

    Returns:
        The path of the `.keras` file.

    Raises:
        UserError: The model's loss or outputs do not fit the target, the target is none that the
            commands predict, functions of `map` change the pictures, or the file exists.
    """
    check_model(model)
    if not isinstance(data, TrainingData | EvaluationData):
        raise UserError(
            argument="data",
            received=type(data).__name__,
            expected="what ims.open(…).train(…) or ims.open(…).evaluation(…) returns",
        )
    place = storage.place("path", path)
    is_file = place.endswith(".keras")
    folder = (storage.parent_of(place) or ".") if is_file else place
    file = place if is_file else storage.join(folder, MODEL_FILE)
    dataset = data.subset.dataset
    if dataset.outputs or dataset.target not in _KINDS:
        raise UserError(
            argument="data",
            received=f"the target {described_target(dataset)}",
            expected="one target: a class, labels or values",
            remedy="save the model with Keras's model.save",
        )
    if not is_file and storage.exists(best := storage.join(folder, BEST_MODEL_FILE)):
        received = f"{place!r}, where commands take {best}"
        raise UserError(argument="path", received=received, expected="another folder")
    if storage.exists(file) and not overwrite:
        remedy = "use another name, or " + Arg("overwrite", True)
        raise UserError(argument="path", received=f"{file!r}, which exists", remedy=remedy)
    _refuse_changed_pictures(data)
    step = int(model.optimizer.iterations) if model.optimizer else 0
    card = card_of(data, step=step)
    with model.distribute_strategy.scope():
        served = as_ours(model, card, model.name)
    if storage.is_local(folder):
        os.makedirs(folder, exist_ok=True)
    with not_compiled(model):
        save_model(served, file, card)
    copy_transform(dataset, folder)
    return file


def _refuse_changed_pictures(data: TrainingData | EvaluationData) -> None:
    """Refuses functions of `map` that change inputs, which a saved model would get unchanged."""
    if not data.functions:
        return
    batches = [one.dataset() for one in (dataclasses.replace(data, functions=()), data)]
    plain, mapped = (next(iter(one.take(1).as_numpy_iterator()))[0] for one in batches)
    same = keras.tree.map_structure(lambda *pair: np.array_equal(*pair), plain, mapped)
    if not all(keras.tree.flatten(same)):
        raise UserError(
            argument="data",
            received="a function of map that changes the inputs of the model",
            expected="functions that change labels only",
            remedy="put the change into the model as a layer, for example keras.layers.Rescaling",
        )
