"""Whether a data set fits a trained model, and how the one is read for the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from imageshards.errors import UserError
from trainer.dataset.spec import DataSet, ModelCard, ModelInputs, Subset
from trainer.reader.parse import IMAGE_INPUT, check_inputs


def class_ids(subset: Subset, classes: Sequence[str]) -> tuple[int, ...]:
    """For each class that is read, its number among the model's `classes`.

    Raises:
        UserError: The model does not know it.
    """
    known = {name: number for number, name in enumerate(classes)}
    unknown = [name for name in subset.classes if name not in known]
    if unknown:
        some = ", ".join(classes[:8]) + (", …" if len(classes) > 8 else "")
        numbers = all(name.isdecimal() for name in unknown)
        remedy = "name them by --class_names" if numbers else "leave them out by --classes"
        raise UserError(
            f"--data received {subset.dataset.data!r}, whose classes "
            f"{', '.join(unknown[:8])}{', …' if len(unknown) > 8 else ''} the model does not "
            f"know; expected some of {some}: {remedy}."
        )
    return tuple(known[name] for name in subset.classes)


def model_inputs(dataset: DataSet, card: ModelCard) -> ModelInputs:
    """What a trained model is fed with, from another data set.

    Raises:
        UserError: The data set lacks a feature, or has it in another form.
    """
    for name, spec in card.inputs.features.items():
        if dataset.features.get(name) != spec:
            has = dataset.features.get(name)
            raise UserError(
                f"--data received {dataset.data!r}, which has {name} "
                f"{f'as {has.dtype} {has.shape}' if has else 'not at all'}; expected "
                f"{spec.dtype} {spec.shape}, which the model is fed with."
            )
    features = check_inputs(dataset, (IMAGE_INPUT, *card.inputs.features))
    # How large the pictures are is the data set's matter, how they are seen the model's.
    image = dataclasses.replace(dataset.image, channels=card.inputs.image.channels)
    return dataclasses.replace(card.inputs, image=image, features=features)
