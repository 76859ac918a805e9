"""Each option of the trainer's commands changes something, or is refused where it would not.

A new option needs a row in one of the tables below.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from imageshards.commands.options import options_of
from imageshards.errors import UserError
from tests.support.box_sets import make_boxes
from tests.support.errors import refused
from trainer import evaluate, export, predict
from trainer.commands import parse_config
from trainer.config import OptimizerConfig, ReadConfig, RunConfig
from trainer.reader.batches import open_data
from trainer.strengths import Augment
from trainer.training.open_run import Epochs
from trainer.training.run import begin, build_and_compile, check

DENSE = "tests.support.tiny_models:dense"
Shown = Callable[[RunConfig], Any]


def records(config: RunConfig) -> Any:
    """Which records are read, as what."""
    found = [data for data in open_data(config.read) if data is not None]
    return [(repr(data.subset), str(data.subset.record_classes)) for data in found]


def batches(config: RunConfig) -> Any:
    """What the reader makes: a batch to train on, and all to validate."""
    train, validation = open_data(config.read)
    read = [next(iter(train.batches())), *(validation.batches() if validation else ())]
    return [(values.shape, bytes(np.ascontiguousarray(values))) for values in tf.nest.flatten(read)]


def reading(config: RunConfig) -> Any:
    """How the reader reads."""
    train, _ = open_data(config.read, output=config.output)
    return train.read_options, train.skip_broken


def length(config: RunConfig) -> Any:
    return Epochs.of(open_data(config.read)[0], config.epochs, config.steps)


def network(config: RunConfig) -> Any:
    """The model, ready for its first step."""
    config = dataclasses.replace(config, dry_run=True)
    data, devices = open_data(config.read), tf.distribute.get_strategy()
    check(config, data[0], devices)
    run = begin(config, *data, devices)
    built = build_and_compile(config, run, config.model)
    model, later = built.model, built.frozen and built.frozen._schedule
    layers = [(layer.get_config(), layer.trainable) for layer in model.layers]
    weights = [weight.tobytes() for weight in model.get_weights()] if config.weights else []
    compiled = model.jit_compile, later and later.get_config()
    metrics = [metric.name for one in model.metrics for metric in getattr(one, "metrics", [one])]
    parts = keras.saving.serialize_keras_object([model.optimizer, model.loss])
    return parts, layers, weights, compiled, metrics


# Option → the flags of both runs, the flag that one run has, and where the runs then differ.
BOXES = "--inputs image,bounding_boxes --eval_crop 0.5"
FROZEN = "--weights {weights} --freeze 2"
CHANGES: dict[str, tuple[str, str, Shown]] = {
    "train_split": ("--validation_split none", "--train_split validation", records),
    "target": ("", "--target size", records),
    "target_kind": ("--target image/width", "--target_kind class", records),
    "sample_weight": ("", "--sample_weight size", records),
    "validation_split": ("", "--validation_split none", records),
    "allow_overlap": ("--validation_split train", "--allow_overlap", records),
    "classes": ("", "--classes dog", records),
    "where": ("", "--where size<0.07", records),
    "inputs": ("", "--inputs image,size", batches),
    "min_box_visibility": (BOXES, "--min_box_visibility 1", batches),
    "sequence_length": (BOXES, "--sequence_length 9", batches),
    "image_size": ("", "--image_size 24", batches),
    "eval_crop": ("", "--eval_crop 0.5", batches),
    "balance": ("", "--balance sampling", records),
    "cache": ("", "--cache pixels", reading),
    "cache_folder": ("--cache pixels", "--cache_folder elsewhere", reading),
    "skip_broken": ("", "--skip_broken 1", reading),
    "threads": ("", "--threads 77", reading),
    "batch_size": ("", "--batch_size 6", length),
    "seed": ("", "--seed 1", batches),
    "augment": ("", "--augment light", batches),
    "augment_on": ("--augment light --image_size 24", "--augment_on device", batches),
    "crop": ("", "--crop 0.2,0.4", batches),
    "ratio": ("", "--ratio 2,3", batches),
    "flip": ("", "--flip 1", batches),
    "rotate": ("", "--rotate 40", batches),
    "brightness": ("", "--brightness 0.5", batches),
    "contrast": ("", "--contrast 0.5", batches),
    "saturation": ("", "--saturation 0.5", batches),
    "noise": ("", "--noise 50", batches),
    "erase": ("", "--erase 1", batches),
    "erase_area": ("--erase 1", "--erase_area 0.5,0.6", batches),
    "erase_ratio": ("--erase 1", "--erase_ratio 0.1", batches),
    "mixup": ("", "--mixup 1", batches),
    "cutmix": ("", "--cutmix 1", batches),
    "mix": ("--mixup 1", "--mix 0.1", batches),
    "optimizer": ("", "--optimizer sgd", network),
    "learning_rate": ("", "--learning_rate 0.5", network),
    "scale_learning_rate": ("", "--scale_learning_rate", network),
    "schedule": ("", "--schedule cosine", network),
    "warmup_steps": ("", "--warmup_steps 2", network),
    "momentum": ("--optimizer rmsprop", "--momentum 0.5", network),
    "weight_decay": ("", "--weight_decay 0.1", network),
    "loss": ("--target size", "--loss huber", network),
    "label_smoothing": ("", "--label_smoothing 0.1", network),
    "ema": ("", "--ema 0.5", network),
    "accumulate_steps": ("", "--accumulate_steps 2", network),
    "clipnorm": ("", "--clipnorm 1", network),
    "precision": ("", "--precision bfloat16", network),
    "jit_compile": ("", "--jit_compile", network),
    "model": ("", "--model tests.support.tiny_models:plain", network),
    "sync_batchnorm": ("--model cnn", "--sync_batchnorm", network),
    "metrics": ("", "--metrics auc", network),
    "weights": ("--weights {other}", "--weights {weights}", network),
    "freeze": ("--weights {weights}", "--freeze 2", network),
    "unfreeze_after": (FROZEN, "--unfreeze_after 1", network),
    "epochs": ("", "--epochs 9", length),
    "steps": ("", "--steps 3", length),
}

# Option → flags with which it would change nothing.
IDLE = [
    ("target_kind", "--target_kind class"),
    ("target_kind", "--target_kind class --target size"),
    ("min_box_visibility", "--min_box_visibility 0.5"),
    ("sequence_length", "--sequence_length 3 --inputs image,size"),
    ("cache_folder", "--cache_folder elsewhere"),
    ("balance", "--balance weights --target size"),
    ("classes", "--classes dog --target size"),
    ("warmup_steps", "--warmup_steps 2 --schedule linear"),
    ("momentum", "--momentum 0.5"),
    ("momentum", "--momentum 0.5 --optimizer adamw"),
    ("loss", "--loss huber"),
    ("label_smoothing", "--label_smoothing 0.1 --target size"),
    ("sync_batchnorm", "--sync_batchnorm"),
    ("freeze", "--freeze 2"),
    ("unfreeze_after", "--unfreeze_after 1"),
    ("unfreeze_after", f"{FROZEN} --unfreeze_after 2 --epochs 2"),
    ("unfreeze_after", f"{FROZEN} --unfreeze_after 1 --steps 6"),
    ("cluster_port", "--cluster_port 99"),
    ("cluster_port", "--cluster_port 99 --cluster tf_config"),
    ("cluster_timeout", "--cluster_timeout 99"),
    ("learning_rate", "--learning_rate 0.5 --model tests.support.tiny_models:compiled"),
    ("metrics", "--metrics auc --model tests.support.tiny_models:compiled"),
]

# Command → its options that tests elsewhere change, in a run.
ELSEWHERE = {
    "train": "data output replicas records_root callbacks checkpoint_steps keep_checkpoints "
    "tensorboard overwrite dry_run cluster cluster_port cluster_timeout deterministic",
    "evaluate": "model_path data split batch_size classes where threads json report eval_crop "
    "skip_broken records_root replicas last model trust",
    "predict": "model_path input image_path key_column data records_root split output json "
    "batch_size top last model trust",
    "export": "model_path output overwrite last model trust",
}


def test_every_option_has_an_entry():
    kinds = (ReadConfig, OptimizerConfig, RunConfig, Augment)
    elsewhere = ELSEWHERE["train"].split()
    assert {name for kind in kinds for name in options_of(kind)} == {*CHANGES, *elsewhere}
    for module in (evaluate, predict, export):
        flags = {flag[2:] for flag in module.make_parser().flags if flag.startswith("--")}
        assert flags == {"help", *ELSEWHERE[module.PROGRAM.split()[1]].split()}, module


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A dataset of pictures with boxes, and two files of weights of the model."""
    folder = tmp_path_factory.mktemp("options")
    make_boxes(folder / "set", size=(32, 32))
    config = parse_config(_flags(folder, ""))
    for number, name in enumerate(("weights", "other")):
        run = begin(config, *open_data(config.read), tf.distribute.get_strategy())
        model = build_and_compile(config, run, config.model).model
        for weight in model.weights:
            weight.assign(tf.fill(weight.shape, tf.cast(number, weight.dtype)))
        model.save_weights(folder / f"{name}.weights.h5")
    return folder


def _flags(folder: pathlib.Path, more: str) -> list[str]:
    """The flags of a run: `more` and, where it does not have them, the usual ones."""
    names = {name: folder / f"{name}.weights.h5" for name in ("weights", "other")}
    usual = f"--data {folder / 'set'} --output out --batch_size 4 --model {DENSE} --augment none "
    given: dict[str, list[str]] = {}
    for word in (usual + more.format(**names) + " --dry_run").split():
        if word.startswith("--"):
            values = given[word] = []
        else:
            values.append(word)
    return [word for flag, values in given.items() for word in (flag, *values)]


def _rows() -> Iterator[Any]:
    """The options; graphs and models of those that need such take half a minute in all."""
    for name, (_, _, show) in CHANGES.items():
        yield pytest.param(name, marks=[pytest.mark.long] if show in (batches, network) else [])


@pytest.mark.parametrize("name", _rows())
def test_a_changed_option_shows(given, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared, change, show = CHANGES[name]
    assert f"--{name}" in change
    before, after = (_shown(show, given, flags) for flags in (shared, f"{shared} {change}"))
    assert before != after and not isinstance(after, str), (before, after)


@functools.cache  # many options change the same run
def _shown(show: Shown, given: pathlib.Path, flags: str) -> Any:
    try:
        return show(parse_config(_flags(given, flags)))
    except UserError as e:
        return str(e)


@pytest.mark.parametrize(("name", "flags"), IDLE)
def test_an_option_that_would_change_nothing_is_refused(given, name, flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(name):
        network(parse_config(_flags(given, flags)))
