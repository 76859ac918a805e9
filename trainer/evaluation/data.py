"""Describes the data on which a saved model is evaluated: its own target and inputs."""

from __future__ import annotations

import dataclasses

from imageshards.errors import Arg, UserError
from trainer.config import ReadConfig
from trainer.dataset.manifest import find_split, validation_split
from trainer.dataset.open import model_inputs
from trainer.dataset.spec import BOXES, DatasetSpec, ModelCard, ModelInputs, Split, describe
from trainer.dataset.target import with_target_of
from trainer.reader.batches import EvaluationData, evaluation_data


def data_of_model(
    card: ModelCard, config: ReadConfig, dataset: DatasetSpec, split_name: str | None, crops: bool
) -> EvaluationData:
    """Returns a pass over a split, with the target and the inputs of a saved model.

    `config` decides the share of each side that is kept if it `crops`, else the model.

    Raises:
        UserError: The split does not exist or has no records, or the dataset does not fit.
    """
    dataset = with_target_of(dataset, card)
    split = _split(dataset, split_name)
    inputs = model_inputs(dataset, card)
    if crops:
        inputs = dataclasses.replace(inputs, eval_crop=config.eval_crop)
    return evaluation_data(config, dataset, split, inputs)


def check_fits(data: EvaluationData, card: ModelCard) -> None:
    """Refuses a pass whose target or inputs differ from the training of a saved model."""
    dataset, mine, theirs = data.subset.dataset, data.model_inputs, card.inputs
    columns = [one.column or one.label_feature for one in (dataset, card)]
    if dataset.column is card.column is None:
        # Both are the dataset's own label, which may have another name in another dataset.
        columns = ["", ""]
    for what, argument, received, expected in (
        ("a target that is", "target", describe(dataset), describe(card)),
        ("values of the shape", "target", dataset.target_shape, card.target_shape),
        ("the target", "target", *columns),
        ("pictures of the size", "image_size", mine.size, theirs.size),
        ("channels of pictures:", "inputs", mine.image.channels, theirs.image.channels),
        ("the inputs", "inputs", _inputs_of(mine), _inputs_of(theirs)),
        ("sequence_length", "sequence_length", mine.sequence_length, theirs.sequence_length),
    ):
        if received != expected:
            raise UserError(
                argument="data",
                received=f"{what} {received}, but the model was trained with {expected}",
                expected="the same",
                remedy=f"make the EvaluationData with another {argument}, or give what ims.open(…) "
                "returned",
            )
    if dataset.weight_feature is not None and not card.compiled:
        raise UserError(
            argument="data",
            received=f"sample_weight={dataset.weight_feature!r}, by which figures of a saved model "
            "are not weighed",
            remedy="leave sample_weight out",
        )


def _inputs_of(inputs: ModelInputs) -> str:
    features = sorted(inputs.features.items())
    named = [f"{name} ({one.dtype}, {one.form})" for name, one in features]
    return ", ".join(["image", *named, *[BOXES] * (BOXES in inputs.names)])


def _split(dataset: DatasetSpec, name: str | None) -> Split:
    if name:
        split: Split | None = find_split(dataset, "split", name)
    else:
        split = validation_split(dataset, None) or dataset.splits.get("test")
    if split is None:
        known = f", one of {', '.join(dataset.splits)}"
        expected = "the split to evaluate on by " + Arg("split") + known
        raise dataset.refused("which has no split to validate on", expected)
    if not split.num_records:
        raise UserError(
            argument="split",
            received=f"{split.name!r}, which has no records",
            expected="a split with records",
        )
    return split
