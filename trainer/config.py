"""Configures a training run: frozen dataclasses, each validated when it is made.

The `Option` of a field is also the flag of `imageshards train`, with its help and limits.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Annotated

from imageshards.commands.command_line import names_or_file, split_names
from imageshards.commands.options import Option, check_options, refuse_idle
from imageshards.errors import Arg, UserError
from imageshards.manifest.file import RECORDS_ROOT_HELP
from imageshards.storage import is_local, place
from imageshards.text import counted
from trainer.strengths import LIGHT, NONE, STRONG, Augment

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


_augmentation = functools.partial(Option, group="augmentation")


@dataclasses.dataclass(frozen=True)
class ReadConfig:
    """The options that choose records, and that make batches from them."""

    # fmt: off
    data: Annotated[str, Option(
        "dataset: a local folder, gs:// or s3:// place with the manifest.json that imageshards "
        "build or imageshards adopt wrote",
        place=place, metavar="DIR", action="append")]
    records_root: Annotated[str | None, Option(
        RECORDS_ROOT_HELP, place=place, metavar="PLACE")] = None
    train_split: Annotated[str | None, Option(
        "split to train on, or several as one: fold1,fold2 (default: train or training)",
        metavar="A,B")] = None
    target: Annotated[str | None, Option(
        "column that the model learns instead of the dataset's label. Floats are regression "
        "targets. A whole number or a text is a class. A list of any length, of numbers or texts, "
        "means several labels. bounding_boxes needs a compiled model",
        metavar="COLUMN")] = None
    target_kind: Annotated[str | None, Option(
        "class: whole numbers in --target are class ids, even if they are more than 20 or do not "
        "count from 0 (default: such a column is refused; declare quantities as float)",
        choices=("class",))] = None
    sample_weight: Annotated[str | None, Option(
        "column with one number per record: its weight in the loss and the metrics of training",
        metavar="COLUMN")] = None
    validation_split: Annotated[str | None, Option(
        "split to validate on after every epoch, or several as one: fold1,fold2; or none (default: "
        "validation, val or valid if the dataset has such a split; never test)",
        metavar="A,B")] = None
    allow_overlap: Annotated[bool, Option(
        "validates also on records that the training reads; without this flag such a "
        "--validation_split is refused")] = False
    classes: Annotated[tuple[str, ...] | None, Option(
        "read only records of these classes, or with at least one of these labels. The order gives "
        "the class ids. A list with commas, or a text file with one name per line. In a list, "
        "write a comma inside a name as \\, (default: all)",
        parse=functools.partial(names_or_file, "classes"), metavar="A,B|FILE")] = None
    where: Annotated[tuple[str, ...], Option(
        "read only records that meet the condition, for example 'image/width>=128' or 'age!=0'; "
        "repeat the flag for more conditions", metavar="CONDITION", action="append")] = ()
    inputs: Annotated[tuple[str, ...], Option(
        "inputs of the model: image, columns of numbers or of lists of numbers, and "
        "bounding_boxes, which follow crop, flip and rotation (default: image)",
        parse=split_names, metavar="A,B")] = ("image",)
    min_box_visibility: Annotated[float, Option(
        "smallest share of a bounding box's area that must remain visible after crop, flip, "
        "rotation and erasing; boxes with less are dropped with their labels",
        least=0, most=1)] = 0.1
    sequence_length: Annotated[int | None, Option(
        "length to which lists among the --inputs, and bounding boxes, are padded or cut (default: "
        "the longest list of each batch)",
        least=1)] = None
    image_size: Annotated[tuple[int, int] | None, Option(
        "size of the model's input in pixels, N or HEIGHTxWIDTH. Without augmentation, a picture "
        "of another size is cropped around its centre to this aspect ratio and resized (default: "
        "the dataset's size)", parse=parse_image_size, metavar="PX")] = None
    eval_crop: Annotated[float, Option(
        "share of each side that a centre crop keeps before resizing, in evaluation and serving; "
        "published ImageNet figures use 0.875. The model file stores the value",
        above=0, most=1)] = 1.0
    balance: Annotated[str, Option(
        "weights: rare classes weigh more in the loss; sampling: an epoch reads the records of "
        "rare classes several times", choices=("none", "weights", "sampling"))] = "none"
    cache: Annotated[str, Option(
        "pixels: decode the pictures of a split once and keep the pixels in --cache_folder; with "
        "--cache_folder /dev/shm in memory",
        choices=("none", "pixels"))] = "none"
    cache_folder: Annotated[str | None, Option(
        "folder for the pixels of --cache (default: OUTPUT/cache, or ~/.cache/imageshards/pixels "
        "if "
        "the output is not local)",
        place=place, metavar="DIR")] = None
    skip_broken: Annotated[int, Option(
        "number of damaged records to tolerate, for example records with a wrong checksum; these "
        "records are skipped and listed at the end. More damaged records stop the command",
        least=0)] = 0
    threads: Annotated[int | None, Option(
        "number of reader threads (default: one per core)", least=1)] = None
    batch_size: Annotated[int, Option(
        "global batch size: images per step on all replicas together", least=1)] = 32
    seed: Annotated[int, Option(
        "seed of the initial weights, the order of records and the augmentation, 0 to 2^31-1",
        least=0, most=MAX_SEED)] = 0
    augment: Annotated[str | Augment, _augmentation(
        f"light: {LIGHT.changes}. strong: {STRONG.changes}. The flags below replace single numbers "
        "(default: light)",
        parse=Augment.of, metavar="none|light|strong")] = LIGHT
    augment_on: Annotated[str, _augmentation(
        "where pictures are cropped and augmented. host: in the reader. device: beside the model; "
        "the reader only decodes. auto: on the device if the device is a GPU",
        choices=("auto", "device", "host"))] = "auto"
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "augment", Augment.of(self.augment))
        if self.augment == NONE and self.augment_on == "device":
            raise UserError(
                argument="augment_on",
                received="'device' with " + Arg("augment", "none") + ", which leaves no work there",
                remedy="leave " + Arg("augment_on") + " out",
            )
        if self.cache_folder is not None and not is_local(self.cache_folder):
            raise UserError(
                argument="cache_folder", received=repr(self.cache_folder), expected="a local folder"
            )
        if self.cache == "none":
            why = "without " + Arg("cache") + ", so that nothing is kept"
            refuse_idle(self, "cache_folder", why, Arg("cache", "pixels"))
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
        "peak learning rate, at the end of the warm-up and the start of the schedule",
        above=0)] = 1e-3
    scale_learning_rate: Annotated[bool, Option(
        "multiplies --learning_rate by global batch / 256")] = False
    schedule: Annotated[str, Option(
        "how the learning rate changes after the warm-up",
        choices=("constant", "linear", "cosine"))] = "constant"
    warmup_steps: Annotated[int, Option(
        "steps in which the learning rate rises linearly from 0; not with --schedule linear",
        least=0)] = 0
    momentum: Annotated[float, Option("momentum of sgd and rmsprop", least=0, below=1)] = 0.9
    weight_decay: Annotated[float, Option(
        "decoupled weight decay; normalisation layers and biases are exempt", least=0)] = 0.0
    loss: Annotated[str | None, Option(
        f"for several labels {' or '.join(LOSSES['labels'])}; for regression "
        f"{', '.join(LOSSES['values'])} (default: the first of each). In regression, errors are "
        "divided by the standard deviation of the target. A class always has cross-entropy",
        choices=[name for names in LOSSES.values() for name in names], metavar="NAME")] = None
    label_smoothing: Annotated[float, Option(
        "amount of label smoothing, from 0 to less than 1", least=0, below=1)] = 0.0
    ema: Annotated[float | None, Option(
        "momentum of an exponential moving average of the weights; the average is validated and "
        "saved. For S steps choose at most 1 - 5 / S, or the initial weights still count (default: "
        "none)",
        above=0, below=1)] = None
    accumulate_steps: Annotated[int, Option(
        "number of batches whose gradients are averaged for one update; on one replica only",
        least=1)] = 1
    clipnorm: Annotated[float | None, Option(
        "limit for the global norm of the gradients (default: none)", above=0)] = None
    precision: Annotated[str, Option(
        "precision of the model's computations; weights stay float32",
        choices=PRECISIONS)] = "float32"
    jit_compile: Annotated[bool, Option(
        "compiles the model with XLA; on one replica only")] = False
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        if self.schedule == "linear":
            why = "with " + Arg("schedule", "linear") + ", which has no warm-up in Keras"
            refuse_idle(self, "warmup_steps", why, Arg("schedule", "cosine") + " or constant")
        if self.optimizer in ("adam", "adamw"):
            why = "with " + Arg("optimizer", self.optimizer) + ", which has betas instead"
            refuse_idle(self, "momentum", why, Arg("optimizer", "sgd") + " or rmsprop")


_hosts = functools.partial(Option, group="several hosts")
_output = functools.partial(Option, group="output")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The options of a training run."""

    # fmt: off
    read: ReadConfig
    output: Annotated[str, _output(
        "local folder, gs:// or s3:// place for checkpoints/, model.keras, weights.sha256, "
        "metrics.jsonl and report/. The same command resumes an unfinished run (default: "
        "DATA-model; for remote data trained)", place=place, metavar="DIR")] = ""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    model: Annotated[str, Option(
        "one of: cnn (four convolutions); an architecture of keras.applications, for example "
        "MobileNetV2; keras_hub:NAME, a preset of KerasHub with its weights; module:function, your "
        "own function, which returns a compiled model or a model with logits",
        metavar="NAME")] = "cnn"
    sync_batchnorm: Annotated[bool, Option(
        "for cnn and keras.applications: batch normalisation over the pictures of all replicas. "
        "Without this flag each replica normalises its share of the batch")] = False
    metrics: Annotated[tuple[str, ...], Option(
        "more metrics of every epoch: top5, auc, f1 for a class; auc, f1 for several labels; r2, "
        "mape for regression",
        parse=split_names, metavar="A,B")] = ()
    callbacks: Annotated[str | None, Option(
        "module:function, your own function, which returns a list of Keras callbacks",
        metavar="NAME")] = None
    weights: Annotated[str | None, Option(
        "initial weights. imagenet: Keras downloads weights for an architecture of "
        "keras.applications. FILE: a .keras or .weights.h5 file, local, gs:// or s3:// (default: "
        "random weights)",
        place=place, metavar="imagenet|FILE")] = None
    freeze: Annotated[str | int | None, Option(
        "layers that keep their initial weights. N: the first N layers. all: all layers below the "
        "head (default: none)", parse=_parse_freeze, metavar="N|all|none")] = None
    unfreeze_after: Annotated[int | None, Option(
        "number of epochs with --freeze; then all layers train with a tenth of the learning rate "
        "(default: all epochs)", least=1, metavar="EPOCHS")] = None
    epochs: Annotated[int, Option("passes over the training split", least=1)] = 5
    steps: Annotated[int | None, Option(
        "total number of steps, instead of --epochs", least=1)] = None
    replicas: Annotated[int | None, Option(
        "number of devices on each host that share a batch: GPUs, or logical CPU devices on a host "
        "without GPUs. Additional GPUs stay unused (default: all GPUs, else 1)",
        least=1)] = None
    deterministic: Annotated[bool, Option(
        "makes GPUs compute the same bits in each run, more slowly; CPUs always do")] = False
    cluster: Annotated[str | None, _hosts(
        "lets several hosts share each batch; start the same command on every host. tf_config "
        "takes the addresses from the variable TF_CONFIG, slurm from srun. Only the first host, "
        "the chief, writes --output and prints (default: this host alone)",
        choices=("tf_config", "slurm"))] = None
    cluster_port: Annotated[int, _hosts(
        "with --cluster slurm: port of the first process on each host",
        least=1, most=2**16 - 1)] = 2222
    cluster_timeout: Annotated[int, _hosts(
        "seconds that a host may take to connect, or let all other hosts wait at a step",
        least=1, most=7 * 24 * 3600, metavar="SEC")] = 600
    checkpoint_steps: Annotated[int, _output(
        "steps between two checkpoints; the end of every epoch also writes a checkpoint",
        least=1)] = 1000
    tensorboard: Annotated[bool, _output(
        "also writes the loss and metrics of each epoch for TensorBoard, to OUTPUT/tensorboard; "
        "needs the package tensorboard")] = False
    keep_checkpoints: Annotated[int, _output(
        "number of latest checkpoints to keep, besides the best checkpoint", least=1)] = 2
    overwrite: Annotated[bool, _output("starts over, replacing the run in --output")] = False
    dry_run: Annotated[bool, _output(
        "builds the model, reads and shows one batch, and trains nothing")] = False
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        if ":" in self.model:
            why = "with " + Arg("model", self.model) + ", a model of your own"
            own = "BatchNormalization(synchronized=True) in that model"
            refuse_idle(self, "sync_batchnorm", why, own)
        # Presets of KerasHub bring their weights.
        if not (self.weights or self.model.startswith(KERAS_HUB)):
            why = "without " + Arg("weights") + ", so random weights stay"
            refuse_idle(self, "freeze", why, Arg("weights", "imagenet") + " or a file")
        if not self.freeze:
            refuse_idle(self, "unfreeze_after", "without " + Arg("freeze"), Arg("freeze", "all"))
        if self.cluster != "slurm":
            slurm = Arg("cluster", "slurm")
            refuse_idle(self, "cluster_port", "without " + slurm, slurm)
        if self.cluster is None:
            refuse_idle(self, "cluster_timeout", "without " + Arg("cluster"), Arg("cluster"))
        if self.tensorboard and not is_local(self.output):
            raise UserError(
                argument="tensorboard",
                received="True with " + Arg("output") + f" {self.output}, in a store",
                expected="a local folder as " + Arg("output"),
            )
        batch_size = self.read.batch_size
        # `make_strategy` checks again, once the number of GPUs and hosts is known.
        refuse_uneven(batch_size, self.replicas or 1)

    def check_unfreezing(self, epochs: int) -> None:
        """Refuses to free layers behind the last of the run's `epochs`."""
        if self.unfreeze_after and self.unfreeze_after >= epochs:
            why = f"in a run of {counted(epochs, 'epoch')}, so that no layer is freed"
            refuse_idle(self, "unfreeze_after", why, "fewer epochs")


def _parse_freeze(text: str) -> str | int | None:
    if text in ("all", "none"):
        return text if text == "all" else None
    if text.isdecimal() and int(text):
        return int(text)
    raise UserError(
        argument="freeze", received=repr(text), expected="all, none, or a number of layers"
    )


def refuse_uneven(batch_size: int, replicas: int, noun: str = "replica") -> None:
    """Refuses a global batch that replicas cannot share equally."""
    if not batch_size % replicas:
        return
    # Keras divides each replica's loss by the size of its share, so the examples of a smaller share
    # would weigh more.
    nearest = max(replicas, round(batch_size / replicas) * replicas)
    raise UserError(
        argument="batch_size",
        received=f"{batch_size}, which {counted(replicas, noun)} cannot share equally",
        expected=f"a multiple of {replicas}, for example {nearest}",
    )
