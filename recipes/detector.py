"""Trains a small detector on drawn images with one shape each, and prints the mean IoU.

Shows:     a table with boxes in pixels; target="bounding_boxes", where boxes follow crop and flip;
           `map`; `ims.fit` with a custom loss and metric, which resumes inside an epoch
Command:   python -m recipes.detector --output recipe_output/detector
Hardware:  2 cores of an AMD EPYC, no GPU, with other work on them
Time:      2 min 17 s
Result:    mean IoU 0.883 on 206 validation images, after 30 epochs of 1,794 images

A second run keeps existing shards and resumes an interrupted training.
"""

from __future__ import annotations

import argparse
import csv
import os
import pathlib
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import imageshards as ims

SIDE_PX = 64


def draw_pictures(folder: pathlib.Path, count: int) -> pathlib.Path:
    """Draws images of one ellipse or rectangle on noise.

    Returns:
        A table with one box per row; the sides of the boxes are in pixels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "boxes.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "label", "xmin", "xmax", "ymin", "ymax"])
        for number in range(count):
            rng = np.random.default_rng(number)
            noise = rng.integers(60, 140, (96, 96, 3), np.uint8)
            picture = Image.fromarray(noise).resize((96, 96))
            width, height = rng.integers(20, 50, 2).tolist()
            left, top = rng.integers(2, 94 - max(width, height), 2).tolist()
            box = (left, top, left + width - 1, top + height - 1)
            label = ("ellipse", "rectangle")[number % 2]
            colour = tuple(rng.integers(170, 256, 3).tolist())
            getattr(ImageDraw.Draw(picture), label)(box, fill=colour)
            picture.save(folder / f"{number:04}.jpg", quality=92)
            rows.writerow([f"{number:04}.jpg", label, left, left + width, top, top + height])
    return table


def first_box(inputs: Any, label: Any) -> Any:
    """Reduces the target to the box of the only object; -1 if the crop removed the object."""
    return inputs, label["boxes"][:, 0]


def make_model() -> Any:
    """Returns a compiled model with a custom loss and the mean IoU as metric.

    The model predicts xmin, ymin, xmax and ymax (0..1) of an image.
    """
    import keras
    from keras import ops

    def absolute_error(y_true: Any, y_pred: Any) -> Any:
        is_seen = ops.cast(y_true[:, :1] >= 0, y_pred.dtype)
        return ops.mean(is_seen * ops.abs(y_true - y_pred), -1)

    def iou(y_true: Any, y_pred: Any) -> Any:
        low = ops.maximum(y_true[:, :2], y_pred[:, :2])
        high = ops.minimum(y_true[:, 2:], y_pred[:, 2:])
        both = ops.prod(ops.maximum(high - low, 0.0), -1)
        areas = [ops.prod(ops.maximum(b[:, 2:] - b[:, :2], 0.0), -1) for b in (y_true, y_pred)]
        return both / ops.maximum(areas[0] + areas[1] - both, 1e-6)

    inputs = keras.Input((SIDE_PX, SIDE_PX, 3), dtype="uint8")
    x = keras.layers.Rescaling(1 / 127.5, -1)(inputs)
    for filters in (16, 32, 64, 64):
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization(momentum=0.9)(x)
        x = keras.layers.MaxPooling2D()(keras.layers.ReLU()(x))
    x = keras.layers.Dense(64, activation="relu")(keras.layers.Flatten()(x))
    model = keras.Model(inputs, keras.layers.Dense(4, activation="sigmoid")(x), name="detector")
    model.compile(keras.optimizers.Adam(1e-3), absolute_error, metrics=[iou])
    return model


def main(argv: list[str] | None = None) -> float:
    """Draws, builds, trains and evaluates; returns the mean IoU on the validation split."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args(argv)
    shards = args.output / "shards"
    if not (shards / "manifest.json").exists():
        table = draw_pictures(args.output / "pictures", args.pictures)
        ims.build(table, shards, image_size=SIDE_PX, bbox_format="pixels", num_shards=4)
    data = ims.open(shards)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras

    how: dict[str, Any] = {"batch_size": 32, "target": "bounding_boxes", "sequence_length": 1}
    train = data.train(augment="light", seed=1, **how).map(first_box)
    val = data.evaluation(**how).map(first_box)
    keras.utils.set_random_seed(1)
    model = make_model()
    ims.fit(
        model,
        train,
        validation_data=val,
        epochs=args.epochs,
        verbose=2,
        checkpoint_dir=args.output / "run",
    )
    found = ims.evaluate(model, val)["iou"]
    print(f"mean IoU on {val.num_records:,} images: {found:.3f}")
    return float(found)


if __name__ == "__main__":
    main()
