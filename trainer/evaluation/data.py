"""Describes the data on which a saved model is evaluated: its own target and inputs."""

from __future__ import annotations

import dataclasses

from imageshards.errors import UserError
from imageshards.manifest import VALIDATION_NAMES
from trainer.config import ReadConfig
from trainer.dataset.manifest import needed_split
from trainer.dataset.open import model_inputs
from trainer.dataset.spec import BOXES, DatasetSpec, ModelCard, ModelInputs, describe
from trainer.dataset.target import with_target_of
from trainer.reader.described import EvaluationData, evaluation_data


def data_of_model(
    card: ModelCard, config: ReadConfig, dataset: DatasetSpec, split_name: str | None, crops: bool
) -> EvaluationData:
    """Returns a pass over a split, with the target and the inputs of a saved model.

    `config` decides the share of each side that is kept if it `crops`, else the model.

    Raises:
        UserError: The split does not exist or has no records, or the dataset does not fit.
    """
    dataset = with_target_of(dataset, card)
    split = needed_split(dataset, "split", split_name, (*VALIDATION_NAMES, "test"))
    inputs = model_inputs(dataset, card)
    if crops:
        inputs = dataclasses.replace(inputs, eval_crop=config.eval_crop)
    return evaluation_data(config, dataset, split, inputs)


def check_fits(data: EvaluationData, card: ModelCard) -> None:
    """Refuses a pass whose target or inputs differ from the training of a saved model."""
    dataset = data.subset.dataset
    # Both may be the dataset's own label, which may have another name in another dataset.
    own = dataset.column is card.column is None
    mine = _shown(dataset, data.model_inputs, own)
    theirs = _shown(card, card.inputs, own)
    if mine != theirs:
        raise UserError(
            argument="data",
            received=f"{mine}, but the model was trained with {theirs}",
            expected="the same",
            remedy="make the EvaluationData with the arguments of the training, or give what "
            "ims.open(…) returned",
        )
    if dataset.weight_feature is not None and not card.compiled:
        raise UserError(
            argument="data",
            received=f"sample_weight={dataset.weight_feature!r}, by which figures of a saved model "
            "are not weighed",
            remedy="leave sample_weight out",
        )


def _shown(target: DatasetSpec | ModelCard, inputs: ModelInputs, is_own: bool) -> str:
    name = "the label" if is_own else target.column or target.label_feature
    shape = (*inputs.size, inputs.image.channels)
    features = [f"{n} ({one.dtype}, {one.form})" for n, one in sorted(inputs.features.items())]
    named = ", ".join([f"image {shape}", *features, *[BOXES] * (BOXES in inputs.names)])
    return (
        f"the target {name} ({describe(target)}), the inputs {named} and sequence_length "
        f"{inputs.sequence_length}"
    )
