"""Everything about the data that can be wrong, found before TensorFlow is even imported."""

from __future__ import annotations

import dataclasses

from trainer.config import TrainConfig
from trainer.errors import UserError
from trainer.manifest import Manifest, Split, check_shards, load_manifest


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The data of one run.

    Attributes:
        manifest: The data set.
        training: The split to train on.
        validation: The split to validate on, or None.
        size: (height, width) in pixels the model sees.
        steps_per_epoch: Full global batches in one pass; what is left over opens the
            first batch of the next epoch.
    """

    manifest: Manifest
    training: Split
    validation: Split | None
    size: tuple[int, int]
    steps_per_epoch: int


def open_inputs(config: TrainConfig) -> Inputs:
    """Reads the manifest and compares it with the request and with the files.

    Raises:
        UserError: The data set is not whole, or does not hold what is asked for.
    """
    manifest = load_manifest(config.data)
    training = manifest.train_split(config.train_split)
    validation = manifest.validation_split(config.validation_split)
    if training.num_records < config.batch_size:
        raise UserError(
            f"--batch_size received {config.batch_size}, but the split {training.name} has "
            f"{training.num_records} records; expected at most that many."
        )
    size = config.image_size or manifest.image.size
    if size is None:
        raise UserError(
            f"--data received {config.data!r}, whose manifest.json names no picture size; "
            "give one by --image_size."
        )
    check_shards(config.data, [training] + ([validation] if validation else []))
    steps = training.num_records // config.batch_size
    return Inputs(manifest, training, validation, size, steps)
