"""Opens the data of a run, and checks all of it, bounding boxes too, before TensorFlow's import."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence

from imageshards import storage
from imageshards.commands.options import refuse_idle
from imageshards.errors import Arg, UserError
from imageshards.index import MAX_TEXT_BYTES, read_index
from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES, BOX_LABEL_FEATURE
from imageshards.storage.concurrency import available_cores
from imageshards.text import class_sort_key
from imageshards.tfrecord import RecordError
from trainer.config import ReadConfig
from trainer.dataset.index import columns_of
from trainer.dataset.spec import (
    BOXES,
    IMAGE_INPUT,
    Boxes,
    DatasetSpec,
    FeatureSpec,
    ModelCard,
    ModelInputs,
    ReadOptions,
    find_feature,
    input_name,
)
from trainer.dataset.subset import some_names
from trainer.strengths import NONE

CACHE_FOLDER = "cache"


def pixels_home() -> str:
    """Returns the user's folder for decoded pictures, for runs without a local output folder."""
    home = storage.place("cache_folder", os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return os.path.join(home, "imageshards", "pixels")


def several_datasets(paths: Sequence[str]) -> UserError:
    """Returns the error for several datasets, with the command that joins them."""
    inputs = " ".join(f"--input {path}" for path in paths)
    return UserError(
        argument="data",
        received=f"{', '.join(paths)}, but a run reads one dataset",
        expected=f"one, as imageshards build {inputs} --output ALL joins them",
    )


def read_options(config: ReadConfig, output: str | None = None) -> ReadOptions:
    """Returns how shards are read; the cache is in the run's `output` if that is a local folder."""
    folder = config.cache_folder
    if output and storage.is_local(output):
        folder = folder or os.path.join(output, CACHE_FOLDER)
    elif config.cache != "none":
        folder = folder or pixels_home()
    threads = config.threads or available_cores()
    return ReadOptions(threads, config.cache, folder)


def wanted_inputs(config: ReadConfig, dataset: DatasetSpec) -> ModelInputs:
    """Returns the inputs of a model that `config` describes.

    Raises:
        UserError: A feature does not exist, no size of the pictures is known, sizes vary although
            all pictures are to be cached, or an option has no effect on these inputs.
    """
    features = check_inputs(dataset, config.inputs)
    boxes = wanted_boxes(dataset, config.inputs, config.min_box_visibility)
    if boxes is None:
        expected = "bounding_boxes among " + Arg("inputs") + " or as " + Arg("target")
        refuse_idle(config, "min_box_visibility", "without bounding boxes", expected)
        if all(spec.shape is not None for spec in features.values()):
            expected = "a list or bounding_boxes among " + Arg("inputs")
            refuse_idle(config, "sequence_length", "without lists and boxes", expected)
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
            wants = f"{spec.dtype} {spec.shape}, which the model is fed with"
            raise dataset.refused(f"which has {name} {has}", wants)
    features, wanted = check_inputs(dataset, card.inputs.names), card.inputs.boxes
    boxes = wanted and wanted_boxes(dataset, card.inputs.names, wanted.min_visibility)
    if boxes != wanted:
        why, known = "whose boxes have other labels", wanted.classes if wanted else ()
        raise dataset.refused(why, f"{some_names(known, repr) or 'ids'}, which the model knows")
    # The stored pictures have the dataset's sizes; decoding gives them the model's channels.
    image = dataclasses.replace(dataset.image, channels=card.inputs.image.channels)
    return dataclasses.replace(card.inputs, image=image, features=features)


def check_sides(inputs: ModelInputs, augment: object) -> None:
    """Refuses single sides of boxes as inputs if the pictures are cropped or flipped."""
    sides = [name for name in inputs.features if name in BOX_FEATURES]
    # Without augmentation, pictures are still cut if the model's pictures have another aspect.
    own = None if inputs.image.varies else inputs.image.size
    cuts = inputs.eval_crop < 1 or own is None or own[0] * inputs.size[1] != own[1] * inputs.size[0]
    if not sides or (augment == NONE and not cuts):
        return
    why = Arg("augment") + " moves"
    if augment == NONE:
        why = Arg("image_size") + " or " + Arg("eval_crop") + " cuts"
    raise UserError(
        argument="inputs",
        received=f"{sides[0]}, the side of a box, but " + why + " the pictures without the side",
        expected=f"{BOXES}, which has all sides and labels, and follows the pixels",
    )


def wanted_boxes(dataset: DatasetSpec, names: Sequence[str], min_visibility: float) -> Boxes | None:
    """Returns how boxes are read if they are an input or the target, else None.

    Raises:
        UserError: Boxes are both an input and the target, records have no boxes, or the name of a
            class is too long for the index.
    """
    is_input, received = BOXES in names, ",".join(names)
    is_target = any(one.target == "boxes" for one in dataset.targets)
    if is_input and is_target:
        raise UserError(
            argument="inputs",
            received=f"{received!r}, but {BOXES} is the target",
            remedy=f"leave {BOXES} out",
        )
    if not is_input and not is_target:
        return None
    received = received if is_input else BOXES
    lists = {n: s.dtype for n, s in dataset.features.items() if s.shape is None}
    absent = [name for name in BOX_FEATURES if lists.get(name) != "float32"]
    if absent:
        raise UserError(
            argument="inputs" if is_input else "target",
            received=f"{received!r}, but records have no {absent[0]}, a list of floats",
            expected=f"a dataset with {', '.join(BOX_FEATURES)}",
            remedy="see 'Bounding boxes' in the guide of columns",
        )
    # Labels are the records' ids, else their texts, numbered over all splits, else 0.
    if lists.get(BOX_LABEL_FEATURE) == "int64":
        return Boxes(BOX_LABEL_FEATURE, (), min_visibility, is_input)
    if lists.get(BOX_CLASS_FEATURE) == "string" and (classes := _class_names(dataset)):
        return Boxes(BOX_CLASS_FEATURE, classes, min_visibility, is_input)
    return Boxes(None, (), min_visibility, is_input)


def _class_names(dataset: DatasetSpec) -> tuple[str, ...]:
    """Returns the classes of boxes in all splits, sorted; an empty name is a class, too."""
    import pyarrow.compute as pc

    from trainer.dataset.source import RecordSource

    column = columns_of(dataset)[BOX_CLASS_FEATURE]
    names: set[str | None] = set()
    for split in dataset.splits.values():
        table = read_index(dataset.data, dataset.manifest, split.name, [column], "data")
        values = table[column].combine_chunks()
        names.update(pc.unique(pc.list_flatten(values)).to_pylist())
        # The index has null instead of a list that is too long; these records are read.
        long = values.is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist()
        if not long:
            continue
        source = RecordSource(dataset, split, [BOX_CLASS_FEATURE])

        def texts(number: int, source: RecordSource = source) -> set[str]:
            # Damaged records are left to the reader, which counts and names them.
            with contextlib.suppress(RecordError):
                found = source[number][BOX_CLASS_FEATURE].tolist()
                return {text.decode("utf-8", "replace") for text in found}
            return set()

        names.update(*storage.map_concurrently(texts, long))
    # A null inside a list is a name that is too long.
    if None in names:
        why = f"where a name in {BOX_CLASS_FEATURE} has more than {MAX_TEXT_BYTES} bytes"
        raise dataset.refused(why, "shorter names", "build the dataset again")
    return tuple(sorted((name for name in names if name is not None), key=class_sort_key))
