"""The configuration of a training run: frozen dataclasses, validated once."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from imageshards.errors import UserError
from imageshards.text import counted

MAX_SEED = 2**31 - 1
MAX_SIDE_PX = 16384
# Of one data set among several.
MIN_SHARE = Fraction(1, 1000)

AUGMENT_LEVELS = ("none", "light", "strong")
AUGMENT_ON = ("auto", "device", "host")
CACHES = ("none", "memory", "disk")
BALANCES = ("none", "weights", "sampling")
SEQUENCES = ("padded", "ragged")
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "lamb", "muon")
SCHEDULES = ("constant", "step", "linear", "exponential", "cosine")
CLUSTERS = ("tf_config", "slurm")
PRECISIONS = ("float32", "bfloat16", "float16")


def is_remote(path: str) -> bool:
    """Whether `path` names a filesystem such as `gs://` instead of a local folder."""
    return "://" in path


def path_text(name: str, path: object) -> str:
    """A path that a caller gave as `name`, as text.

    Raises:
        UserError: It is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"{name} received {path!r}; expected a path, as a text or a pathlib.Path.")
    return os.fspath(path)


def default_output(paths: Sequence[str]) -> str:
    """The folder a run writes to when `--output` is not given: `DATA-model`, else `trained`."""
    if len(paths) > 1 or is_remote(paths[0]) or any(c in paths[0] for c in "*?["):
        return "trained"
    return os.path.normpath(os.path.abspath(paths[0])) + "-model"


def join_paths(paths: Sequence[str]) -> str:
    """Paths as one text for `DataConfig.data`, between commas; those inside a path are escaped."""
    return ",".join(path.replace(",", "\\,") for path in paths)


def split_paths(text: str) -> tuple[str, ...]:
    """What `join_paths` joined. A local path that exists as it is written is never cut."""
    if os.path.exists(text):
        return (text,)
    parts = (part.strip().replace("\\,", ",") for part in re.split(r"(?<!\\),", text))
    return tuple(part for part in parts if part) or (text,)


def parse_image_size(text: str) -> tuple[int, int]:
    """`"256"` → (256, 256); `"192x256"` → height 192, width 256, both in pixels.

    Raises:
        UserError: `text` is neither form, or a side is out of range.
    """
    sides = text.lower().split("x")
    if len(sides) not in (1, 2) or not all(side.isdecimal() for side in sides):
        raise UserError(
            f"⟦--image_size⟧ received {text!r}; expected pixels as SIDE or HEIGHTxWIDTH, "
            "for example 256 or 192x256."
        )
    height_px, width_px = int(sides[0]), int(sides[-1])
    if not 1 <= min(height_px, width_px) <= max(height_px, width_px) <= MAX_SIDE_PX:
        raise UserError(f"⟦--image_size⟧ received {text}; expected 1 to {MAX_SIDE_PX} pixels.")
    return height_px, width_px


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which records are read, and how.

    Attributes:
        data: Folder of a data set, or a folder or glob of TFRecords that others wrote; local,
            `gs://`, `s3://`, or any filesystem TensorFlow knows. Several, between commas, are
            read as one: see `join_paths`.
        mix: The share that each of several data sets has in what is trained on, by its path or
            its last folder; only their ratios count. Empty for every record equally often.
        train_split, validation_split: Names in the manifest; None for the usual ones;
            validation `none` for no validation.
        validation_data: Folder or glob of TFRecords to validate on, for records without a
            manifest; None for a split of `data`.
        feature_map: For records without a manifest: which of their features is `image`,
            `label`, `filename` or `text`, for example {"image": "image_raw"}.
        label_offset: Subtracted from every label: 1 for 1-based labels.
        class_names: Class names in the order of the ids, for records without a manifest.
        classes: Only records of these classes, numbered in this order; None for all.
        where: Filters such as `image/width>=128`; a record has to pass all.
        inputs: Features the model gets; `image` is the picture.
        sequences: How features of variable length are batched: `padded` or `ragged`.
        sequence_length: Padded length, longer ones are cut; None for a batch's longest.
        image_size: (height, width) in pixels the model sees; None for the data set's own.
        eval_crop: Share of each side that is kept around the centre where pictures are evaluated
            or served, before they are resized; 1 for all.
        balance: `weights`: every class weighs the same in the loss; `sampling`: every
            class is read equally often, records of rare ones repeatedly.
        cache: Where serialized records are cached: `memory`, `disk` (copies of the shards) or
            `none`.
        cache_folder: Local folder for copies of shards; None for one in the run's output if that is
            local, else, and for shards TensorFlow cannot read itself, in the user's cache folder.
        fast_order: Reads whatever is ready first: faster, but not reproducible.
        skip_broken: How many broken records may be left out; 0 stops at the first.
        threads: Of the reader; None for one per core.
    """

    data: str
    mix: Mapping[str, float] = dataclasses.field(default_factory=dict)
    train_split: str | None = None
    validation_split: str | None = None
    validation_data: str | None = None
    feature_map: Mapping[str, str] = dataclasses.field(default_factory=dict)
    label_offset: int = 0
    class_names: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    where: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ("image",)
    sequences: str = "padded"
    sequence_length: int | None = None
    image_size: tuple[int, int] | None = None
    eval_crop: float = 1.0
    balance: str = "none"
    cache: str = "none"
    cache_folder: str | None = None
    fast_order: bool = False
    skip_broken: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        check_least("⟦--skip_broken⟧", self.skip_broken, 0)
        check_least("⟦--threads⟧", self.threads, 1)
        check_least("⟦--sequence_length⟧", self.sequence_length, 1)
        _check_choice("⟦--cache⟧", self.cache, CACHES)
        _check_choice("⟦--balance⟧", self.balance, BALANCES)
        _check_choice("⟦--sequences⟧", self.sequences, SEQUENCES)
        if not 0 < self.eval_crop <= 1:
            raise UserError(
                f"⟦--eval_crop⟧ received {self.eval_crop}; expected more than 0, and at most 1, "
                "for example 0.875."
            )
        if self.cache_folder is not None and is_remote(self.cache_folder):
            raise UserError(
                f"⟦--cache_folder⟧ received {self.cache_folder!r}; expected a local folder."
            )
        for flag, names in (("⟦--classes⟧", self.classes), ("⟦--inputs⟧", self.inputs)):
            twice = {name for name in names or () if (names or ()).count(name) > 1}
            if twice or names == ():
                raise UserError(
                    f"{flag} received {','.join(names or ())!r}; expected at least one name, "
                    "each of them once."
                )
        if self.sequences == "ragged" and self.sequence_length is not None:
            raise UserError(
                "⟦--sequence_length⟧ received a length together with "
                "⟦--sequences ragged|sequences='ragged'⟧, which keeps every sequence as it is; "
                "leave one of them out."
            )
        if self.mix and self.balance == "sampling":
            raise UserError(
                "⟦--balance⟧ received 'sampling' together with ⟦--mix⟧; expected one of them, "
                "since each says how often records are read: ⟦--balance weights|balance='weights'⟧ "
                "goes with ⟦--mix⟧."
            )
        if len(set(self.paths)) < len(self.paths):
            raise UserError(
                f"⟦--data⟧ received {self.data!r}; expected each data set once: one that is to be "
                "read more often has a larger share in ⟦--mix⟧."
            )
        _ = self.shares  # checks them

    @functools.cached_property
    def paths(self) -> tuple[str, ...]:
        """The data sets that `data` names."""
        return split_paths(self.data)

    @functools.cached_property
    def shares(self) -> tuple[Fraction, ...]:
        """The share of each of `paths`, 1 in all; empty without `mix`.

        Raises:
            UserError: `mix` does not name exactly the data sets, or has no usable numbers.
        """
        if not self.mix:
            return ()
        given = {self._find_path(name): share for name, share in self.mix.items()}
        if len(given) < len(self.mix):
            raise UserError(
                f"⟦--mix⟧ received {', '.join(self.mix)}; expected each data set of ⟦--data⟧ once."
            )
        if missing := [path for path in self.paths if path not in given]:
            raise UserError(
                f"⟦--mix⟧ received no share for {missing[0]!r}; expected one for each data set: "
                "give it one, or leave it out of ⟦--data⟧."
            )
        for path, share in given.items():
            if not (math.isfinite(share) and share > 0):
                raise UserError(
                    f"⟦--mix⟧ received {share} for {path!r}; expected a number above 0: a data set "
                    "that is not to be read is left out of ⟦--data⟧."
                )
        # As they are written: 0.7 is seven tenths, not the nearest binary fraction.
        exact = [Fraction(str(given[path])) for path in self.paths]
        shares = tuple(share / sum(exact) for share in exact)
        if min(shares) < MIN_SHARE:
            path = self.paths[shares.index(min(shares))]
            raise UserError(
                f"⟦--mix⟧ received {given[path]} for {path!r}, {float(min(shares)):.2g} of all; "
                f"expected at least {float(MIN_SHARE):g}."
            )
        return shares

    def _find_path(self, name: str) -> str:
        found = [path for path in self.paths if name.rstrip("/") == path.rstrip("/")]
        found = found or [
            p for p in self.paths if os.path.basename(p.rstrip("/")) == name.rstrip("/")
        ]
        if len(found) != 1 or len(self.paths) < 2:
            if len(found) > 1:
                what = "is the last folder of several data sets"
            else:
                what = "is the only data set" if found else "is no data set"
            raise UserError(
                f"⟦--mix⟧ received a share for {name!r}, which {what} of ⟦--data⟧ {self.data!r}; "
                "expected several data sets in ⟦--data⟧, each with a share by its path or its last "
                "folder, for example ⟦--data a,b --mix a=0.7,b=0.3|ims.open('a', 'b') and "
                "mix={'a': 0.7, 'b': 0.3}⟧."
            )
        return found[0]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """How weights are changed.

    Attributes:
        optimizer: One of `OPTIMIZERS`; sgd is with Nesterov momentum.
        learning_rate: Peak learning rate, reached after the warm-up.
        scale_learning_rate: Multiplies it by global batch / 256.
        schedule: One of `SCHEDULES`, over the steps after the warm-up.
        warmup_steps: Steps in which the rate rises linearly from 0.
        decay_steps, decay_rate: Of the schedules step and exponential: the rate is
            multiplied by `decay_rate` every (`step`), or smoothly over (`exponential`),
            `decay_steps` steps; None for a third of all steps.
        momentum: Of sgd, rmsprop and muon.
        weight_decay: Decoupled; norms and biases are exempt.
        label_smoothing: In [0, 1).
        ema: Momentum of the running average of the weights that is validated and saved.
        accumulate_steps: Batches whose gradients are averaged before weights change, on one
            replica.
        clipnorm: Largest norm of all gradients together.
        precision: `float32`, `bfloat16` or `float16` (the latter with loss scaling).
        jit_compile: Compiles the model with XLA, on one replica.
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    scale_learning_rate: bool = False
    schedule: str = "constant"
    warmup_steps: int = 0
    decay_steps: int | None = None
    decay_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    ema: float | None = None
    accumulate_steps: int = 1
    clipnorm: float | None = None
    precision: str = "float32"
    jit_compile: bool = False

    def __post_init__(self) -> None:
        _check_choice("--optimizer", self.optimizer, OPTIMIZERS)
        _check_choice("--schedule", self.schedule, SCHEDULES)
        _check_choice("--precision", self.precision, PRECISIONS)
        check_least("--warmup_steps", self.warmup_steps, 0)
        check_least("--decay_steps", self.decay_steps, 1)
        check_least("--accumulate_steps", self.accumulate_steps, 1)
        for flag, received in (
            ("--learning_rate", self.learning_rate),
            ("--decay_rate", self.decay_rate),
            ("--clipnorm", 1.0 if self.clipnorm is None else self.clipnorm),
        ):
            if not (math.isfinite(received) and received > 0):
                raise UserError(f"{flag} received {received}; expected a number above 0.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UserError(
                f"--weight_decay received {self.weight_decay}; expected a number of at least 0."
            )
        for flag, received in (
            ("--momentum", self.momentum),
            ("--label_smoothing", self.label_smoothing),
            ("--ema", self.ema or 0.0),
        ):
            if not 0 <= received < 1:
                raise UserError(
                    f"{flag} received {received}; expected at least 0, and less than 1."
                )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One training run.

    Attributes:
        data: What is read.
        output: Folder for everything a run writes: local, `gs://` or `s3://`.
        optimizer: How weights are changed.
        model: `cnn`, a name in `keras.applications`, or `module:function`.
        weights: File of weights to start from, local or in a store; None for random ones.
        epochs: Passes over the training split.
        steps: Steps in all, instead of epochs.
        batch_size: Global: the sum over all replicas.
        replicas: Devices of this host that share a batch; None for every GPU, or one CPU.
        cluster: Where the hosts that train together are named, one of `CLUSTERS`; None for this
            one alone.
        cluster_port: Of the first process on each host, under Slurm.
        cluster_timeout: Seconds that hosts may take to come, and be silent while others wait.
        seed: Of the initial weights, the order of the records and the augmentation.
        augment: One of `AUGMENT_LEVELS`.
        augment_on: `device`, `host`, or `auto`: the device if it is a GPU.
        checkpoint_steps: Steps between two checkpoints; there is one at the end of every
            epoch, too.
        keep_checkpoints: How many of the last checkpoints stay, besides the best one.
        overwrite: Starts over where the output holds an earlier run.
        dry_run: Builds everything and reads one batch, but does not train.
        tensorboard: Writes TensorBoard's event files, too.
        metrics: Further metrics of every epoch: see `trainer.models.metrics.make_metrics`.
        callbacks: `module:function` that returns Keras callbacks; None for none.
    """

    data: DataConfig
    output: str
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    model: str = "cnn"
    weights: str | None = None
    epochs: int = 5
    steps: int | None = None
    batch_size: int = 32
    replicas: int | None = None
    cluster: str | None = None
    cluster_port: int = 2222
    cluster_timeout: int = 600
    seed: int = 0
    augment: str = "light"
    augment_on: str = "auto"
    checkpoint_steps: int = 1000
    keep_checkpoints: int = 2
    overwrite: bool = False
    dry_run: bool = False
    tensorboard: bool = False
    metrics: tuple[str, ...] = ()
    callbacks: str | None = None

    def __post_init__(self) -> None:
        for flag, received in (
            ("⟦--epochs⟧", self.epochs),
            ("⟦--steps⟧", self.steps),
            ("⟦--batch_size⟧", self.batch_size),
            ("--replicas", self.replicas),
            ("⟦--checkpoint_steps⟧", self.checkpoint_steps),
            ("⟦--keep_checkpoints⟧", self.keep_checkpoints),
            ("--cluster_timeout", self.cluster_timeout),
        ):
            check_least(flag, received, 1)
        if self.cluster is not None:
            _check_choice("--cluster", self.cluster, CLUSTERS)
        if self.cluster is not None and self.data.fast_order:
            raise UserError(
                "⟦--fast_order⟧ received together with --cluster, where every host would read "
                "another order, some records twice and others never; leave one of them out."
            )
        if not 1 <= self.cluster_port < 2**16:
            raise UserError(
                f"--cluster_port received {self.cluster_port}; expected a port, 1 to {2**16 - 1}."
            )
        _check_choice("⟦--augment⟧", self.augment, AUGMENT_LEVELS)
        _check_choice("⟦--augment_on⟧", self.augment_on, AUGMENT_ON)
        if not 0 <= self.seed <= MAX_SEED:
            raise UserError(f"⟦--seed⟧ received {self.seed}; expected 0 to {MAX_SEED}.")
        if self.replicas is not None and self.batch_size % self.replicas:
            raise uneven_batch(self.batch_size, self.replicas)

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        return dataclasses.asdict(self)


def uneven_batch(batch_size: int, replicas: int) -> UserError:
    """The error for a global batch that replicas cannot share equally.

    Keras divides each replica's loss by the size of its share, so the examples of a smaller
    share would weigh more.
    """
    nearest = max(replicas, round(batch_size / replicas) * replicas)
    return UserError(
        f"⟦--batch_size⟧ received {batch_size}, which {counted(replicas, 'replica')} cannot share "
        f"equally; expected a multiple of {replicas}, for example {nearest}."
    )


def check_least(flag: str, received: int | None, least: int) -> None:
    """Refuses a whole number that is too small.

    Raises:
        UserError: It is less than `least`, or no whole number.
    """
    if received is not None and not isinstance(received, int):
        raise UserError(f"{flag} received {received!r}; expected a whole number.")
    if received is not None and received < least:
        raise UserError(f"{flag} received {received}; expected at least {least}.")


def _check_choice(flag: str, received: str, choices: tuple[str, ...]) -> None:
    if received not in choices:
        raise UserError(f"{flag} received {received!r}; expected one of {', '.join(choices)}.")
