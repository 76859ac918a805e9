"""Runs a step of a compiled model on every replica: its own `train_step` or `test_step`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from trainer.dataset.batch import Batch, Specs, Tensors, input_of
from trainer.models.keras_internals import adapt_to_replicas, layers_of, optimizers_of

# A distributed global batch → the logs of the model's own step: numbers by name.
Step = Callable[[Batch], dict[str, tf.Tensor]]
# (inputs, label, weight) of one replica.
Data: TypeAlias = "tuple[Tensors, Tensors, tf.Tensor | None]"
_Compute: TypeAlias = "Callable[[Data], dict[str, tf.Tensor]]"
# A name and this host's value → the values of all hosts.
Gather = Callable[[str, Any], list[Any]]


def make_train_step(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    prepare: Callable[[Batch], Batch] | None = None,
    class_weight: Sequence[float] = (),
    drops_absent: bool = False,
) -> Step:
    """Returns a function that trains a compiled and built model on one distributed `Batch`.

    It returns the logs of the `train_step`, averaged over this host's replicas: see
    `logs_of_hosts`.

    Args:
        prepare: What each replica does to its share first, for example augmentation.
        class_weight: Factor of the weight of an example, by its class.
        drops_absent: Whether a batch may have broken records, which the model must not see. The
            model's batches then have no static size.
    """

    def prepared(batch: Batch) -> Batch:
        batch = batch if prepare is None else prepare(batch)
        if class_weight:
            label = batch["label"]
            # The largest share of a mixed label says the class, as in Keras.
            label = tf.argmax(label, -1) if label.shape.rank > 1 else label
            weight = tf.gather(tf.constant(class_weight, tf.float32), label)
            batch = {**batch, "weight": batch.get("weight", 1.0) * weight}
        return batch

    for optimizer in optimizers_of(model) if strategy.num_replicas_in_sync > 1 else ():
        adapt_to_replicas(optimizer)
    compute = _compiled(model, model.train_step)
    return _make_step(model, strategy, compute, prepared, drops_absent)


def make_test_step(
    model: keras.Model, strategy: tf.distribute.Strategy, drops_absent: bool
) -> Step:
    """Returns a function that adds one distributed `Batch` to the metrics of a compiled model.

    It returns means over this host's replicas: hosts need not take steps together. `drops_absent`
    says whether a batch may have padding or broken records, as for `make_train_step`.
    """
    compute = _compiled(model, model.test_step)
    return _make_step(model, strategy, compute, drops_absent=drops_absent)


def logs_of_hosts(
    model: keras.Model, logs: dict[str, tf.Tensor], gather: Gather
) -> dict[str, float]:
    """Returns the figures of an epoch or a validation, the same on all hosts.

    Metrics are summed over the replicas of all hosts; values in `logs`, the logs of the last step,
    that are no metrics are averaged over hosts. `gather` returns the values of all hosts, given a
    name and this host's value.
    """
    found = model._get_metrics_result_or_logs(logs) if logs else model.get_metrics_result()
    if found is logs and model.distribute_strategy.num_replicas_in_sync > 1:
        # `logs` has means over replicas, which are wrong if a replica had fewer records. A metric
        # that the step of a user has updated and returned gives the right result.
        for metric in model.metrics:
            if any(np.any(keras.ops.convert_to_numpy(value)) for value in metric.variables):
                result = metric.result()
                exact = result if isinstance(result, dict) else {metric.name: result}
                found = found | {name: one for name, one in exact.items() if name in logs}
    mine = {name: keras.ops.convert_to_numpy(one).tolist() for name, one in found.items()}
    of_hosts = gather("logs", mine)
    # The mean is float32, as TensorFlow's over replicas: hosts and replicas give the same bits.
    return {
        name: np.mean([one[name] for one in of_hosts], 0, dtype=np.float32).tolist()
        for name in mine
    }


def preprocessed(
    model: keras.Model, inputs: Tensors, label: Tensors, weight: tf.Tensor | None
) -> Data:
    """Returns the arguments of the model's steps, after the preprocessing of KerasHub's models."""
    if hasattr(model, "preprocess_samples"):
        return tuple(model.preprocess_samples(inputs, y=label, sample_weight=weight))
    return inputs, label, weight


def build_variables(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    batch: Specs,
    validates: bool = True,
    weighs: bool = True,
) -> None:
    """Makes every variable that a compiled model will have, also of metrics and the optimizer.

    Keras makes them in the first step, when it is too late to restore them. `batch` begins with the
    specifications of `TrainingData.dataset`; `validates` says whether `test_step` will run.
    """
    inputs, label, *_ = batch if isinstance(batch, tuple) else (batch, None)
    # The steps of this module may give weights to the model although `dataset()` gives none.
    rows = tf.nest.flatten(inputs)[0].shape[:1]
    label = None if isinstance(label, tf.NoneTensorSpec) else label
    batch = inputs, label, tf.TensorSpec(rows, tf.float32) if weighs else None

    def trace(step: Callable[[Data], Tensors]) -> Tensors:
        made = tf.function(lambda *data: step(preprocessed(model, *data)), autograph=False)
        return made.get_concrete_function(*batch).structured_outputs

    if type(model).train_step is keras.Model.train_step:
        with strategy.scope():
            model._symbolic_build(data_batch=trace(lambda data: data))
        return

    def is_complete() -> bool:
        with strategy.scope():
            if model.optimizer is not None and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
        parts = (model._compile_metrics, model._compile_loss)
        return all(part is None or part.built for part in parts)

    # Like Keras, call a model only to build it: its step may make something else of a batch.
    is_built = all(layer.built for layer in layers_of(model))
    if is_built and is_complete():
        return
    # Only the user's train_step knows the arguments of its loss and metrics. It is traced as on one
    # replica. The stateless scope drops its assignments, and makes the variables at its end.
    for step in (
        *([] if is_built else [lambda data: model(data[0], training=False)]),
        model.train_step,
        *([model.test_step] if validates else []),
    ):
        stateless = keras.StatelessScope()
        stateless.__enter__()
        try:
            trace(step)
        finally:
            with strategy.scope():
                stateless.__exit__()
        if is_complete():
            return


def _compiled(model: keras.Model, compute: _Compute) -> _Compute:
    """Returns `compute`, compiled by XLA if the model asks for it."""
    # Augmentation stays outside of XLA, which has no projective transform.
    if not model.jit_compile or model.run_eagerly:
        return compute
    return tf.function(compute, autograph=False, reduce_retracing=True, jit_compile=True)


def _make_step(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    compute: _Compute,
    prepare: Callable[[Batch], Batch] = lambda batch: batch,
    drops_absent: bool = False,
) -> Step:
    def on_replica(batch: Batch) -> dict[str, tf.Tensor]:
        batch, metrics = prepare(batch), []
        if drops_absent:
            # Keras's losses divide by the number of rows and its `metrics` ignore weights, so rows
            # of weight 0 would count. A share without records keeps its first row, of weight 0:
            # layers fail on an empty batch or make NaN of it, and all replicas have to take part in
            # sums over replicas.
            present = batch["present"]
            has_records = tf.reduce_any(present)
            is_first = tf.equal(tf.range(tf.size(present)), 0)
            kept = tf.logical_or(present, tf.logical_and(is_first, tf.logical_not(has_records)))
            batch = tf.nest.map_structure(functools.partial(tf.boolean_mask, mask=kept), batch)
            # A share without records still runs a step, so the metrics are put back after it.
            metrics = [variable.value for variable in model.metrics_variables]
        before = [tf.identity(metric) for metric in metrics]
        label, weight = batch.get("label"), batch.get("weight")
        logs = compute(preprocessed(model, input_of(batch), label, weight))
        for metric, value in zip(metrics, before, strict=True):
            metric.assign(tf.where(has_records, metric, value))
        return logs

    def step(batch: Batch) -> dict[str, tf.Tensor]:
        logs = strategy.run(on_replica, args=(batch,))
        local = {name: strategy.experimental_local_results(one) for name, one in logs.items()}
        return {name: v[0] if len(v) == 1 else sum(v) / len(v) for name, v in local.items()}

    if model.run_eagerly:
        return step
    # `reduce_retracing`: padded sequences change their length from batch to batch. As in Keras's
    # loop, autograph converts nothing, as it would take longer than tracing.
    return tf.function(step, autograph=False, reduce_retracing=True)
