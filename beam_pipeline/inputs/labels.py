"""Reads labels and splits from the names of files and folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.layout import wrong_input
from beam_pipeline.inputs.tables.cells import split_labels
from beam_pipeline.options import InputOptions, label_group
from beam_pipeline.planning.refs import Label
from imageshards.errors import Arg, UserError
from imageshards.manifest import NONE, ONE, SPLIT_NAMES
from imageshards.text import composed

EMPTY_CLASS_FOLDER = "empty_class_folder"
EMPTY_SPLIT_FOLDER = "empty_split_folder"
UNREAD_FORMAT = "unread_format"
GIVEN_SPLIT = "given_split"
PART_AS_CLASS = "part_as_class"

# Folders in which segmentation and detection datasets keep images, and masks or annotations.
_IN_PAIRS = {
    **dict.fromkeys(("image", "images", "img", "imgs", "jpegimages", "photos", "inputs"), "images"),
    **dict.fromkeys(
        (
            "mask", "masks", "labels", "annotation", "annotations", "segmentation", "segmentations",
            "segmentationclass", "segmentationobject", "targets", "ground_truth", "gt",
        ),
        "masks",
    ),
}  # fmt: skip

# Formats of phones and cameras: a warning says that these are not read without --extensions.
_UNREAD = (
    ".avif", ".heic", ".heif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2",
)  # fmt: skip


def is_split(name: str) -> bool:
    """Returns whether a folder of this name is a split, unless a flag says otherwise."""
    return name.lower() in SPLIT_NAMES


def layout_by_names(path: str, top: Sequence[str], nested: bool) -> str:
    """Returns whether folders are `class_folders` or `split_folders`, by their names `top`.

    `nested` says whether a folder named like a split has folders. Raises `UserError` if unclear.
    """
    splits = [name for name in top if is_split(name)]
    if not splits or (len(splits) < len(top) and not nested):
        # A class may be called `train`.
        return "class_folders"
    if len(splits) == len(top) and nested:
        return "split_folders"
    remedy = "say " + Arg("layout", "split_folders") + " for ROOT/<split>/<class>/*.jpg, or "
    remedy += Arg("layout", "class_folders") + " for ROOT/<class>/*.jpg"
    raise wrong_input(
        path, f"with the folder {splits[0]!r}, which may be a split or a class", remedy=remedy
    )


def check_masks(source: InputOptions, stems_in: Mapping[str, Callable[[], Iterable[str]]]) -> None:
    """Raises `UserError` for images and their masks in two folders, which would become two classes.

    `stems_in` maps a class folder to a function that returns names of some of its files, without
    endings. Masks have names of images, in a folder that has a usual name for masks.
    """
    kinds = {name: _IN_PAIRS.get(name.lower(), "") for name in stems_in}
    if set(kinds.values()) != {"images", "masks"}:
        return
    images, masks = (min(n for n in kinds if kinds[n] == kind) for kind in ("images", "masks"))
    known = set(stems_in[images]())
    found = list(stems_in[masks]())
    # `1_mask.png` also belongs to `1.jpg`.
    of_images = [stem for stem in found if stem in known or stem.rpartition("_")[0] in known]
    if 2 * len(of_images) > len(found):
        remedy = "give the folder of the images alone, with an image table, " + Arg("label_regex")
        remedy += " or " + Arg("label", NONE)
        problem = f"with images in {images!r} and files of the same names in {masks!r}, "
        problem += "as masks or annotations are kept, which are not supported"
        raise wrong_input(source.input, problem, "folders that are classes", remedy)


def no_class_folder(source: InputOptions) -> UserError:
    """Returns the error for an input whose folders are not classes."""
    regex = Arg("label_regex") + " that finds them, such as '^([a-z]+)' for cat.0.jpg"
    return wrong_input(
        source.input,
        "which has no class folder",
        "ROOT/<class>/*.jpg, an image table (.csv, .jsonl, .parquet), or labels in file names and "
        "a " + regex,
        "say " + Arg("label", NONE) + " for images without a label",
    )


def no_image(name: str) -> Iterator[Skipped]:
    """Yields the `Skipped`s of a file whose name does not end like the name of an image."""
    yield Skipped("not_an_image_name")
    if name.lower().endswith(_UNREAD):
        yield Skipped(UNREAD_FORMAT, name[name.rindex(".") :].lower())


def labels_by_name(
    source: InputOptions, regex: re.Pattern[str] | None, name: str, key: str
) -> tuple[Label, str | None, str | None]:
    """Returns the (label, split, group) in an image's file name; its folder may be a split, too.

    Raises `UserError` if the name does not match --label_regex.
    """
    label, groups = None, dict[str, str]()
    if regex is not None:
        found, group = regex.search(composed(name)), label_group(regex)
        label = found.group(group) if found and group is not None else None
        if found is None or not label:
            received = f"{regex.pattern!r}, which does not match the file name {name!r}"
            remedy = "fix the expression or take the file out"
            raise UserError(argument="label_regex", received=received, remedy=remedy)
        label, groups = cut_label(label, source), found.groupdict()
    top = key.split("/")[0]
    # An image at the top of the input has no folder, so its key is its top.
    known = source.layout == "auto" and is_split(top)
    by_folder = top if top != key and (known or source.layout == "split_folders") else None
    return label, groups.get("split") or by_folder, groups.get("group")


def cut_label(text: str, source: InputOptions) -> Label:
    """Returns the label in the name of a folder or file, cut if images have several labels."""
    if source.label == ONE:
        return text
    return split_labels(text, source.label_separator) if source.label_separator else (text,)
