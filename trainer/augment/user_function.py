"""Calls functions of the user on the host, batch → batch: for `augment`, and for `map`."""

from __future__ import annotations

import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from imageshards.errors import UserError
from trainer.augment.augmentation import Augmentation, AugmentFunction, MapFunction
from trainer.augment.decode import batch_pictures
from trainer.augment.params import USER_PURPOSE, random_bits
from trainer.dataset.batch import Batch, Specs, Tensors, input_of
from trainer.dataset.spec import IMAGE_INPUT, ImageSpec

# Prefixes of operations whose results depend on earlier calls: TensorFlow's generators, and the
# assignments by which Keras's random layers advance their state.
_RANDOM = tuple(
    "Random StatefulRandom StatefulUniform StatefulStandardNormal StatefulTruncatedNormal "
    "TruncatedNormal ParameterizedTruncatedNormal Multinomial SampleDistortedBoundingBox Assign "
    "RngSkip RngReadAndSkip".split()
)
_WITH_SEEDS = ": draw with tf.image.stateless_random_* or tf.random.stateless_*, by `seeds`"


def function_augmentation(
    function: AugmentFunction,
    *,
    image: ImageSpec,
    size: tuple[int, int],
    seed: int,
    labels: Specs,
    batch_size: int,
) -> Augmentation:
    """Returns the augmentation of pictures of a `size` by the user's `function`.

    The function takes images (uint8 [batch, *size, channels], as in evaluation), `labels` (None
    without a target) and seeds (int64 [batch, 2], which depend on seed and position, for
    `tf.image.stateless_*`). It returns (images, labels) of any dtype, with static shapes that begin
    with the batch; random numbers must depend on `seeds`.
    """
    traced = _traced(
        "augment",
        function,
        tf.TensorSpec([batch_size, *size, image.channels], tf.uint8, "images"),
        labels,
        tf.TensorSpec([batch_size, 2], tf.int64, "seeds"),
    )
    result = traced.structured_outputs
    if not isinstance(result, tuple | list) or len(result) != 2:
        problem = f"which returns {type(result).__name__}"
        raise _refused("augment", function, problem, "two values, (images, labels)")
    for noun, value in zip(("images", "labels"), result, strict=True):
        _check_shapes("augment", function, noun, value, batch_size)

    def finish(batch: Batch) -> Batch:
        # The purpose keeps these seeds apart from the numbers that the built-in levels draw.
        seeds = tf.cast(random_bits(seed, batch["position"], 2, USER_PURPOSE), tf.int64)
        images, labels = traced(batch["inputs"][IMAGE_INPUT], batch.get("label"), seeds)
        changed = batch | {"inputs": batch["inputs"] | {IMAGE_INPUT: images}}
        return changed if labels is None else changed | {"label": labels}

    return Augmentation(size, batch_pictures(image, size), finish=finish)


def mapped(
    functions: Sequence[MapFunction], batch_size: int | None = None, weighs: bool = True
) -> list[Callable[[Batch], Batch]]:
    """Returns the user's `map` functions as functions of a `Batch`.

    Each takes (inputs, label), or inputs alone without a label, and returns (inputs, label) or
    inputs. `batch_size` is None if the last batch may be short. Batches keep their `weight` if
    `weighs`. Functions with other results or with random numbers are refused when the dataset is
    created.
    """
    dropped = ("inputs", "mapped", "label", *["weight"] * (not weighs))
    return [functools.partial(_map_batch, function, batch_size, dropped) for function in functions]


def _map_batch(
    function: MapFunction, batch_size: int | None, dropped: Sequence[str], batch: Batch
) -> Batch:
    given = (input_of(batch), batch["label"]) if "label" in batch else (input_of(batch),)
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, given)
    traced = _traced("map", function, *specs)
    result = traced.structured_outputs
    if isinstance(result, tuple) and len(result) != 2:
        expected = "(inputs, label), or inputs alone; sample_weight=COLUMN weighs records"
        raise _refused("map", function, f"which returns {len(result)} values", expected)
    _check_shapes("map", function, "a value", result, batch_size)
    found = traced(*given)
    rest = {name: one for name, one in batch.items() if name not in dropped}
    if isinstance(result, tuple):
        return rest | {"mapped": found[0], "label": found[1]}
    return rest | {"mapped": found}


def identity_of(argument: str, function: Callable[..., Tensors]) -> str:
    """Returns the name of a function and a hash of its source, by which a resumed run compares it.

    Values that the function takes from outside its source do not count. A function without a
    source, typed into a Python prompt, is refused.
    """
    # A `functools.partial` has no source, but its function and the `repr` of its arguments do.
    parts: list[Any] = [function]
    if isinstance(function, functools.partial):
        parts = [function.func, *function.args, *function.keywords.items()]
    named = parts[0] if hasattr(parts[0], "__qualname__") else type(parts[0])
    try:
        source = textwrap.dedent(inspect.getsource(named))
    except (OSError, TypeError) as e:
        expected = "a function in a file, which a resumed run can compare"
        raise _refused(argument, function, f"whose source cannot be read ({e})", expected) from e
    text = "\n".join([source, *map(repr, parts[1:])])
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{named.__module__}.{named.__qualname__} {digest[:16]}"


def _traced(
    argument: str, function: Callable[..., Tensors], *specs: Specs
) -> tf.types.experimental.ConcreteFunction:
    """Returns `function` as a concrete function, unless it draws random numbers without seeds."""
    # The reader switches AutoGraph off, so a user's `if` on a tensor works only if traced here.
    traced = tf.function(function).get_concrete_function(*specs)
    # Branches and loops are functions of the graph's library.
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(n for part in graph.library.function for n in part.node_def)]
    stateful = sorted({node.op for node in nodes if node.op.startswith(_RANDOM)})
    if stateful:
        problem = f"whose results depend on earlier calls ({stateful[0]})"
        expected = "a function of its arguments alone, so that a run resumes exactly"
        expected += _WITH_SEEDS if argument == "augment" else ""
        raise _refused(argument, function, problem, expected)
    return traced


def _check_shapes(
    argument: str,
    function: Callable[..., Tensors],
    noun: str,
    result: Tensors,
    batch_size: int | None,
) -> None:
    """Refuses results without a batch dimension; `batch_size` must match where it is known."""
    # `flatten` returns None for a missing label.
    for tensor in tf.nest.flatten(result):
        shape: Any = getattr(tensor, "shape", None)
        if tensor is None:
            continue
        if shape is not None and shape.rank and batch_size in (None, shape[0]):
            continue
        size = "the batch" if batch_size is None else f"the batch, {batch_size}"
        problem, expected = f"which returns {noun} of shape {shape}", "a shape that begins with "
        raise _refused(argument, function, problem, f"{expected}{size}: use tf.ensure_shape")


def _refused(
    argument: str, function: Callable[..., Tensors], problem: str, expected: str
) -> UserError:
    name = getattr(function, "__name__", type(function).__name__)
    return UserError(argument=argument, received=f"{name}, {problem}", expected=expected)
