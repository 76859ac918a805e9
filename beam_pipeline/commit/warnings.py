"""Writes the warnings of a dataset, one sentence each, to be read before a training."""

from __future__ import annotations

import collections
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from beam_pipeline.inputs import labels
from beam_pipeline.inputs.annotations import beside, coco, places
from beam_pipeline.inputs.archives.members import UNKNOWN_ENCODING
from beam_pipeline.inputs.archives.references import NO_IMAGE, UNREAD_TEXTS
from beam_pipeline.inputs.folders import EXCLUDED_BY_GLOB, UNREADABLE_FOLDER
from beam_pipeline.inputs.label_files import NO_IMAGE_OF_ROW, NO_LABEL_ROW
from beam_pipeline.inputs.tables.cells import joined_by
from beam_pipeline.inputs.tables.references import BACKSLASHES, MISSING_MARKS, WITHOUT_LABEL
from beam_pipeline.options import PlanOptions
from beam_pipeline.shards.result import BOXES_DROPPED
from imageshards.errors import install_advice
from imageshards.manifest import SPLIT_NAMES, TRAIN_NAMES
from imageshards.text import counted, look_of

_SHOWN_NAMES = 5
# Characters that people put between several labels.
_SEPARATORS = "|;,"
# In a dataset with fewer images, classes of one image each may be meant.
_FEW_IMAGES = 20
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?", re.ASCII)
# Reasons that come with a name, and yet count files that were passed over.
_COUNTED = (EXCLUDED_BY_GLOB, UNREADABLE_FOLDER, WITHOUT_LABEL, beside.OUTSIDE_SETS)


def counts_and_names(
    skipped: Iterable[Mapping[str, int]],
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Adds up `Listed.skipped` of `ListImages`: reason → files, and reason → sorted names.

    A reason of `_OF_ANNOTATIONS` has its number in place of names.
    """
    total: collections.Counter[str] = collections.Counter()
    for each in skipped:
        total.update(each)
    counts: collections.Counter[str] = collections.Counter()
    names: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
    for key in sorted(total):
        reason, colon, name = key.partition(": ")
        if colon:
            names[reason].append(str(total[key]) if reason in _OF_ANNOTATIONS else name)
        if not colon or reason in _COUNTED:
            counts[reason] += total[key]
    return dict(counts), dict(names)


def warnings_of(
    counts: Mapping[str, Mapping[str, int]],
    images: Mapping[str, int],
    splits: Collection[str],
    names: Mapping[str, Sequence[str]],
    asks_splits: bool = True,
) -> list[str]:
    """Returns the warnings about a dataset or a plan.

    `counts` is split → class → images with that class, for all classes. `images` is split → images.
    `splits` are the names in `--splits`, which the user gave if `asks_splits`. `names` comes from
    `counts_and_names`.
    """
    found = [split for split, count in images.items() if count]
    given = set(names.get(labels.GIVEN_SPLIT, ()))
    if not asks_splits:
        names = {reason: each for reason, each in names.items() if reason != labels.GIVEN_SPLIT}
    # A category may have boxes in one file of several.
    used = names.get(coco.USED_CATEGORY, ())
    unused = [name for name in names.get(coco.UNUSED_CATEGORY, ()) if name not in used]
    names = {**names, coco.UNUSED_CATEGORY: unused}
    classes: collections.Counter[str] = collections.Counter()
    for of_class in counts.values():
        classes.update(of_class)
    return [
        *_of_input(names),
        *_of_splits(found, splits, set(found) <= given, asks_splits),
        *_of_class_names(classes, sum(images.values())),
        *_without_training_image(counts),
    ]


BETWEEN_SPLITS = "between_splits"
# Note about records → the noun for `counted`, and the sentence.
_OF_NOTES = {
    BETWEEN_SPLITS: (
        "original",
        "{counted} in more than one split, byte for byte, so evaluation results look too good: "
        "imageshards duplicates shows the copies, and writes a file for --exclude",
    ),
    BOXES_DROPPED: (
        "picture",
        "{counted} had boxes outside of the picture or without an area, which were dropped with "
        "their classes; check the rows, the unit of the boxes (--bbox_format), and whether they "
        "refer to the stored or to the upright picture (--bbox_frame)",
    ),
}


def of_notes(notes: Mapping[str, int]) -> Iterator[str]:
    """Yields a warning for each note of `_OF_NOTES` with a number."""
    for note, (noun, said) in _OF_NOTES.items():
        if number := notes.get(note):
            yield said.format(counted=counted(number, noun))


# Reason → the noun for `counted`, and the sentence.
_OF_INPUT = {
    labels.EMPTY_CLASS_FOLDER: (
        "class folder",
        "{counted} without an image: {names}; add images (--extensions says which names count) or "
        "remove the folders",
    ),
    labels.UNREAD_FORMAT: (
        "format",
        "--input holds pictures that the build skips for their endings: {names}; convert raw "
        "pictures, add other endings to --extensions, or for HEIC " + install_advice("heif"),
    ),
    UNREADABLE_FOLDER: (
        "folder",
        "{counted} could not be listed for lack of permissions, and the images in it are missing: "
        "{names}; give this user the permissions and build again with --overwrite, or exclude the "
        "folders by --exclude_glob",
    ),
    labels.EMPTY_SPLIT_FOLDER: (
        "split folder",
        "{counted} without a class folder: {names}; images in it are left out, as only images in "
        "ROOT/<split>/<class>/ have a label",
    ),
    NO_LABEL_ROW: (
        "image",
        "images that no folder labels have no row in --labels and were left out (no_label_row "
        "counts them): {names}",
    ),
    NO_IMAGE_OF_ROW: ("row", "rows of --labels name no image of --input: {names}"),
    labels.PART_AS_CLASS: (
        "archive",
        "{counted} without folders became classes by their names: {names}; if they are parts of "
        "one dataset, use --label_regex or --label none",
    ),
    MISSING_MARKS: (
        "column",
        "{counted} of --input with numbers and cells such as N/A, null or -: {names}; each such "
        "cell is a missing value, NaN in the records",
    ),
    WITHOUT_LABEL: (
        "column",
        "rows with -1 in {names}, as in a test split with hidden labels, have no class and were "
        "left out (without_label); to have all rows without labels, use --label none",
    ),
    BACKSLASHES: (
        "table",
        "paths of {names} have backslashes, as Windows writes them, and were read with slashes",
    ),
    coco.UNUSED_CATEGORY: (
        "category",
        "{counted} without a box, and so no class unless --class_names lists it: {names}",
    ),
    places.ABSENT_SPLIT: (
        "line",
        "{counted} of data.yaml with pictures that do not exist: {names}; add them, or remove it",
    ),
    places.SHARED_BY_SPLITS: (
        "line",
        "data.yaml names the same pictures for several splits ({names}), so it gives them no split",
    ),
    NO_IMAGE: ("archive", "{counted} without an image: {names}"),
    UNREAD_TEXTS: (
        "archive",
        "{counted} with .json beside the images, which was not read, as folders give the labels: "
        "{names}; --layout webdataset reads labels and columns from it",
    ),
    UNKNOWN_ENCODING: (
        "archive",
        "{counted} with names in an encoding that the archive does not say, so classes and keys "
        "may be unreadable: {names}; say --zip_encoding, such as cp932, gbk or cp1252",
    ),
    labels.WRAPPED: (
        "folder",
        "all images are in {names}, so the folders in it are the classes or splits, and keys are "
        "paths below it",
    ),
    labels.SPLIT_OF_WORD: (
        "folder",
        "{counted} with folders of the same name became splits by a word: {names}; rename them if "
        "you meant other splits",
    ),
    labels.DRAWN_BESIDE_WORD: (
        "input",
        "images of {names} were drawn into splits, although its name has a word for one; --splits "
        "train=1 keeps all in one split, and a name such as train says which",
    ),
    labels.SPLIT_BELOW_CLASS: (
        "split",
        "folders called {names} are inside of class folders, so they give no split; for splits, "
        "use ROOT/<split>/<class>/*.jpg or a table with a column split",
    ),
    labels.GIVEN_SPLIT: (
        "split",
        "--splits was not applied to images of {names}, because names of folders or files, a "
        "column or a regex of the input give these splits; draw new splits in a second build with "
        "this dataset as --input and with --splits",
    ),
}
# Reason of annotations, which are counted → the noun for `counted`, and the sentence.
_OF_ANNOTATIONS = {
    coco.CROWD: (
        "box",
        "{counted} of crowds (iscrowd of COCO) left out, as a crowd is no single object",
    ),
    coco.WITHOUT_IMAGE: (
        "annotation",
        "{counted} without an image: boxes of COCO whose image_id no image has, or files that no "
        "picture has; all were left out, so check whether pictures are missing",
    ),
    coco.WITHOUT_BOXES: ("image", "{counted} without a box, kept as records without boxes"),
    beside.WITHOUT_FILE: (
        "image",
        "{counted} without a file of annotations, kept as records without boxes; exclude them if "
        "their objects are not annotated",
    ),
    beside.LONG_LINE: (
        "line",
        "{counted} of YOLO with more than five numbers: the box around a polygon was taken, and "
        "keypoints behind a box were left out",
    ),
    beside.DIFFICULT: ("object", "{counted} marked difficult in Pascal VOC, kept as boxes"),
    beside.OTHER_NAME: (
        "file",
        "{counted} of Pascal VOC with another <filename> than its own name; the boxes went to the "
        "picture that has the name of the file",
    ),
    beside.OUTSIDE_SETS: (
        "image",
        "{counted} of Pascal VOC left out, as no split in ImageSets/ lists it; to have all, give a "
        "copy without ImageSets/",
    ),
}


def _of_input(names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for reason, (noun, said) in _OF_INPUT.items():
        if found := names.get(reason):
            yield said.format(counted=counted(len(found), noun), names=_shown(found))
    for reason, (noun, said) in _OF_ANNOTATIONS.items():
        if found := names.get(reason):
            yield said.format(counted=counted(sum(map(int, found)), noun))


def _of_splits(
    found: Sequence[str], wanted: Collection[str], are_given: bool, asks_splits: bool
) -> Iterator[str]:
    """Yields warnings about splits; `are_given` if the input gives each image its split."""
    # If the input defines other splits, the default splits may be empty.
    asked = set(wanted) != set(PlanOptions().splits) or set(found) <= set(wanted)
    missing = [split for split in wanted if split not in found]
    if missing and asked and are_given and not asks_splits:
        yield (
            f"the input gives every image its split, {_shown(found)}, so none is in "
            f"{_shown(missing)}; for other splits, say --splits if only the name of the input says "
            "it, or else make a second build with this dataset as --input and with --splits"
        )
    elif missing and asked and not are_given:
        yield (
            f"{counted(len(missing), 'split')} got no image: {_shown(missing)}; give a larger "
            "fraction by --splits, more images, or another --salt"
        )
    for split in found:
        almost = difflib.get_close_matches(split.lower(), ("train", "validation"), 1, 0.8)
        if almost and split not in SPLIT_NAMES:
            yield f"split {split!r} is almost {almost[0]!r}; rename it if you meant that name"


def _of_class_names(classes: Mapping[str, int], images: int) -> Iterator[str]:
    alike = collections.defaultdict(list)
    for name in classes:  # grouped by a value that is equal for names that a person may confuse
        look = look_of(name)
        alike[str(float(look)) if _NUMBER.fullmatch(look) else look].append(name)
    groups = [same for same in alike.values() if len(same) > 1]
    if groups:
        shown = "; ".join(map(_spelled, groups[:_SHOWN_NAMES]))
        more = f"; and {len(groups) - _SHOWN_NAMES:,} more" if len(groups) > _SHOWN_NAMES else ""
        yield (
            f"classes whose names look alike, or differ only in case, in spaces or in how a number "
            f"is written: {shown}{more}; join them by --class_map if they are one"
        )
    for separator in _SEPARATORS:
        if joined := joined_by(separator, classes):
            yield (
                f"{len(joined):,} classes have {separator!r} in their names: {_shown(joined)}; if "
                f"these are several labels of an image, use --label several --label_separator "
                f"{separator!r}"
            )
    used = sum(map(bool, classes.values()))
    if used > 1 and (used == images or used >= max(_FEW_IMAGES, 0.9 * images)):
        yield (
            f"{used:,} classes for {images:,} images: nearly each image is a class of its own, so "
            "the label may be a file name or a quantity; expected several images of each: check "
            "--label_regex, --label_column or the folders"
        )


def _spelled(same: Sequence[str]) -> str:
    shown = _shown(same)
    return shown if all(map(str.isascii, same)) else f"{shown} ({', '.join(map(ascii, same))})"


def _without_training_image(counts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for split in TRAIN_NAMES:
        if without := [name for name, count in counts.get(split, {}).items() if not count]:
            total = len(counts[split])
            verb = "has" if len(without) == 1 else "have"
            yield (
                f"{len(without):,} of {total:,} classes {verb} no image in split {split!r}: "
                f"{_shown(without)}; a model cannot learn them: add images, or assign images to "
                "the split by a folder or column"
            )


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(map(repr, names[:_SHOWN_NAMES])) + more
