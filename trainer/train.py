"""One training run, from a manifest to a saved model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from trainer import data, model, strategy
from trainer.callbacks import EpochLog
from trainer.config import TrainConfig
from trainer.errors import UserError
from trainer.inputs import Inputs, open_inputs
from trainer.outputs import METRICS_FILE, prepare_output, save_model

_SIGNS_OF_BAD_RECORDS = ("DecodeJpeg", "EnsureShape", "parse example", "ParseExample", "Feature:")


def train(config: TrainConfig, inputs: Inputs | None = None) -> dict[str, float | int | None]:
    """Trains, and leaves `model.keras` and `metrics.jsonl` in `config.output`.

    Args:
        config: What is asked for.
        inputs: What `open_inputs(config)` returned, where it was called already.

    Returns:
        The last epoch's metrics, as written.

    Raises:
        UserError: The data set, a flag or the output does not allow it.
    """
    name = model.resolve_name(config.model)
    inputs = inputs or open_inputs(config)
    prepare_output(config.output)
    devices = strategy.make_strategy(config.replicas, config.batch_size)
    keras.utils.set_random_seed(config.seed)

    training, validation = _batches(config, inputs)
    with devices.scope():
        network = model.build_model(
            name, inputs.size, len(inputs.manifest.classes), inputs.manifest.image
        )
        model.compile_model(network, config.learning_rate)
    _print_plan(config, inputs, network, devices)

    metrics_path = os.path.join(config.output, METRICS_FILE)
    with open(metrics_path, "w", encoding="utf-8") as out, broken_records_explained(config.data):
        log = EpochLog(out, config.epochs, inputs.steps_per_epoch * config.batch_size)
        network.fit(
            training,
            epochs=config.epochs,
            steps_per_epoch=inputs.steps_per_epoch,
            validation_data=validation,
            callbacks=[log],
            shuffle=False,
            verbose=0,
        )
    model_path = save_model(network, config.output)
    _print_result(model_path, metrics_path, log)
    return log.history[-1]


def _batches(config: TrainConfig, inputs: Inputs) -> tuple[tf.data.Dataset, tf.data.Dataset | None]:
    training = data.training_batches(
        inputs.manifest, inputs.training, config.seed, config.batch_size, inputs.size
    )
    if inputs.validation is None:
        return training, None
    validation = data.evaluation_batches(
        inputs.manifest, inputs.validation, config.batch_size, inputs.size
    )
    return training, validation


@contextmanager
def broken_records_explained(folder: str) -> Iterator[None]:
    """Turns what TensorFlow says of a broken shard or record into one sentence.

    Raises:
        UserError: For an error that comes from the data; any other passes through.
    """
    remedy = f"find it with python -m beam_pipeline.verify {folder}"
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.FailedPreconditionError) as e:
        raise UserError(
            f"--data received {folder!r}, whose shards hold broken records, or not as many as "
            f"the manifest says ({_first_line(e)}); {remedy}."
        ) from e
    # TensorFlow quotes a record that is no tf.train.Example, and stumbles over its bytes.
    except UnicodeDecodeError as e:
        raise UserError(
            f"--data received {folder!r}, which holds a record that is no tf.train.Example; "
            f"{remedy}."
        ) from e
    except tf.errors.InvalidArgumentError as e:
        if not any(sign in e.message for sign in _SIGNS_OF_BAD_RECORDS):
            raise
        raise UserError(
            f"--data received {folder!r}, which holds a record that is not what the manifest "
            f"says ({_first_line(e)}); {remedy}."
        ) from e


def _first_line(error: tf.errors.OpError) -> str:
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("Detected at")), "no reason given")


def _print_plan(
    config: TrainConfig, inputs: Inputs, network: keras.Model, devices: tf.distribute.Strategy
) -> None:
    manifest, size = inputs.manifest, inputs.size
    validation = inputs.validation
    print(
        f"{config.data}: {inputs.training.num_records} records to train on in "
        f"{len(inputs.training.shards)} shards, "
        f"{validation.num_records if validation else 0} to validate, "
        f"{len(manifest.classes)} classes"
    )
    replicas = devices.num_replicas_in_sync
    left_over = inputs.training.num_records % config.batch_size
    print(
        f"{network.name}: {network.count_params():,} parameters, pictures of "
        f"{size[0]}x{size[1]}x{manifest.image.channels} px, {strategy.describe(devices)}, "
        f"global batch {config.batch_size} ({config.batch_size // replicas} each), "
        f"{inputs.steps_per_epoch} steps per epoch"
        + (f"; {left_over} records carry over into the next one" if left_over else "")
    )
    if validation is None:
        print("no validation split: val_loss and val_accuracy will be null")
    if replicas > 1 and model.has_dropout(network):
        print(f"note: {network.name} has dropout; Keras draws the same mask on every replica")


def _print_result(model_path: str, metrics_path: str, log: EpochLog) -> None:
    print(f"model    {model_path}")
    print(f"metrics  {metrics_path}")
    print(f"training {log.images_per_second:.0f} images/s")
    accuracy = log.history[-1]["val_accuracy"]
    if accuracy is not None:
        print(f"validation accuracy {accuracy:.3f}")
