"""Trains with Keras's own `fit` on a dataset: python examples/fit.py shards/"""

import sys

import keras

import imageshards as ims

if len(sys.argv) != 2:
    sys.exit(__doc__)
data = ims.open(sys.argv[1])
train = data.train(batch_size=32, image_size=96, augment="light", seed=1)
val = data.evaluation(batch_size=32, image_size=96)

model = keras.Sequential(
    [
        keras.Input(train.image_shape),
        keras.layers.Rescaling(1 / 127.5, offset=-1),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(len(train.classes)),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
model.fit(
    train.dataset(),
    steps_per_epoch=train.steps_per_epoch,
    epochs=5,
    validation_data=val.dataset(),
    shuffle=False,  # The reader shuffles the records.
    verbose=2,
)
