"""Opens the data of a run, and checks all of it before TensorFlow is imported."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence

from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.manifest import MANIFEST_NAME
from imageshards.storage.concurrency import available_cores
from trainer.config import ReadConfig
from trainer.dataset.boxes import check_sides, wanted_boxes
from trainer.dataset.manifest import load_manifest
from trainer.dataset.spec import (
    BOXES,
    IMAGE_INPUT,
    DatasetSpec,
    FeatureSpec,
    ModelCard,
    ModelInputs,
    ReadOptions,
    find_feature,
    input_name,
)
from trainer.dataset.subset import some_names

CACHE_FOLDER = "cache"


def pixels_home() -> str:
    """Returns the user's folder for decoded pictures, for runs without a local output folder."""
    home = storage.place("cache_folder", os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return os.path.join(home, "imageshards", "pixels")


def open_dataset(config: ReadConfig) -> DatasetSpec:
    """Reads the manifest of a dataset.

    Raises:
        UserError: There is no dataset, or `data` names several.
    """
    storage.check_bucket(config.data, "data", must_list=False)
    # A comma may be part of a folder's name, or separate several datasets.
    if "," in config.data and not _is_dataset(config.data):
        names = filter(None, map(str.strip, config.data.split(",")))
        parts = [storage.place("data", name) for name in names]
        if len(parts) > 1 and all(map(_is_dataset, parts)):
            raise several_datasets(parts)
    return load_manifest(config.data, config.records_root)


def _is_dataset(path: str) -> bool:
    with contextlib.suppress(OSError):
        return storage.exists(storage.join(path, MANIFEST_NAME))
    return False


def several_datasets(paths: Sequence[str]) -> UserError:
    """Returns the error for several datasets, with the command that joins them."""
    inputs = " ".join(f"--input {path}" for path in paths)
    return UserError(
        argument="data",
        received=f"{', '.join(paths)}, but a run reads one dataset",
        expected=f"one, as imageshards build {inputs} --output ALL joins them",
    )


def read_options(config: ReadConfig, output: str | None = None) -> ReadOptions:
    """Returns how shards are read; the cache is in the run's `output` if that is a local folder.

    Raises:
        UserError: The configuration has a cache folder, but no cache.
    """
    folder = config.cache_folder
    if folder and config.cache == "none":
        raise UserError(
            argument="cache_folder",
            received=f"{folder!r}, but nothing is kept",
            remedy="leave it out, or ask for " + Arg("cache", "pixels"),
        )
    if output and storage.is_local(output):
        folder = folder or os.path.join(output, CACHE_FOLDER)
    elif config.cache != "none":
        folder = folder or pixels_home()
    threads = config.threads or available_cores()
    return ReadOptions(threads, config.cache, folder)


def wanted_inputs(config: ReadConfig, dataset: DatasetSpec) -> ModelInputs:
    """Returns the inputs of a model that `config` describes.

    Raises:
        UserError: A feature does not exist, no size of the pictures is known, or sizes vary
            although all pictures are to be cached.
    """
    features = check_inputs(dataset, config.inputs)
    boxes = wanted_boxes(dataset, config.inputs, config.min_box_visibility)
    size = config.image_size or dataset.image.size
    if size is None:
        raise UserError(
            argument="data",
            received=f"{config.data!r}, where nothing says how large the pictures are",
            remedy="give the size of the model's pictures, for example " + Arg("image_size", 224),
        )
    if config.cache == "pixels" and (dataset.image.varies or not dataset.image.size):
        raise UserError(
            argument="cache",
            received=f"'pixels', but the pictures of {config.data!r} differ in size and cannot be "
            "rows of one file",
            expected="pictures of one size, as imageshards build --resize_mode crop makes them",
            remedy="leave " + Arg("cache") + " out",
        )
    inputs = ModelInputs(
        size, dataset.image, features, config.sequence_length, config.eval_crop, boxes
    )
    check_sides(inputs, config.augment)
    return inputs


def check_inputs(dataset: DatasetSpec, names: Sequence[str]) -> Mapping[str, FeatureSpec]:
    """Returns the features among `names` that a model gets besides the picture and boxes.

    Raises:
        UserError: `image` is missing, a name is unknown, or no model can take the feature.
    """

    def refused(why: str = "", expected: str = "", remedy: str = "") -> UserError:
        received = f"{','.join(names)!r}{why}"
        return UserError(argument="inputs", received=received, expected=expected, remedy=remedy)

    if IMAGE_INPUT not in names:
        raise refused(expected="image, the picture, among the names")
    inputs: dict[str, FeatureSpec] = {}
    for name in names:
        if name in (IMAGE_INPUT, BOXES):
            continue
        if name == dataset.image_feature:
            raise refused(expected=f"the picture under the name image, not {name}")
        if name in dataset.label_features:
            why = f", but {name} is the label, which the model has to find"
            raise refused(why, remedy=f"leave {name} out")
        spec = find_feature(name, dataset.features, "inputs", ",".join(names))
        if spec.dtype == "string":
            raise refused(
                f", but {name} is a text, and TensorFlow cannot put texts on devices",
                expected="numbers",
                remedy="turn the text into numbers with a column of imageshards build (texts are "
                "shown in the report)",
            )
        # `input_name` replaces "/", so two features may get the same name.
        same = [n for n in (IMAGE_INPUT, *inputs) if input_name(n) == input_name(name)]
        if same:
            both = f"{same[0]} and {name} would both be called {input_name(name)}"
            remedy = f"leave {same[0]} or {name} out"
            raise refused(f", but {both} as inputs of the model", remedy=remedy)
        inputs[name] = spec
    return inputs


def model_inputs(dataset: DatasetSpec, card: ModelCard) -> ModelInputs:
    """Returns the inputs of a trained model, read from another dataset.

    Raises:
        UserError: The dataset lacks a feature, or has it in another form.
    """
    for name, spec in card.inputs.features.items():
        found = dataset.features.get(name)
        if found != spec:
            has = f"as {found.dtype} {found.shape}" if found else "not at all"
            raise UserError(
                argument="data",
                received=f"{dataset.data!r}, which has {name} {has}",
                expected=f"{spec.dtype} {spec.shape}, which the model is fed with",
            )
    features, wanted = check_inputs(dataset, card.inputs.names), card.inputs.boxes
    boxes = wanted and wanted_boxes(dataset, card.inputs.names, wanted.min_visibility)
    if boxes != wanted:
        has, wants = (some_names(one.classes if one else ()) or "of ids" for one in (boxes, wanted))
        raise UserError(
            argument="data",
            received=f"{dataset.data!r}, whose boxes have the classes {has}",
            expected=f"{wants}, which the model knows",
        )
    # The stored pictures have the dataset's sizes; decoding gives them the model's channels.
    image = dataclasses.replace(dataset.image, channels=card.inputs.image.channels)
    return dataclasses.replace(card.inputs, image=image, features=features)
