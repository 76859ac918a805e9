"""The flags of the commands: their types, what --help says of them, and the configuration."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from imageshards.commands.command_line import Parser, names_or_file, split_names
from imageshards.errors import UserError
from trainer.config import (
    AUGMENT_LEVELS,
    AUGMENT_ON,
    BALANCES,
    CACHES,
    CLUSTERS,
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    SEQUENCES,
    DataConfig,
    OptimizerConfig,
    TrainConfig,
    default_output,
    join_paths,
    parse_image_size,
    split_paths,
)


def _feature_map(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in split_names(text)]
    if not pairs or not all(key.strip() and value.strip() for key, _, value in pairs):
        raise UserError(
            f"--feature_map received {text!r}; expected NAME=FEATURE pairs, for example "
            "image=image_raw,label=class."
        )
    return {key.strip(): value.strip() for key, _, value in pairs}


def _shares(text: str) -> dict[str, float]:
    pairs = [pair.rpartition("=") for pair in split_paths(text)]
    try:
        return {name: float(share) for name, _, share in pairs}
    except ValueError:
        raise UserError(
            f"--mix received {text!r}; expected NAME=SHARE for each data set, for example "
            "a=0.7,b=0.3."
        ) from None


class _JoinPaths(argparse.Action):
    """Every --data adds to those before."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        if before is not None:
            values = join_paths([*split_paths(before), *split_paths(values)])
        setattr(namespace, self.dest, values)


# Attribute of a configuration → (options of `add_argument`, help). The defaults are those of
# the dataclasses, stated once.
_Flag = tuple[dict[str, Any], str]

DATA: dict[str, _Flag] = {
    "data": (
        {"metavar": "DIR[,DIR…]", "action": _JoinPaths},
        "data set: a folder with manifest.json as imageshards build writes it, or a folder "
        "or glob of TFRecords that others wrote; local, gs:// or s3://. Several, between commas "
        "or by --data again, are read as one, classes joined by name (a comma in a path: \\,)",
    ),
    "mix": (
        {"type": _shares, "metavar": "A=X,B=Y"},
        "the share of each data set in what is trained on, by its path or last folder, for "
        "example a=0.7,b=0.3 (default: every record once in an epoch)",
    ),
    "train_split": ({"metavar": "NAME"}, "split to train on (default: train or training)"),
    "validation_split": (
        {"metavar": "NAME"},
        "split to validate on after every epoch, or none (default: validation, val or "
        "valid, where there is one; never test)",
    ),
    "classes": (
        {"type": functools.partial(names_or_file, "--classes"), "metavar": "A,B|FILE"},
        "only records of these classes, numbered in this order, or a file with one per line "
        "(a comma in a name: \\,; default: all)",
    ),
    "where": (
        {"metavar": "CONDITION", "action": "append"},
        "only records that pass it, for example 'image/width>=128' or 'age!=0'; may be given "
        "several times",
    ),
    "balance": (
        {"choices": BALANCES},
        "weights: rare classes weigh more in the loss; sampling: their records are read several "
        "times in an epoch",
    ),
    "inputs": (
        {"type": split_names, "metavar": "A,B"},
        "features the model gets: image, and columns of the manifest: fixed or variable-length "
        "numbers (default: image)",
    ),
    "sequences": (
        {"choices": SEQUENCES},
        "how features of variable length are batched",
    ),
    "sequence_length": (
        {"type": int, "metavar": "N"},
        "padded length, longer ones are cut (default: the longest of each batch)",
    ),
    "image_size": (
        {"type": parse_image_size, "metavar": "PX"},
        "side of the pictures the model sees, in pixels, or HEIGHTxWIDTH; outside of augmentation "
        "pictures of another size are cropped to its aspect around their centre and resized "
        "(default: the data set's own size)",
    ),
    "eval_crop": (
        {"type": float, "metavar": "X"},
        "share of each side that is kept around the centre, before resizing, where pictures are "
        "evaluated or served: 0.875 as published ImageNet figures are measured; the model file "
        "keeps it",
    ),
    "cache": (
        {"choices": CACHES},
        "keeps the serialized records in memory, or copies of the shards in --cache_folder",
    ),
    "cache_folder": (
        {"metavar": "DIR"},
        "for copies of whole shards: by --cache disk, and of shards that TensorFlow cannot read "
        "itself, such as s3:// (default: OUTPUT/cache for --cache disk, else "
        "~/.cache/imageshards/shards)",
    ),
    "fast_order": (
        {"action": "store_true"},
        "reads in whatever order is fastest: neither the order nor a resumed run is "
        "reproducible then",
    ),
    "skip_broken": (
        {"type": int, "metavar": "N"},
        "how many broken records may be left out; they are listed at the end. Without it the "
        "first one stops the run",
    ),
    "threads": (
        {"type": int, "metavar": "N"},
        "of the reader's own pool (default: one per core)",
    ),
}

EXTERNAL: dict[str, _Flag] = {
    "feature_map": (
        {"type": _feature_map, "metavar": "image=A,label=B"},
        "which features of the records hold the picture, the label and the filename",
    ),
    "label_offset": (
        {"type": int, "metavar": "N"},
        "subtracted from every label: 1 for 1-based ImageNet labels",
    ),
    "class_names": (
        {"type": functools.partial(names_or_file, "--class_names"), "metavar": "A,B|FILE"},
        "class names in the order of the ids, or a file with one per line (default: TFDS's own, "
        "else the numbers)",
    ),
    "validation_data": (
        {"metavar": "DIR"},
        "folder or glob of the TFRecords to validate on (default: a split of --data)",
    ),
}

TRAINING: dict[str, _Flag] = {
    "model": (
        {"metavar": "NAME"},
        "cnn (four convolutions), any architecture of keras.applications, for example MobileNetV2, "
        "or your own as module:function, which returns logits or a compiled model",
    ),
    "metrics": (
        {"type": split_names, "metavar": "A,B"},
        "further metrics of every epoch: top5, auc, f1, or a class of keras.metrics that takes "
        "class probabilities",
    ),
    "callbacks": (
        {"metavar": "NAME"},
        "module:function of your own that returns a list of Keras callbacks",
    ),
    "weights": (
        {"metavar": "FILE"},
        ".keras or .weights.h5 to start from, local, gs:// or s3:// (default: random weights)",
    ),
    "epochs": ({"type": int, "metavar": "N"}, "passes over the training split"),
    "steps": ({"type": int, "metavar": "N"}, "steps in all, instead of --epochs"),
    "batch_size": (
        {"type": int, "metavar": "N"},
        "global batch: images per step, over all replicas together",
    ),
    "replicas": (
        {"type": int, "metavar": "N"},
        "devices that share each batch: GPUs, or logical CPU devices where there are none; other "
        "GPUs are left alone; of each host, with --cluster (default: all GPUs, else 1)",
    ),
    "seed": (
        {"type": int, "metavar": "N"},
        "of the initial weights, the order of the records and the augmentation, 0 to 2^31-1",
    ),
    "augment": (
        {"choices": AUGMENT_LEVELS},
        "light: random-resized crop and flip; strong: also rotation, colour, noise, erasing, "
        "MixUp and CutMix",
    ),
    "augment_on": (
        {"choices": AUGMENT_ON},
        "where pictures are cropped and changed: device (the reader only decodes), host, or auto: "
        "the device if it is a GPU",
    ),
}

HOSTS: dict[str, _Flag] = {
    "cluster": (
        {"choices": CLUSTERS},
        "several hosts share each batch, every one started with the same command: tf_config takes "
        "their addresses from the variable TF_CONFIG, slurm from srun. The first, the chief, "
        "alone writes --output and prints (default: this host alone)",
    ),
    "cluster_port": (
        {"type": int, "metavar": "N"},
        "of the first process on each host, with --cluster slurm",
    ),
    "cluster_timeout": (
        {"type": int, "metavar": "SEC"},
        "how long hosts may take to come, and be silent while others wait for their work",
    ),
}

OPTIMIZER: dict[str, _Flag] = {
    "optimizer": ({"choices": OPTIMIZERS}, "sgd is with Nesterov momentum"),
    "learning_rate": (
        {"type": float, "metavar": "X"},
        "the peak, where the warm-up ends and the schedule begins",
    ),
    "scale_learning_rate": (
        {"action": "store_true"},
        "multiplies --learning_rate by global batch / 256",
    ),
    "schedule": ({"choices": SCHEDULES}, "of the learning rate, after the warm-up"),
    "warmup_steps": ({"type": int, "metavar": "N"}, "in which the rate rises linearly from 0"),
    "decay_steps": (
        {"type": int, "metavar": "N"},
        "of the schedules step and exponential (default: a third of all steps)",
    ),
    "decay_rate": (
        {"type": float, "metavar": "X"},
        "the schedules step and exponential multiply the rate by it every --decay_steps",
    ),
    "momentum": ({"type": float, "metavar": "X"}, "of sgd, rmsprop and muon"),
    "weight_decay": (
        {"type": float, "metavar": "X"},
        "decoupled; normalisations and biases are exempt",
    ),
    "label_smoothing": ({"type": float, "metavar": "X"}, "from 0 to less than 1"),
    "ema": (
        {"type": float, "metavar": "X"},
        "momentum of a running average of the weights, for example 0.9999, which is validated "
        "and saved (default: none)",
    ),
    "accumulate_steps": (
        {"type": int, "metavar": "N"},
        "batches whose gradients are averaged before the weights change; on one replica only",
    ),
    "clipnorm": (
        {"type": float, "metavar": "X"},
        "largest norm of all gradients together (default: none)",
    ),
    "precision": ({"choices": PRECISIONS}, "of the model's arithmetic; weights stay float32"),
    "jit_compile": ({"action": "store_true"}, "compiles the model with XLA; on one replica only"),
}

RUN: dict[str, _Flag] = {
    "output": (
        {"metavar": "DIR"},
        "folder for checkpoints/, model.keras, weights.sha256, metrics.jsonl and report/, local, "
        "gs:// or s3://; the same command resumes an unfinished run there (default: DATA-model; "
        "trained for remote data, or several data sets)",
    ),
    "overwrite": ({"action": "store_true"}, "starts over, replacing the run in --output"),
    "checkpoint_steps": (
        {"type": int, "metavar": "N"},
        "steps between two checkpoints; one is also written at the end of every epoch",
    ),
    "keep_checkpoints": (
        {"type": int, "metavar": "N"},
        "how many of the last checkpoints are kept, besides the best",
    ),
    "dry_run": (
        {"action": "store_true"},
        "builds everything, takes one batch and shows it; trains nothing",
    ),
    "tensorboard": (
        {"action": "store_true"},
        "also writes TensorBoard's event files to OUTPUT/tensorboard",
    ),
}

_GROUPS = {
    "data": DATA,
    "TFRecords that others wrote": EXTERNAL,
    "training": TRAINING,
    "several hosts": HOSTS,
    "optimizer": OPTIMIZER,
    "output": RUN,
}

_DEFAULTS: dict[str, Any] = {
    field.name: field.default
    for kind in (DataConfig, TrainConfig, OptimizerConfig)
    for field in dataclasses.fields(kind)
}

EPILOG = (
    "metrics.jsonl gets one object per epoch: epoch (from 1), step, loss, accuracy, val_loss, "
    "val_accuracy, images_per_second, wait_fraction (share of the time the model waited for "
    "data), learning_rate. E epochs are floor(E * records / batch_size) steps: the records left "
    "over open the next epoch. Validation counts every picture exactly once."
)


def make_parser() -> Parser:
    """The parser of `imageshards train`."""
    parser = Parser(
        prog="imageshards train",
        description="Trains an image classifier from balanced TFRecord shards.",
        epilog=EPILOG,
    )
    for title, flags in _GROUPS.items():
        add_flags(parser.add_argument_group(title), flags)
    return parser


def add_flags(
    group: argparse._ActionsContainer,
    flags: Mapping[str, _Flag],
    names: Iterable[str] | None = None,
) -> None:
    """Adds `names` of `flags`, or all, to a parser. Flags not given leave no attribute."""
    for name in names or flags:
        options, text = flags[name]
        default = _DEFAULTS.get(name)
        if isinstance(default, str | int | float) and not isinstance(default, bool):
            text += f" (default: {default})"
        group.add_argument(
            f"--{name}", help=text, default=argparse.SUPPRESS, required=name == "data", **options
        )


def parse_config(argv: Sequence[str] | None) -> TrainConfig:
    """Command line → configuration.

    Raises:
        UserError: A flag is unknown, or has a value it does not take.
    """
    return train_config(vars(make_parser().parse_args(argv)))


def train_config(given: Mapping[str, Any]) -> TrainConfig:
    """Flags as argparse returns them → configuration.

    Raises:
        UserError: A flag has a value it does not take.
    """
    if "steps" in given and "epochs" in given:
        raise UserError(
            f"--steps received {given['steps']} together with --epochs {given['epochs']}; "
            "expected one of them: each says how long to train."
        )
    data = DataConfig(**_pick(given, DataConfig))
    return TrainConfig(
        data=data,
        output=given.get("output") or default_output(data.paths),
        optimizer=OptimizerConfig(**_pick(given, OptimizerConfig)),
        **_pick(given, TrainConfig, {"data", "output", "optimizer"}),
    )


def _pick(given: Mapping[str, Any], kind: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """The values of `given` that are fields of `kind`."""
    names = {field.name for field in dataclasses.fields(kind)} - set(without)
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if name in names
    }
