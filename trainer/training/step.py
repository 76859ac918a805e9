"""One training step on all replicas, as a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer.dataset.spec import Batch
from trainer.models.model import model_input

Prepare = Callable[[Batch], Batch]


def make_train_step(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    prepare: Prepare | None,
    jit_compile: bool = False,
) -> Callable[[Batch], tf.Tensor]:
    """A function that trains on one distributed global batch.

    Args:
        model: Compiled, with its optimizer built.
        strategy: Whose replicas share the batch.
        prepare: What each replica does to its share first, for example augmentation.
        jit_compile: Compiles the step with XLA.

    Returns:
        Batch → float32 [3]: the sums over the batch of the examples' weighted losses, of
        the weights of those classified correctly, and of all weights.
    """
    replicas = strategy.num_replicas_in_sync

    # XLA knows no projective transform: what `prepare` does stays outside of what it compiles.
    @tf.function(autograph=False, reduce_retracing=True, jit_compile=jit_compile or None)
    def learn(inputs: Any, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            # Per example, because Keras divides a mean by the number of replicas on its own.
            loss = tf.reduce_sum(weights * model.loss.call(labels, logits))
            penalties = [tf.cast(penalty, tf.float32) for penalty in model.losses]
            # The optimizer adds up the replicas' gradients: each brings its share.
            mean = loss / tf.cast(tf.shape(weights)[0], tf.float32)
            scaled = model.optimizer.scale_loss(tf.add_n([mean, *penalties]) / replicas)
        gradients = tape.gradient(scaled, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        correct = tf.cast(tf.equal(tf.argmax(logits, -1), _class_ids(labels)), tf.float32)
        return tf.stack([loss, tf.reduce_sum(weights * correct), tf.reduce_sum(weights)])

    # Where nothing is compiled, one graph less is one graph less to trace.
    compute = learn if jit_compile else learn.python_function

    def on_replica(batch: Batch) -> tf.Tensor:
        batch = prepare(batch) if prepare is not None else batch
        return compute(model_input(batch["inputs"]), batch["label"], batch["weight"])

    # Padded sequences change their length from batch to batch. As in Keras's own loop, nothing is
    # converted by autograph, which would take longer than tracing.
    @tf.function(autograph=False, reduce_retracing=True)
    def step(batch: Batch) -> tf.Tensor:
        sums = strategy.run(on_replica, args=(batch,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    return step


def _class_ids(labels: tf.Tensor) -> tf.Tensor:
    """Of mixed labels, the class with the largest share."""
    return tf.argmax(labels, -1) if labels.shape.rank == 2 else tf.cast(labels, tf.int64)
