"""Trains with `ims.fit` and resumes inside an epoch: python examples/fit_resume.py shards/ run/ 2

The last argument is the number of replicas: GPUs, or logical CPU devices on a host without GPUs.
Kill the script at any step and run the same command again: training resumes with the next record,
and the final weights are the same as without the interruption.
"""

import sys

import keras
import tensorflow as tf

import imageshards as ims

if len(sys.argv) != 4:
    sys.exit(__doc__)
folder, run, replicas = sys.argv[1], sys.argv[2], int(sys.argv[3])
if not tf.config.list_physical_devices("GPU"):
    cpu, one = tf.config.list_physical_devices("CPU")[0], tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [one] * replicas)
kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
strategy = tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(replicas)])

data = ims.open(folder)
train = data.train(batch_size=32, image_size=64, augment="light", seed=1)
val = data.evaluation(batch_size=32, image_size=64)

keras.utils.set_random_seed(1)
with strategy.scope():
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.AveragePooling2D(4)]
    layers += [keras.layers.Flatten(), keras.layers.Dropout(0.2)]
    layers += [keras.layers.Dense(len(train.classes))]
    model = keras.Sequential([keras.Input(train.image_shape), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, weighted_metrics=["accuracy"])

patient = keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)
ims.fit(
    model, train, validation_data=val, epochs=5, checkpoint_dir=run, checkpoint_steps=100,
    callbacks=[patient, ims.MetricsFile(f"{run}/metrics.jsonl")], verbose=2,
)  # fmt: skip
