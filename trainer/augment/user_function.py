"""Augmentation by a function of the user's own, on the host: batch → batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from imageshards.errors import UserError
from trainer.augment.augmentation import Augmentation, AugmentFunction
from trainer.augment.decode import batch_pictures
from trainer.augment.params import USER_PURPOSE, random_bits
from trainer.dataset.spec import IMAGE_INPUT, Batch, ImageSpec

# Operations whose results depend on how often they ran before: random numbers of TensorFlow's
# own generators, and the state of Keras's, which its random layers advance.
_RANDOM = (
    "Random",
    "StatefulRandom",
    "StatefulUniform",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "Multinomial",
    "SampleDistortedBoundingBox",
    "Assign",
    "RngSkip",
    "RngReadAndSkip",
)


def function_augmentation(
    function: AugmentFunction,
    *,
    image: ImageSpec,
    size: tuple[int, int],
    seed: int,
    labels: tf.TensorSpec,
) -> Augmentation:
    """What a run does with pictures of a `size` where the user's own `function` changes them.

    It takes images (uint8 [batch, *size, channels], as evaluation sees them), `labels` and seeds
    (int64 [batch, 2], a function of seed and position, for `tf.image.stateless_*`), and returns
    (images, labels), of any dtype, of static shapes that begin with the batch.

    Raises:
        UserError: `function` returns something else, or draws random numbers that are no
            function of `seeds`.
    """
    traced = _traced(function, (*size, image.channels), labels)

    def finish(batch: Batch) -> Batch:
        seeds = tf.cast(random_bits(seed, batch["position"], 2, USER_PURPOSE), tf.int64)
        images, labels = traced(batch["inputs"][IMAGE_INPUT], batch["label"], seeds)
        return batch | {"inputs": batch["inputs"] | {IMAGE_INPUT: images}, "label": labels}

    return Augmentation(size, batch_pictures(image, size), finish=finish)


def _traced(
    function: AugmentFunction, shape: tuple[int, ...], labels: tf.TensorSpec
) -> Callable[..., Any]:
    # Traced here and not where the reader calls it: there nothing is converted by AutoGraph.
    batch_size = labels.shape[0]
    traced = tf.function(function).get_concrete_function(
        tf.TensorSpec([batch_size, *shape], tf.uint8, "images"),
        tf.TensorSpec(labels.shape, labels.dtype, "labels"),
        tf.TensorSpec([batch_size, 2], tf.int64, "seeds"),
    )
    result = traced.structured_outputs
    name = getattr(function, "__name__", type(function).__name__)
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise UserError(
            f"augment received {name}, which returns {type(result).__name__}; expected two "
            "tensors: (images, labels)."
        )
    for what, tensor in zip(("images", "labels"), result, strict=True):
        found: Any = getattr(tensor, "shape", None)
        if found is None or not found.is_fully_defined() or found[:1] != [batch_size]:
            raise UserError(
                f"augment received {name}, which returns {what} of shape {found}; expected "
                f"a static shape that begins with the batch, {batch_size}: use tf.ensure_shape."
            )
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(n for part in graph.library.function for n in part.node_def)]
    stateful = sorted({node.op for node in nodes if node.op.startswith(_RANDOM)})
    if stateful:
        raise UserError(
            f"augment received {name}, whose results depend on what ran before ({stateful[0]}), "
            "so that no run could be resumed exactly; expected a function of its arguments: draw "
            "with tf.image.stateless_random_* or tf.random.stateless_*, by `seeds`."
        )
    return lambda *arguments: traced(*arguments)
