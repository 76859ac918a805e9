"""Finds labels and splits in the names of an input's folders and files.

`find_layout` looks at the folders of a `Tree`: a folder of this machine, a folder of a store, or
the members of an archive. `place_of` then reads each path by that layout, so a tree of images gives
the same records in whatever form it comes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from beam_pipeline.inputs.content import annotated_by, annotations_error
from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.layout import is_glob, layout_of, unfit_option, wrong_input
from beam_pipeline.inputs.tables.cells import split_labels
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import (
    ARCHIVE_SUFFIXES,
    ARCHIVES,
    WEBDATASET,
    InputOptions,
    label_group,
)
from beam_pipeline.planning.refs import Label
from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.manifest import NONE, ONE, SPLIT_NAMES
from imageshards.text import composed, key_of

EMPTY_CLASS_FOLDER = "empty_class_folder"
EMPTY_SPLIT_FOLDER = "empty_split_folder"
UNREAD_FORMAT = "unread_format"
# Reason of an archive in a folder or an archive, which may hold images.
ARCHIVE_INSIDE = "archive_inside"
GIVEN_SPLIT = "given_split"
# The same of a build without --splits.
OWN_SPLIT = "own_split"
PART_AS_CLASS = "part_as_class"
SPLIT_BELOW_CLASS = "split_below_class"
SPLIT_OF_WORD = "split_of_word"
WRAPPED = "wrapped"

CLASS_FOLDERS, SPLIT_FOLDERS, FLAT = "class_folders", "split_folders", "flat"
# Kinds of the folders of a layout.
LEVEL, CLASS, FOLDER = "level", "class", "folder"

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
# Files of a folder whose names are compared to find masks beside images.
_SEEN_FILES = 1000

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


class Tree(Protocol):
    """Folders of an input. A path is relative to the input, "" or with a slash at its end."""

    def folders(self, path: str) -> Sequence[str]:
        """Returns the sorted names of the folders in a folder, without those passed over."""

    def has_image(self, path: str) -> bool:
        """Returns whether an image is directly in a folder."""

    def others(self, path: str) -> Sequence[str]:
        """Returns the names of some files in a folder that are no images."""

    def holds_image(self, path: str) -> bool:
        """Returns whether an image is anywhere below a folder."""

    def files(self, path: str) -> Iterable[str]:
        """Yields the names of the files below a folder, in the same order for equal names."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the paths of an input give labels and splits.

    Attributes:
        kind: `CLASS_FOLDERS`, `SPLIT_FOLDERS`, or `FLAT` if labels are not in names of folders.
        wrapper: Path of the folders around all images, which keys leave out.
        splits: Folder of a split → the split, and the path from the wrapper to its class folders.
        label: Class of all images of an archive without folders.
        notes: What is worth a warning.
    """

    kind: str = FLAT
    wrapper: str = ""
    splits: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    label: str | None = None
    notes: tuple[Skipped, ...] = ()

    def folders(self, tree: Tree, path: str = "") -> Iterator[tuple[str, str]]:
        """Yields the path and the kind of folders that together hold all files of an input.

        A `LEVEL` stands for its own files only. A `CLASS` folder, or a `FOLDER` without a class,
        stands for everything below.
        """
        if path not in self._levels:
            yield path, CLASS if self.kind != FLAT and self.class_of(f"{path}x") else FOLDER
            return
        yield path, LEVEL
        for name in tree.folders(path):
            yield from self.folders(tree, f"{path}{name}/")

    @functools.cached_property
    def _levels(self) -> set[str]:
        if self.kind == FLAT or self.label is not None:
            return set()
        below = [self.wrapper + classes for _, classes in self.splits.values()] or [self.wrapper]
        paths = {path[: at + 1] for path in below for at, c in enumerate(path) if c == "/"}
        return {"", *paths}

    def class_of(self, path: str) -> tuple[str, str | None, str] | None:
        """Returns the class folder of a path, its split, and the path below the class folder.

        Returns None outside of class folders.
        """
        if self.label is not None:
            return self.label, None, path
        if not path.startswith(self.wrapper):
            return None
        below, split = path[len(self.wrapper) :], None
        if self.kind == SPLIT_FOLDERS:
            split, classes = self.splits.get(below.partition("/")[0], (None, "/"))
            if not below.startswith(classes):
                return None
            below = below[len(classes) :]
        label, slash, name = below.partition("/")
        return (label, split, name) if slash else None


class Place(NamedTuple):
    """What the path of an image says."""

    key: str
    label: Label
    split: str | None
    group: str | None


def read_path(layout: Layout, source: InputOptions, path: str) -> Iterator[Place | Skipped]:
    """Yields what the path of a file in an input says, or why the file is passed over."""
    if not path.lower().endswith(source.extensions):
        is_archive = path.lower().endswith(_ARCHIVES)
        yield Skipped(ARCHIVE_INSIDE if is_archive else "not_an_image_name")
        if path.lower().endswith(_UNREAD):
            yield Skipped(UNREAD_FORMAT, path[path.rindex(".") :].lower())
        return
    key = key_of(path.removeprefix(layout.wrapper))
    if layout.kind == FLAT:
        yield _place_by_name(source, key)
        return
    found = layout.class_of(path)
    if found is None:
        yield Skipped("outside_class_folders")
        return
    folder, split, below = found
    yield Place(key, _cut_label(key_of(folder), source), split, None)
    if split is None and (inner := next(filter(is_split, below.split("/")[:-1]), None)):
        yield Skipped(SPLIT_BELOW_CLASS, inner)


@functools.lru_cache(maxsize=8)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(composed(regex))


def _place_by_name(source: InputOptions, key: str) -> Place:
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
        by_folder = next(filter(is_split, folders), None)
    return Place(key, label, groups.get("split") or by_folder, groups.get("group"))


def _cut_label(text: str, source: InputOptions) -> Label:
    """Returns the label in the name of a folder or file, cut if images have several labels."""
    if source.label == ONE:
        return text
    return split_labels(text, source.label_separator) if source.label_separator else (text,)


def is_split(name: str) -> bool:
    return name.lower() in SPLIT_NAMES


def find_layout(tree: Tree, source: InputOptions, archive: str = "") -> Layout:
    """Returns how the folders of an input give labels and splits.

    `archive` is the name, without its ending, of an archive among several: its images have this
    class if the archive has no folder for them. Raises `UserError` if images would have no label,
    or if a folder may be a split or a class, or holds masks.
    """
    if (flat := flat_layout(source)) is not None:
        return flat
    wrapper = _wrapper(tree, source.layout)
    tops = tree.folders(wrapper)
    if not any(tree.holds_image(f"{wrapper}{top}/") for top in tops):
        if archive and tree.has_image(wrapper):
            return _one_class(source, archive)
        if tree.has_image(wrapper) or not tops:
            raise _annotations(tree, source, wrapper) or _no_class_folder(source)
    splits = _split_folders(tree, source, wrapper, tops)
    layout = Layout(SPLIT_FOLDERS if splits else CLASS_FOLDERS, wrapper, splits)
    classes = [path for path, kind in layout.folders(tree) if kind == CLASS]
    if not classes:
        raise _annotations(tree, source, wrapper) or _no_class_folder(source)
    if all(_kind_of(path) == "images" for path in classes if tree.holds_image(path)):
        if error := _annotations(tree, source, wrapper):
            raise error
    # Masks are compared with the images of the same split.
    for _, of_split in itertools.groupby(classes, lambda path: path[: path[:-1].rfind("/") + 1]):
        _check_masks(source, tree, [*of_split])
    return dataclasses.replace(layout, notes=tuple(_notes(tree, layout)))


def flat_layout(source: InputOptions) -> Layout | None:
    """Returns the layout of an input whose folders are no classes, or None if they may be."""
    if source.layout == WEBDATASET:
        expected, remedy = "archives (.tar), or a folder or glob of archives", "leave it out"
        raise unfit_option("layout", WEBDATASET, source.input, "is no archive", expected, remedy)
    if source.label_regex is not None or source.label == NONE:
        return Layout()
    if source.layout != FLAT and (not is_glob(source.input) or layout_of(source) == ARCHIVES):
        return None
    in_name = Arg("label_regex") + ", for example '^([a-z]+)\\.' for cat.0.jpg"
    problem = "a flat folder or glob, so the label must be in the file name"
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
            above_classes += [f"{inner}{split}/" for split in tree.folders(inner)]
        if any(map(tree.has_image, above_classes)):
            break
        path = inner
    return path


def _only_folder(tree: Tree, path: str) -> str:
    """Returns the name of the folder that holds all images of a folder; "" for several or none."""
    if tree.has_image(path):
        return ""
    found = (name for name in tree.folders(path) if tree.holds_image(f"{path}{name}/"))
    first, other, *_ = [*itertools.islice(found, 2), "", ""]
    return "" if other else first


def _one_class(source: InputOptions, archive: str) -> Layout:
    if source.layout != CLASS_FOLDERS and is_split(archive):
        raise _unclear(source, archive)
    notes = (Skipped(PART_AS_CLASS, archive),) if _PART.search(archive) else ()
    return Layout(CLASS_FOLDERS, label=archive, notes=notes)


def _split_folders(
    tree: Tree, source: InputOptions, wrapper: str, tops: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """Returns `Layout.splits`; {} if the folders are classes. Raises `UserError` if unclear."""
    if source.layout == CLASS_FOLDERS:
        return {}
    splits: dict[str, tuple[str, str]] = {}
    for top in tops:
        word = key_of(top) if is_split(top) or source.layout == SPLIT_FOLDERS else _split_word(top)
        if word is None:
            continue
        # Archives are often packed as `train/train/<class>`, and unpacked into a folder again.
        path = f"{wrapper}{top}/"
        inner = _only_folder(tree, path)
        is_doubled = inner.lower() == top.lower()
        holds_folders = _kind_of(inner) == "images" and not tree.has_image(f"{path}{inner}/")
        if is_doubled or (holds_folders and word == key_of(top)):
            splits[top] = word, f"{top}/{inner}/"
        elif word == key_of(top):
            splits[top] = word, f"{top}/"
    # Of folders such as `steam_train/steam_train/`, only several with different words are splits.
    if len({split.lower() for split, _ in splits.values()}) < len(splits):
        splits = {top: found for top, found in splits.items() if found[0] == key_of(top)}
    if source.layout == SPLIT_FOLDERS or not splits:
        return splits
    others = any(tree.holds_image(f"{wrapper}{top}/") for top in tops if top not in splits)
    paths = (f"{wrapper}{classes}" for _, classes in splits.values())
    nested = any(
        tree.holds_image(f"{path}{name}/") for path in paths for name in tree.folders(path)
    )
    if others and not nested:
        return {}  # a class may be called `train`
    if others or not nested:
        raise _annotations(tree, source, wrapper) or _unclear(source, min(splits))
    return splits


def _annotations(tree: Tree, source: InputOptions, wrapper: str) -> UserError | None:
    """Returns the error for folders with annotations of a detection dataset; None without any."""
    paths = [wrapper]
    for _ in range(2):  # of splits, and in them of images and annotations
        paths += [f"{path}{name}/" for path in paths for name in tree.folders(path)]
    for path in dict.fromkeys(paths):
        for name in tree.others(path):
            if kind := annotated_by(f"/{path}{name}"):
                return annotations_error(source.input, kind, f"{path}{name}")
    return None


def _kind_of(path: str) -> str:
    """Returns whether a folder usually holds `images` or their `masks`; "" for other folders."""
    return _IN_PAIRS.get(storage.name_of(path).lower(), "")


def _split_word(name: str) -> str | None:
    """Returns the only word of a name that names a split, such as `train` in `seg_train`."""
    words = [word for word in re.split("[^A-Za-z]+", name) if is_split(word)]
    return words[0] if len(words) == 1 else None


def _unclear(source: InputOptions, name: str) -> UserError:
    remedy = "say " + Arg("layout", SPLIT_FOLDERS) + " for ROOT/<split>/<class>/*.jpg, or "
    remedy += Arg("layout", CLASS_FOLDERS) + " for ROOT/<class>/*.jpg"
    problem = f"with the folder {name!r}, which may be a split or a class"
    return wrong_input(source.input, problem, remedy=remedy)


def _notes(tree: Tree, layout: Layout) -> Iterator[Skipped]:
    for top, (split, classes) in layout.splits.items():
        path = f"{layout.wrapper}{classes}"
        # A folder that this user may not list is a warning of its own.
        is_empty = tree.has_image(path) or not tree.holds_image(path)
        if is_empty and not tree.folders(path):
            yield Skipped(EMPTY_SPLIT_FOLDER, split)
        if split != key_of(top):
            yield Skipped(SPLIT_OF_WORD, f"{key_of(top)} as {split}")


def _check_masks(source: InputOptions, tree: Tree, folders: Sequence[str]) -> None:
    """Raises `UserError` for images and their masks in two folders, which would become two classes.

    Masks have names of images, in a folder that has a usual name for masks.
    """
    paths = {storage.name_of(path): path for path in folders}
    kinds = {name: _kind_of(path) for name, path in paths.items()}
    if set(kinds.values()) != {"images", "masks"}:
        return
    images, masks = (min(n for n in kinds if kinds[n] == kind) for kind in ("images", "masks"))
    known, found = (
        [*itertools.islice((n.partition(".")[0] for n in tree.files(paths[one])), _SEEN_FILES)]
        for one in (images, masks)
    )
    # `1_mask.png` also belongs to `1.jpg`.
    stems = {*known}
    of_images = [stem for stem in found if stem in stems or stem.rpartition("_")[0] in stems]
    if 2 * len(of_images) > len(found):
        remedy = "give the folder of the images alone, with an image table, " + Arg("label_regex")
        remedy += " or " + Arg("label", NONE)
        problem = f"with images in {images!r} and files of the same names in {masks!r}, "
        problem += "as masks or annotations are kept, which are not supported"
        raise wrong_input(source.input, problem, "folders that are classes", remedy)


def _no_class_folder(source: InputOptions) -> UserError:
    regex = Arg("label_regex") + " that finds them, such as '^([a-z]+)' for cat.0.jpg"
    return wrong_input(
        source.input,
        "which has no class folder",
        "ROOT/<class>/*.jpg, an image table (.csv, .jsonl, .parquet), or labels in file names and "
        "a " + regex,
        "say " + Arg("label", NONE) + " for images without a label",
    )


def said_splits(paths: Sequence[Sequence[str]]) -> list[str | None]:
    """Returns the split that each path says, in its last folder or name that says one.

    `photos/train` and `train-00000-of-00004` say it. Words such as in `flowers_train` count only if
    all paths say a split, and not the same.
    """
    by_word = [next(filter(None, map(_split_word, reversed(path))), None) for path in paths]
    by_name = [next(filter(None, map(_split_part, reversed(path))), None) for path in paths]
    said = [name or word for name, word in zip(by_name, by_word, strict=True)]
    return said if all(said) and len({str(one).lower() for one in said}) > 1 else by_name


def _split_part(name: str) -> str | None:
    found = _SPLIT_PART.fullmatch(name)
    return found[1] if found else None
