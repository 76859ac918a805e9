"""Finds labels and splits in the names of an input's folders and files.

`find_layout` looks at the folders of a `Tree`: a folder of this machine, a folder of a store, or
the members of an archive. `read_path` then reads each path by that layout, so a tree of images
gives the same records in whatever form it comes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.inputs.annotations.refused import annotations_in, check_no_annotations, kind_of
from beam_pipeline.inputs.folders import Skipped, Tree
from beam_pipeline.inputs.layout import is_glob, layout_of, unfit_option
from beam_pipeline.inputs.tables.cells import split_labels
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import (
    ARCHIVE_SUFFIXES,
    ARCHIVES,
    WEBDATASET,
    InputOptions,
    label_group,
)
from beam_pipeline.planning.refs import ImageRef, Label
from imageshards import storage
from imageshards.errors import Arg, UserError, wrong_input
from imageshards.manifest import NONE, ONE, SPLIT_NAMES
from imageshards.text import composed, key_of

EMPTY_CLASS_FOLDER = "empty_class_folder"
EMPTY_SPLIT_FOLDER = "empty_split_folder"
UNREAD_FORMAT = "unread_format"
# Reason of an archive in a folder or an archive, which may hold images.
ARCHIVE_INSIDE = "archive_inside"
GIVEN_SPLIT = "given_split"
PART_AS_CLASS = "part_as_class"
SPLIT_BELOW_CLASS = "split_below_class"
SPLIT_OF_WORD = "split_of_word"
DRAWN_BESIDE_WORD = "drawn_beside_word"
WRAPPED = "wrapped"

CLASS_FOLDERS, SPLIT_FOLDERS, FLAT = "class_folders", "split_folders", "flat"

# Formats of phones and cameras: a warning says that these are not read without --extensions.
_UNREAD = (
    ".avif", ".heic", ".heif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2",
)  # fmt: skip

_ARCHIVES = (*ARCHIVE_SUFFIXES, ".7z", ".rar", ".gz", ".bz2", ".xz", ".zst")
# Archives like `photos-0001` are more likely parts of a dataset than classes.
_PART = re.compile(r"[-_.]\d+$")
# A split, alone or with the number of a part: `train`, `train-00000-of-00004`.
_SPLIT_PART = re.compile(
    rf"({'|'.join(sorted(SPLIT_NAMES))})([-_.]?\d+([-_.]of[-_.]\d+)?)?", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the paths of an input give labels and splits.

    Attributes:
        wrapper: Path of the folders around all images, which keys leave out.
        classes: Class folder → its split, or None, and its class. None if labels are not in names
            of folders.
        notes: What is worth a warning.
        flat: Folder of images beside the class folders → its split. `--labels` has their labels.
    """

    wrapper: str = ""
    classes: Mapping[str, tuple[str | None, str]] | None = None
    notes: tuple[Skipped, ...] = ()
    flat: Mapping[str, str] = dataclasses.field(default_factory=dict)


def above(path: str) -> Iterator[str]:
    """Yields the folders above a path, from the input's own: "", "a/" and "a/b/" for "a/b/c"."""
    yield ""
    yield from (path[: at + 1] for at, character in enumerate(path) if character == "/")


def read_path(
    layout: Layout, source: InputOptions, path: str, place: Mapping[str, Any], prefix: str = ""
) -> Iterator[ImageRef | Skipped]:
    """Yields the reference of a file in an input, or why the file is passed over.

    `place` has the values of the reference that say where the bytes are, `prefix` is the beginning
    of the key.
    """
    if not path.lower().endswith(source.extensions):
        is_archive = path.lower().endswith(_ARCHIVES)
        yield Skipped(ARCHIVE_INSIDE if is_archive else "not_an_image_name")
        if path.lower().endswith(_UNREAD):
            yield Skipped(UNREAD_FORMAT, path[path.rindex(".") :].lower())
        return
    key = key_of(path.removeprefix(layout.wrapper))
    if layout.classes is None:
        label, split, group = _by_name(source, key)
        yield ImageRef(key=prefix + key, label=label, split=split, group=group, **place)
        return
    folder = next((folder for folder in above(path) if folder in layout.classes), None)
    if folder is None:
        flat = next((folder for folder in above(path) if folder in layout.flat), None)
        if flat is None:
            yield Skipped("outside_class_folders")
        else:
            yield ImageRef(key=prefix + key, label=None, split=layout.flat[flat], **place)
        return
    split, name = layout.classes[folder]
    yield ImageRef(key=prefix + key, label=_cut_label(name, source), split=split, **place)
    if split is None and (inner := first_split(path[len(folder) :])):
        yield Skipped(SPLIT_BELOW_CLASS, inner)


@functools.lru_cache(maxsize=8)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(composed(regex))


def _by_name(source: InputOptions, key: str) -> tuple[Label, str | None, str | None]:
    """Returns the label, the split and the group that the path of a file says."""
    *folders, name = key.split("/")
    label: Label = None
    groups: Mapping[str, str | None] = {}
    if source.label_regex is not None:
        regex = _compiled(source.label_regex)
        found, group = regex.search(composed(name)), label_group(regex)
        text = found.group(group) if found and group is not None else None
        if found is None or not text:
            received = f"{regex.pattern!r}, which does not match the file name {name!r}"
            raise invalid("label_regex", received, remedy="fix the expression or take the file out")
        label, groups = _cut_label(text, source), found.groupdict()
    by_folder = None
    if source.layout == SPLIT_FOLDERS:
        by_folder = next(iter(folders), None)
    elif source.layout == "auto":
        by_folder = first_split(key)
    return label, groups.get("split") or by_folder, groups.get("group")


def _cut_label(text: str, source: InputOptions) -> Label:
    """Returns the label in the name of a folder or file, cut if images have several labels."""
    text = composed(text)  # a class has one name, however its é is stored
    if source.label == ONE:
        return text
    return split_labels(text, source.label_separator) if source.label_separator else (text,)


def is_split(name: str) -> bool:
    return name.lower() in SPLIT_NAMES


def first_split(path: str) -> str | None:
    """Returns the first folder of a path that has the name of a split."""
    return next(filter(is_split, path.split("/")[:-1]), None)


def find_layout(tree: Tree, source: InputOptions, archive: str = "") -> Layout:
    """Returns how the folders of an input give labels and splits.

    `archive` is the name, without its ending, of an archive among several: its images have this
    class if the archive has no folder for them. Raises `UserError` if images would have no label,
    or if a folder may be a split or a class, or holds masks.
    """
    if (flat := flat_layout(source)) is not None:
        return flat
    wrapper = _wrapper(tree, source.layout)
    here = tree.level(wrapper)
    holds_any = _holds_folders(tree, wrapper)
    if source.labels is not None and _is_flat(tree, source, wrapper):
        return Layout()
    if archive and here.has_image and not holds_any:
        return _one_class(source, archive)
    if not holds_any and not here.has_image:
        if packed := min((name for name in tree.files("") if name.endswith(_ARCHIVES)), default=""):
            problem = f"which holds no image, but archives such as {packed!r}"
            remedy = "give a glob of the archives, such as 'FOLDER/**/*.tar', or unpack them"
            raise wrong_input(source.input, problem, remedy=remedy)
    splits = _splits(tree, source, wrapper)
    beside: dict[str, str] = {}  # folders of images that --labels has the labels of
    if source.labels is not None:
        beside |= {path: each for path, each in splits.items() if not _holds_folders(tree, path)}
        splits = {path: each for path, each in splits.items() if path not in beside}
    parents: dict[str, str | None] = {**splits} or {wrapper: None}
    classes = {
        f"{path}{name}/": (split, key_of(name))
        for path, split in parents.items()
        for name in tree.level(path).folders
    }
    if not classes or (here.has_image and not holds_any):
        raise annotations_in(tree, source.input, wrapper) or _no_class_folder(source)
    check_no_annotations(tree, source.input, wrapper, classes)
    return Layout(wrapper, classes, tuple(_notes(tree, wrapper, splits)), beside)


def _holds_folders(tree: Tree, path: str) -> bool:
    """Returns whether a folder has folders with images."""
    return any(tree.holds_image(f"{path}{name}/") for name in tree.level(path).folders)


def _is_flat(tree: Tree, source: InputOptions, wrapper: str) -> bool:
    """Returns whether no image is in a class folder, but all in the input or in split folders."""
    here = tree.level(wrapper)
    holding = [name for name in here.folders if tree.holds_image(f"{wrapper}{name}/")]
    if here.has_image or source.layout == CLASS_FOLDERS:
        return here.has_image and not holding
    # A folder such as `ILSVRC2012_img_val/` around all images is a part, and no class.
    is_part = is_split if len(holding) > 1 else split_word
    are_parts = source.layout == SPLIT_FOLDERS or all(map(is_part, holding))
    return are_parts and not any(_holds_folders(tree, f"{wrapper}{name}/") for name in holding)


def flat_layout(source: InputOptions) -> Layout | None:
    """Returns the layout of an input whose folders are no classes, or None if they may be."""
    if source.layout == WEBDATASET:
        expected, remedy = "archives (.tar), or a folder or glob of archives", "leave it out"
        raise unfit_option("layout", WEBDATASET, source.input, "is no archive", expected, remedy)
    if source.label_regex is not None or source.label == NONE:
        return Layout()
    if source.layout != FLAT and (not is_glob(source.input) or layout_of(source) == ARCHIVES):
        return None
    if source.labels is not None:
        return Layout()
    in_name = Arg("label_regex") + ", for example '^([a-z]+)\\.' for cat.0.jpg"
    problem = "a flat folder or glob, so the label must be in the file name, or in a file of "
    problem += Arg("labels")
    raise wrong_input(source.input, problem, in_name + ", or " + Arg("label", NONE))


def _wrapper(tree: Tree, asked: str) -> str:
    """Returns the path of the folders that wrap all images, "" for none.

    `flower_photos/` wraps `flower_photos/daisy/1.jpg`. `train/` does not wrap `train/daisy/1.jpg`,
    as the name of a split has a meaning.
    """
    path = ""
    while (name := _only_folder(tree, path)) and not is_split(name):
        inner = f"{path}{name}/"
        # Class folders, and the folders of splits around them, hold all images.
        above_classes = [inner]
        if asked == SPLIT_FOLDERS:
            above_classes += [f"{inner}{split}/" for split in tree.level(inner).folders]
        if any(tree.level(folder).has_image for folder in above_classes):
            break
        path = inner
    return path


def _only_folder(tree: Tree, path: str) -> str:
    """Returns the name of the folder that holds all images of a folder; "" for several or none."""
    here = tree.level(path)
    found = (name for name in here.folders if tree.holds_image(f"{path}{name}/"))
    first, other, *_ = [*([] if here.has_image else itertools.islice(found, 2)), "", ""]
    return "" if other else first


def _one_class(source: InputOptions, archive: str) -> Layout:
    if source.layout != CLASS_FOLDERS and is_split(archive):
        raise _unclear(source, archive)
    notes = (Skipped(PART_AS_CLASS, archive),) if _PART.search(archive) else ()
    return Layout("", {"": (None, archive)}, notes)


def _splits(tree: Tree, source: InputOptions, wrapper: str) -> dict[str, str]:
    """Returns folder of class folders → split, {} without splits; raises `UserError` if unclear."""
    if source.layout == CLASS_FOLDERS:
        return {}
    by_name: dict[str, str] = {}
    by_word: dict[str, str] = {}
    others = []
    for top in tree.level(wrapper).folders:
        path = f"{wrapper}{top}/"
        has_name = is_split(top) or source.layout == SPLIT_FOLDERS
        inner = _only_folder(tree, path) if has_name or split_word(top) else ""
        # Archives are often packed as `train/train/<class>`, and unpacked into a folder again.
        is_doubled = inner.lower() == top.lower()
        above_classes = f"{path}{inner}/"
        if is_doubled or (kind_of(inner) == "images" and not tree.level(above_classes).has_image):
            path = above_classes
        if has_name:
            by_name[path] = key_of(top)
        elif is_doubled:
            by_word[path] = str(split_word(top))
        else:
            others.append(path)
    # Of folders such as `steam_train/steam_train/`, only several with different words are splits.
    both = by_name | by_word
    if len({split.lower() for split in both.values()}) == len(both):
        by_name = both
    else:
        others += by_word
    if source.layout == SPLIT_FOLDERS or not by_name:
        return by_name
    has_others = any(map(tree.holds_image, others))
    nested = any(
        tree.holds_image(f"{path}{name}/") for path in by_name for name in tree.level(path).folders
    )
    if has_others and not nested:
        return {}  # a class may be called `train`
    if has_others or not nested:
        name = storage.name_of(min(by_name))
        raise annotations_in(tree, source.input, wrapper) or _unclear(source, name)
    return by_name


def split_word(name: str) -> str | None:
    """Returns the only word of a name that names a split, such as `train` in `seg_train`."""
    words = [word for word in re.split("[^A-Za-z]+", name) if is_split(word)]
    return words[0] if len(words) == 1 else None


def _unclear(source: InputOptions, name: str) -> UserError:
    remedy = "say " + Arg("layout", SPLIT_FOLDERS) + " for ROOT/<split>/<class>/*.jpg, or "
    remedy += Arg("layout", CLASS_FOLDERS) + " for ROOT/<class>/*.jpg"
    problem = f"with the folder {name!r}, which may be a split or a class"
    return wrong_input(source.input, problem, remedy=remedy)


def _notes(tree: Tree, wrapper: str, splits: Mapping[str, str]) -> Iterator[Skipped]:
    for path, split in splits.items():
        here, top = tree.level(path), key_of(path[len(wrapper) :].partition("/")[0])
        # A folder that this user may not list is a warning of its own.
        if not here.folders and (here.has_image or not tree.holds_image(path)):
            yield Skipped(EMPTY_SPLIT_FOLDER, split)
        if split != top:
            yield Skipped(SPLIT_OF_WORD, f"{top} as {split}")


def _no_class_folder(source: InputOptions) -> UserError:
    regex = Arg("label_regex") + " that finds them, such as '^([a-z]+)' for cat.0.jpg"
    return wrong_input(
        source.input,
        "which has no class folder",
        "ROOT/<class>/*.jpg, an image table (.csv, .jsonl, .parquet), a file of labels by "
        + Arg("labels")
        + ", or labels in file names and a "
        + regex,
        "say " + Arg("label", NONE) + " for images without a label",
    )


def said_splits(paths: Sequence[Sequence[str]], draws: bool = True) -> list[str | None]:
    """Returns the split that each path says, in its last folder or name that says one.

    `photos/train` and `train-00000-of-00004` say it. Words such as in `flowers_train` count if all
    paths say a split, and not the same. Without `draws` they also count beside a path that says no
    split, whose images are then refused rather than drawn.
    """
    by_word = [next(filter(None, map(split_word, reversed(path))), None) for path in paths]
    by_name = [next(filter(None, map(_split_part, reversed(path))), None) for path in paths]
    said = [name or word for name, word in zip(by_name, by_word, strict=True)]
    differ = len({str(one).lower() for one in said}) > 1
    return said if differ and (all(said) or not draws) else by_name


def _split_part(name: str) -> str | None:
    found = _SPLIT_PART.fullmatch(name)
    return found[1] if found else None
