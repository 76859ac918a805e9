"""What a training run is asked to do: one frozen dataclass, validated once."""

from __future__ import annotations

import dataclasses
import math
import os

from trainer.errors import UserError

MAX_SEED = 2**31 - 1
MAX_SIDE_PX = 16384


def is_remote(path: str) -> bool:
    """Whether `path` names a filesystem such as `gs://` instead of a local folder."""
    return "://" in path


def default_output(data: str) -> str:
    """The folder a run writes to when `--output` is not given: `DATA-model`, else `trained`."""
    if is_remote(data):
        return "trained"
    return os.path.normpath(os.path.abspath(data)) + "-model"


def parse_image_size(text: str) -> tuple[int, int]:
    """`"256"` → (256, 256); `"192x256"` → height 192, width 256, both in pixels.

    Raises:
        UserError: `text` is neither form, or a side is out of range.
    """
    sides = text.lower().split("x")
    if len(sides) not in (1, 2) or not all(side.isdecimal() for side in sides):
        raise UserError(
            f"--image_size received {text!r}; expected pixels as SIDE or HEIGHTxWIDTH, "
            "for example 256 or 192x256."
        )
    height_px, width_px = int(sides[0]), int(sides[-1])
    if not 1 <= min(height_px, width_px) <= max(height_px, width_px) <= MAX_SIDE_PX:
        raise UserError(f"--image_size received {text}; expected 1 to {MAX_SIDE_PX} pixels.")
    return height_px, width_px


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One training run, whole.

    Attributes:
        data: Folder of a data set, local or any filesystem TensorFlow knows.
        output: Local folder for `model.keras` and `metrics.jsonl`.
        model: `cnn`, or a name in `keras.applications`.
        epochs: How often `num_records // batch_size` steps are run and measured.
        batch_size: Global: the sum over all replicas.
        replicas: Devices that share a batch; None for every GPU, or one CPU.
        seed: Of the initial weights and of the order of the records.
        image_size: (height, width) in pixels the model sees; None for the data set's own.
        learning_rate: Of Adam, constant.
        train_split, validation_split: Names in the manifest; None for the usual ones;
            validation `none` for no validation.
    """

    data: str
    output: str
    model: str = "cnn"
    epochs: int = 5
    batch_size: int = 32
    replicas: int | None = None
    seed: int = 0
    image_size: tuple[int, int] | None = None
    learning_rate: float = 1e-3
    train_split: str | None = None
    validation_split: str | None = None

    def __post_init__(self) -> None:
        for flag, received in (
            ("--epochs", self.epochs),
            ("--batch_size", self.batch_size),
            ("--replicas", 1 if self.replicas is None else self.replicas),
        ):
            if received < 1:
                raise UserError(f"{flag} received {received}; expected at least 1.")
        if not 0 <= self.seed <= MAX_SEED:
            raise UserError(f"--seed received {self.seed}; expected 0 to {MAX_SEED}.")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UserError(
                f"--learning_rate received {self.learning_rate}; expected a number above 0."
            )
        if is_remote(self.output):
            raise UserError(
                f"--output received {self.output!r}; expected a local folder, from which "
                "the model can be copied afterwards."
            )
        if self.replicas is not None and self.batch_size % self.replicas:
            raise uneven_batch(self.batch_size, self.replicas)


def uneven_batch(batch_size: int, replicas: int) -> UserError:
    """The refusal of a global batch that replicas cannot share equally.

    Keras divides each replica's loss by its own share, so the examples of a smaller share
    would weigh more.
    """
    nearest = max(replicas, round(batch_size / replicas) * replicas)
    return UserError(
        f"--batch_size received {batch_size}, which {replicas} replicas cannot share equally; "
        f"expected a multiple of {replicas}, for example {nearest}."
    )
