"""Trains in a custom loop that resumes exactly: python examples/custom_loop.py shards/ run/ 200

Stop the loop at any step and run the same command again: training resumes with the next record.
"""

import itertools
import sys

import keras
import tensorflow as tf

import imageshards as ims

if len(sys.argv) != 4:
    sys.exit(__doc__)
folder, run, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
train = ims.open(folder).train(batch_size=32, image_size=64, augment="light", seed=1)

keras.utils.set_random_seed(1)
pooled = keras.Sequential([keras.layers.AveragePooling2D(4), keras.layers.Flatten()])
model = keras.Sequential([keras.Input(train.image_shape), pooled, keras.layers.Dense(16, "relu")])
model.add(keras.layers.Dense(len(train.classes)))
optimizer = keras.optimizers.Adam()
optimizer.build(model.trainable_variables)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(m=model, o=optimizer), run, max_to_keep=2)
manager.restore_or_initialize()


@tf.function
def take_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        logits = model(tf.cast(images, tf.float32) / 255, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


start = int(optimizer.iterations)
for step, batch in enumerate(itertools.islice(train.dataset(start), max(0, steps - start)), start):
    print(f"step {step + 1}  loss {take_step(*batch):.6f}")
    manager.save()
