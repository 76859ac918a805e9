"""Configures a training run: frozen dataclasses, each validated when it is made.

The `Option` of a field is also the flag of `imageshards train`, with its help and limits.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Annotated

from imageshards.commands.command_line import names_or_file, split_names
from imageshards.commands.options import Option, check_options
from imageshards.errors import Arg, UserError
from imageshards.manifest import RECORDS_ROOT_HELP
from imageshards.storage import is_local, place
from imageshards.text import counted

MAX_SEED = 2**31 - 1
MAX_SIDE_PX = 16384

OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop")
# Names in `keras.losses` for each kind of target. The first is the default. A class has none, as
# the trainer always uses cross-entropy.
LOSSES = {
    "class": (),
    "labels": ("binary_crossentropy", "binary_focal_crossentropy"),
    "values": (
        "mean_squared_error",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_logarithmic_error",
        "huber",
        "log_cosh",
    ),
}
# The prefix of --model that names a preset of KerasHub.
KERAS_HUB = "keras_hub:"
PRECISIONS = ("float32", "bfloat16", "float16")


def default_output(data: str) -> str:
    """Returns the output folder without `--output`: `DATA-model`, or `trained` for remote data."""
    return os.path.normpath(os.path.abspath(data)) + "-model" if is_local(data) else "trained"


def parse_image_size(text: str) -> tuple[int, int]:
    """Parses the height and width of pictures, in pixels.

    >>> parse_image_size("256"), parse_image_size("192x256")
    ((256, 256), (192, 256))

    Raises:
        UserError: `text` has another form, or a side is out of range.
    """
    sides = text.lower().split("x")
    if len(sides) not in (1, 2) or not all(side.isdecimal() for side in sides):
        raise UserError(
            argument="image_size",
            received=repr(text),
            expected="pixels as SIDE or HEIGHTxWIDTH, for example 256 or 192x256",
        )
    height_px, width_px = int(sides[0]), int(sides[-1])
    if not 1 <= min(height_px, width_px) <= max(height_px, width_px) <= MAX_SIDE_PX:
        raise UserError(argument="image_size", received=text, expected=f"1 to {MAX_SIDE_PX} pixels")
    return height_px, width_px


@dataclasses.dataclass(frozen=True)
class ReadConfig:
    """The options that choose records, and that make batches from them."""

    # fmt: off
    data: Annotated[str, Option(
        "dataset: a folder with manifest.json as imageshards build writes it, or imageshards "
        "adopt for TFRecords that others wrote; local, gs:// or s3://",
        place=place, metavar="DIR", action="append")]
    records_root: Annotated[str | None, Option(
        RECORDS_ROOT_HELP, place=place, metavar="PLACE")] = None
    train_split: Annotated[str | None, Option(
        "split to train on (default: train or training)", metavar="NAME")] = None
    target: Annotated[str | None, Option(
        "feature that the model learns instead of the dataset's own label: one or k floats "
        "(regression), a whole number or a text (a class), a list of these of variable length "
        "(any number of labels), or bounding_boxes, with a compiled model",
        metavar="COLUMN")] = None
    target_kind: Annotated[str | None, Option(
        "class: the whole numbers of --target are classes, even if there are more than 20, or they "
        "do not count from 0 (default: such a column is refused, as quantities are floats)",
        choices=("class",))] = None
    sample_weight: Annotated[str | None, Option(
        "feature with the weight of each record, one number, in the loss and metrics of training",
        metavar="COLUMN")] = None
    validation_split: Annotated[str | None, Option(
        "split to validate on after every epoch, or none (default: validation, val or "
        "valid, where there is one; never test)", metavar="NAME")] = None
    classes: Annotated[tuple[str, ...] | None, Option(
        "only records of these classes (with one of these labels at least), numbered in this "
        "order, or a file with one per line "
        "(a comma in a name: \\,; default: all)",
        parse=functools.partial(names_or_file, "classes"), metavar="A,B|FILE")] = None
    where: Annotated[tuple[str, ...], Option(
        "only records that pass it, for example 'image/width>=128' or 'age!=0'; may be given "
        "several times", metavar="CONDITION", action="append")] = ()
    inputs: Annotated[tuple[str, ...], Option(
        "features the model gets: image, columns of the manifest (fixed or variable-length "
        "numbers), and bounding_boxes, which follow the pixels (default: image)",
        parse=split_names, metavar="A,B")] = ("image",)
    min_box_visibility: Annotated[float, Option(
        "smallest share of a bounding box's area that must remain after crop, flip and rotation; "
        "boxes with less are dropped with their labels", least=0, most=1)] = 0.1
    sequence_length: Annotated[int | None, Option(
        "length to which sequences are padded or cut (default: the longest of each batch)",
        least=1)] = None
    image_size: Annotated[tuple[int, int] | None, Option(
        "side of the pictures the model sees, in pixels, or HEIGHTxWIDTH; outside of augmentation "
        "pictures of another size are cropped to its aspect around their centre and resized "
        "(default: the dataset's own size)", parse=parse_image_size, metavar="PX")] = None
    eval_crop: Annotated[float, Option(
        "share of each side that is kept around the centre, before resizing, where pictures are "
        "evaluated or served: 0.875 as published ImageNet figures are measured; the model file "
        "keeps it", above=0, most=1)] = 1.0
    balance: Annotated[str, Option(
        "weights: rare classes weigh more in the loss; sampling: their records are read several "
        "times in an epoch", choices=("none", "weights", "sampling"))] = "none"
    cache: Annotated[str, Option(
        "pixels keeps the pictures of a split decoded once, in --cache_folder; in memory by "
        "--cache_folder /dev/shm",
        choices=("none", "pixels"))] = "none"
    cache_folder: Annotated[str | None, Option(
        "folder of the kept pictures (default: OUTPUT/cache, else ~/.cache/imageshards/pixels)",
        place=place, metavar="DIR")] = None
    skip_broken: Annotated[int, Option(
        "how many damaged records (a wrong checksum, a file that was cut off) may be left out; "
        "they are listed at the end. Without it the first one stops the run", least=0)] = 0
    threads: Annotated[int | None, Option(
        "threads of the reader (default: one per core)", least=1)] = None
    batch_size: Annotated[int, Option(
        "global batch: images per step, over all replicas together", least=1)] = 32
    seed: Annotated[int, Option(
        "seed of the initial weights, the order of records and the augmentation, 0 to 2^31-1",
        least=0, most=MAX_SEED)] = 0
    augment: Annotated[str, Option(
        "light: random-resized crop and flip; strong: also rotation, colour, noise, erasing, "
        "MixUp and CutMix", choices=("none", "light", "strong"))] = "light"
    augment_on: Annotated[str, Option(
        "where pictures are cropped and changed: device (the reader only decodes), host, or auto: "
        "the device if it is a GPU", choices=("auto", "device", "host"))] = "auto"
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        if self.cache_folder is not None and not is_local(self.cache_folder):
            raise UserError(
                argument="cache_folder", received=repr(self.cache_folder), expected="a local folder"
            )
        for argument, names in (("classes", self.classes), ("inputs", self.inputs)):
            if names is not None and not 0 < len(names) == len({*names}):
                raise UserError(
                    argument=argument,
                    received=repr(",".join(names)),
                    expected="at least one name, each of them once",
                )


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The options of the optimizer, the learning rate and the loss."""

    # fmt: off
    optimizer: Annotated[str, Option(
        "sgd uses Nesterov momentum",
        choices=OPTIMIZERS)] = "adam"
    learning_rate: Annotated[float, Option(
        "peak of the rate, where the warm-up ends and the schedule begins", above=0)] = 1e-3
    scale_learning_rate: Annotated[bool, Option(
        "multiplies --learning_rate by global batch / 256")] = False
    schedule: Annotated[str, Option(
        "course of the learning rate after the warm-up",
        choices=("constant", "linear", "cosine"))] = "constant"
    warmup_steps: Annotated[int, Option(
        "steps in which the rate rises linearly from 0; not with --schedule linear", least=0)] = 0
    momentum: Annotated[float, Option("momentum of sgd and rmsprop", least=0, below=1)] = 0.9
    weight_decay: Annotated[float, Option(
        "decoupled; normalisations and biases are exempt", least=0)] = 0.0
    loss: Annotated[str | None, Option(
        f"for labels {' or '.join(LOSSES['labels'])}, for values {', '.join(LOSSES['values'])} "
        "(default: the first of each); errors of values are divided by the target's deviation; a "
        "class has cross-entropy",
        choices=[name for names in LOSSES.values() for name in names], metavar="NAME")] = None
    label_smoothing: Annotated[float, Option(
        "how much labels are smoothed, from 0 to less than 1", least=0, below=1)] = 0.0
    ema: Annotated[float | None, Option(
        "momentum of a running average of the weights, which is validated and saved; for S steps "
        "at most 1 - 5 / S, or the first weights stay in it (default: none)",
        least=0, below=1)] = None
    accumulate_steps: Annotated[int, Option(
        "batches whose gradients are averaged before the weights change; on one replica only",
        least=1)] = 1
    clipnorm: Annotated[float | None, Option(
        "largest norm of all gradients together (default: none)", above=0)] = None
    precision: Annotated[str, Option(
        "precision of the model's arithmetic; weights stay float32",
        choices=PRECISIONS)] = "float32"
    jit_compile: Annotated[bool, Option(
        "compiles the model with XLA; on one replica, or on several GPUs, where nobody has "
        "tested it")] = False
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        if self.schedule == "linear" and self.warmup_steps:
            raise UserError(
                argument="warmup_steps",
                received=f"{self.warmup_steps} with "
                + Arg("schedule", "linear")
                + ", which has no warm-up in Keras",
                expected=Arg("schedule", "cosine") + " or constant",
            )


_hosts = functools.partial(Option, group="several hosts")
_output = functools.partial(Option, group="output")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The options of a training run."""

    # fmt: off
    read: ReadConfig
    output: Annotated[str, _output(
        "folder for checkpoints/, model.keras, weights.sha256, metrics.jsonl and report/, local, "
        "gs:// or s3://; the same command resumes an unfinished run there (default: DATA-model; "
        "trained for remote data)", place=place, metavar="DIR")] = ""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    model: Annotated[str, Option(
        "cnn (four convolutions), any architecture of keras.applications, for example MobileNetV2, "
        "your own as module:function, which returns logits or a compiled model, or keras_hub:NAME, "
        "a preset of KerasHub with its weights",
        metavar="NAME")] = "cnn"
    sync_batchnorm: Annotated[bool, Option(
        "batch normalisation over the pictures of all replicas, by some 5 sums a layer in each "
        "step, of cnn and keras.applications; without it each replica takes its own share")] = False
    metrics: Annotated[tuple[str, ...], Option(
        "further metrics of every epoch: of a class top5, auc, f1; of labels auc, f1; of values "
        "r2, mape; or a class of keras.metrics that takes probabilities, or values",
        parse=split_names, metavar="A,B")] = ()
    callbacks: Annotated[str | None, Option(
        "module:function of your own that returns a list of Keras callbacks",
        metavar="NAME")] = None
    weights: Annotated[str | None, Option(
        "imagenet, which Keras downloads for an architecture of keras.applications, or .keras or "
        ".weights.h5 to start from, local, gs:// or s3:// (default: random weights)",
        place=place, metavar="imagenet|FILE")] = None
    freeze: Annotated[str | int | None, Option(
        "layers that keep their initial weights: all below the head, or this many from the first "
        "layer on (default: none)", parse=_parse_freeze, metavar="N|all|none")] = None
    unfreeze_after: Annotated[int | None, Option(
        "epochs after which --freeze ends: all layers train, with a tenth of the rate (default: "
        "never)", least=1, metavar="EPOCHS")] = None
    steps_per_execution: Annotated[int | None, Option(
        "steps in one call of the graph, which saves time if a step is short; checkpoints and "
        "signals wait for its end; on one host only (default: what model.compile says, else 1)",
        least=1)] = None
    epochs: Annotated[int, Option("passes over the training split", least=1)] = 5
    steps: Annotated[int | None, Option("steps in all, instead of --epochs", least=1)] = None
    replicas: Annotated[int | None, Option(
        "devices of each host that share each batch: GPUs, or logical CPU devices if a host has no "
        "GPUs; all further GPUs stay unused (default: all GPUs, else 1)",
        least=1)] = None
    deterministic: Annotated[bool, Option(
        "GPUs, too, compute the same bits in each run, more slowly; CPUs always do")] = False
    cluster: Annotated[str | None, _hosts(
        "several hosts share each batch, every one started with the same command: tf_config takes "
        "their addresses from the variable TF_CONFIG, slurm from srun. The first, the chief, "
        "alone writes --output and prints (default: this host alone)",
        choices=("tf_config", "slurm"))] = None
    cluster_port: Annotated[int, _hosts(
        "port of the first process on each host, with --cluster slurm",
        least=1, most=2**16 - 1)] = 2222
    cluster_timeout: Annotated[int, _hosts(
        "how long hosts may take to connect, and be silent while the rest wait for their work",
        least=1, most=7 * 24 * 3600, metavar="SEC")] = 600
    checkpoint_steps: Annotated[int, _output(
        "steps between two checkpoints; one is also written at the end of every epoch",
        least=1)] = 1000
    keep_checkpoints: Annotated[int, _output(
        "how many of the last checkpoints are kept, besides the best", least=1)] = 2
    overwrite: Annotated[bool, _output("starts over, replacing the run in --output")] = False
    dry_run: Annotated[bool, _output(
        "builds everything, takes one batch and shows it; trains nothing")] = False
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        if self.sync_batchnorm and ":" in self.model:
            raise UserError(
                argument="sync_batchnorm",
                received="True with " + Arg("model", self.model) + ", a model of your own",
                expected="cnn or one of keras.applications",
                remedy="use BatchNormalization(synchronized=True) in your model",
            )
        # Presets of KerasHub bring their weights.
        if self.freeze and not (self.weights or self.model.startswith(KERAS_HUB)):
            raise UserError(
                argument="freeze",
                received=f"{self.freeze} without " + Arg("weights") + ", so random weights stay",
                expected="weights to start from, for example " + Arg("weights", "imagenet"),
            )
        if self.unfreeze_after and not self.freeze:
            raise UserError(
                argument="unfreeze_after",
                received=f"{self.unfreeze_after} without " + Arg("freeze"),
                expected=Arg("freeze", "all") + ", or the number of frozen layers",
            )
        batch_size = self.read.batch_size
        # `make_strategy` checks again, once the number of GPUs and hosts is known.
        if self.replicas is not None and batch_size % self.replicas:
            raise uneven_batch(batch_size, self.replicas)


def _parse_freeze(text: str) -> str | int | None:
    if text in ("all", "none"):
        return text if text == "all" else None
    if text.isdecimal() and int(text):
        return int(text)
    raise UserError(
        argument="freeze", received=repr(text), expected="all, none, or a number of layers"
    )


def uneven_batch(batch_size: int, replicas: int, noun: str = "replica") -> UserError:
    """Returns the error for a global batch that replicas cannot share equally."""
    # Keras divides each replica's loss by the size of its share, so the examples of a smaller share
    # would weigh more.
    nearest = max(replicas, round(batch_size / replicas) * replicas)
    return UserError(
        argument="batch_size",
        received=f"{batch_size}, which {counted(replicas, noun)} cannot share equally",
        expected=f"a multiple of {replicas}, for example {nearest}",
    )
