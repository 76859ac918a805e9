"""Whether a data set and a model fit together: inputs, classes, features."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from imageshards.errors import UserError
from trainer.dataset.filters import unknown_feature
from trainer.dataset.spec import (
    IMAGE_INPUT,
    DataSet,
    FeatureSpec,
    ModelCard,
    ModelInputs,
    Subset,
    input_name,
)


def check_inputs(dataset: DataSet, names: Sequence[str]) -> Mapping[str, FeatureSpec]:
    """The features besides the picture that a model is to be fed with.

    Args:
        dataset: What they are features of.
        names: As `--inputs` gives them; `image` stands for the picture.

    Returns:
        Their specifications by name, in the order of `names`, without `image`.

    Raises:
        UserError: `image` is missing, a name is unknown, or no model can be fed with it.
    """
    received = f"--inputs received {','.join(names)!r}"
    if IMAGE_INPUT not in names:
        raise UserError(f"{received}; expected image, the picture, among the names.")
    inputs: dict[str, FeatureSpec] = {}
    for name in names:
        if name == IMAGE_INPUT:
            continue
        if name == dataset.image_feature:
            raise UserError(f"{received}; expected the picture under the name image, not {name}.")
        if name == dataset.label_feature:
            raise UserError(
                f"{received}, but {name} is the label, which the model has to find; leave it out."
            )
        if name not in dataset.features:
            raise UserError(f"{received}; {unknown_feature(name, dataset.features)}.")
        if dataset.features[name].dtype == "string":
            raise UserError(
                f"{received}, but {name} is a text, and TensorFlow cannot put texts on devices; "
                "expected numbers: turn it into some with a column of python -m beam_pipeline "
                "(texts are shown in the report)."
            )
        same = [n for n in (IMAGE_INPUT, *inputs) if input_name(n) == input_name(name)]
        if same:
            raise UserError(
                f"{received}, but {same[0]} and {name} would both be called "
                f"{input_name(name)} as inputs of the model; leave one of them out."
            )
        inputs[name] = dataset.features[name]
    return inputs


def class_ids(subset: Subset, classes: Sequence[str]) -> tuple[int, ...]:
    """For each class of `subset`, its number among the model's `classes`.

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
    # Sizes of stored pictures are the data set's; their channels are what the model was built for.
    image = dataclasses.replace(dataset.image, channels=card.inputs.image.channels)
    return dataclasses.replace(card.inputs, image=image, features=features)
