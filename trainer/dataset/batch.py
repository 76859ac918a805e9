"""Types of batches, as the reader makes them and models take them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from trainer.dataset.spec import IMAGE_INPUT

if TYPE_CHECKING:
    import tensorflow as tf

Batch = dict[str, Any]
"""A batch of B examples, as the reader makes it, has these keys:

- `inputs`: `image` uint8 [B, height, width, channels], `bounding_boxes`, and further features by
  their `input_name`. A function that the user gives to `TrainingData.map` replaces `inputs` by
  `mapped`.
- `label`: for a class int64 [B], or float32 [B, classes] after MixUp; for labels float32 [B,
  classes], 1 if a record has the label; for values float32 [B] or [B, k]; for boxes `BoxesOf`;
  for several targets a dictionary of these by name. Absent without a target.
- `weight`: float32 [B].
- `position`: int64 [B], the index in the endless training stream.
- `record`: int64 [B], the record's number within the split.
- `present`: bool [B], False for a broken record and for padding of an evaluation's last batch.
"""

# Bounding boxes of a batch, in the form of Keras's layers: `boxes` float32 [B, most, 4] has xmin,
# ymin, xmax, ymax relative to the picture; `labels` is int64 [B, most]. Both are -1 behind the last
# box.
BoxesOf: TypeAlias = "dict[str, tf.Tensor]"

# The label of a batch: a tensor, or tensors by name for boxes and for several targets.
Labels: TypeAlias = "tf.Tensor | dict[str, Labels]"

# Tensors in any structure that `tf.nest` supports, and the specifications of these tensors.
Tensors: TypeAlias = "tf.Tensor | Sequence[Tensors] | Mapping[str, Tensors] | None"
Specs: TypeAlias = "tf.TypeSpec | Sequence[Specs] | Mapping[str, Specs] | None"

_Input = TypeVar("_Input")


def input_of(batch: Batch) -> Tensors:
    """Returns the model's argument for a batch."""
    return batch["mapped"] if "mapped" in batch else model_input(batch["inputs"])


def model_input(inputs: Mapping[str, _Input]) -> _Input | dict[str, _Input]:
    """Returns the model's argument: a lone picture, or all inputs by name."""
    return inputs[IMAGE_INPUT] if set(inputs) == {IMAGE_INPUT} else dict(inputs)


@dataclasses.dataclass(frozen=True)
class ReplicaSlices:
    """The equal slices in which a host makes its part of a batch, one for each of its replicas.

    Attributes:
        replicas: Number of replicas of each host.
        hosts: Number of hosts that share a batch.
        host: Index of the host that makes these slices.
    """

    replicas: int = 1
    hosts: int = 1
    host: int = 0


# The whole batch as one slice.
WHOLE = ReplicaSlices()
