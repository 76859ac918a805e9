"""Finds by names and first bytes what files are that are no input, and says what to do with them.

Masks are no input either, and annotations of detection datasets only if their content shows it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Sequence

from beam_pipeline.inputs.folders import Tree
from beam_pipeline.inputs.layout import layout_of
from beam_pipeline.options import COCO, TABLE, VOC, YOLO, InputOptions
from imageshards import storage
from imageshards.errors import Arg, UserError, wrong_input
from imageshards.manifest import NONE, SEVERAL

_HEAD_BYTES = 64 << 10
# First bytes → what a file is, and the ending of its name, "" for formats that are not read.
_MAGIC = {
    b"PK\3\4": ("a zip archive", ".zip"),
    b"\x1f\x8b": ("compressed by gzip", ".tar.gz"),
    b"BZh": ("compressed by bzip2", ".tar.bz2"),
    b"\xfd7zXZ\0": ("compressed by xz", ".tar.xz"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", ""),
    b"Rar!\x1a\x07": ("a RAR archive", ""),
    b"\x28\xb5\x2f\xfd": ("compressed by Zstandard", ""),
}
# Format of annotations → expressions for the name of a file, and for its first bytes.
_ANNOTATIONS = {
    COCO: (
        r"(.*\.coco|(.*/)?instances[^/]*|.*/annotations/.*)\.json",
        rb'\s*\{.*"(images|annotations|categories)"\s*:\s*\[',
    ),
    VOC: (r".*\.xml", rb"\s*(<\?.*\?>)?\s*<annotation"),
    YOLO: (
        r"(.*/)?data\.ya?ml|(.*/)?labels/.*\.txt",
        rb"\s*\d+(\.0+)?([ \t]+-?[0-9.]+(e-?\d+)?){4,}[ \t]*([\r\n]|$)|.*\bnames:",
    ),
}

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


def _annotated_by(path: str) -> str:
    """Returns the kind of annotations in a file by its name; "" for none."""
    kinds = (kind for kind, (name, _) in _ANNOTATIONS.items() if re.fullmatch(name, path.lower()))
    return next(kinds, "")


def kind_of(path: str) -> str:
    """Returns whether a folder usually holds `images` or their `masks`; "" for other folders."""
    return _IN_PAIRS.get(storage.name_of(path).lower(), "")


def check_no_annotations(tree: Tree, given: str, wrapper: str, classes: Iterable[str]) -> None:
    """Raises `UserError` if class folders hold images beside masks or annotations."""
    if all(kind_of(path) == "images" for path in classes if tree.holds_image(path)):
        if error := annotations_in(tree, given, wrapper):
            raise error
    # Masks are compared with the images of the same split.
    for _, of_split in itertools.groupby(classes, lambda path: path[: path[:-1].rfind("/") + 1]):
        _check_masks(given, tree, [*of_split])


def annotations_in(tree: Tree, given: str, wrapper: str) -> UserError | None:
    """Returns the error for folders with annotations of a detection dataset; None without any."""
    paths = [wrapper]
    for _ in range(2):  # of splits, and in them of images and annotations
        paths += [f"{path}{name}/" for path in paths for name in tree.level(path).folders]
    files = (f"{path}{name}" for path in dict.fromkeys(paths) for name in tree.level(path).others)
    found = ((kind, path) for path in files if (kind := _annotated_by(f"/{path}")))
    return next((annotations_error(given, *each) for each in found), None)


def _check_masks(given: str, tree: Tree, folders: Sequence[str]) -> None:
    """Raises `UserError` for images and their masks in two folders, which would become two classes.

    Masks have names of images, in a folder that has a usual name for masks.
    """
    paths = {storage.name_of(path): path for path in folders}
    kinds = {name: kind_of(path) for name, path in paths.items()}
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
        raise wrong_input(given, problem, "folders that are classes", remedy)


def annotations_error(path: str, form: str, name: str) -> UserError:
    """Returns the error for an input with annotations of a format in a file of a name."""
    problem = f"with annotations of the format {form} such as {name!r}"
    expected = "a folder with pictures and annotations whose content shows the format"
    remedy = "unpack an archive, give the folder of the dataset, or say " + Arg("layout", form)
    return wrong_input(path, problem, expected, remedy)


def file_error(path: str) -> UserError | None:
    """Returns the error for a file that is an input of no kind, or of another kind than its name.

    Returns None if nothing is known about its content.
    """
    head = head_of(path)
    kind, ending = next((k for magic, k in _MAGIC.items() if head.startswith(magic)), ("", ""))
    if head[257:262] == b"ustar":
        kind, ending = "a plain tar", ".tar"
    if kind and not (ending and path.lower().endswith(ending)):
        remedy = f"rename it to NAME{ending}" if ending else "unpack it, and give the folder"
        expected = "an archive that its name describes (.tar, .zip, .tar.gz)"
        return wrong_input(path, f"which is {kind}, as its first bytes say", expected, remedy)
    for kind, (_, begin) in _ANNOTATIONS.items():
        if re.match(begin, head, re.DOTALL):
            return annotations_error(path, kind, storage.name_of(path))
    return None


def has_form(path: str, form: str) -> bool:
    """Returns whether the first bytes of a file show a format of annotations."""
    return re.match(_ANNOTATIONS[form][1], head_of(path), re.DOTALL) is not None


def check_table(source: InputOptions) -> None:
    """Raises `UserError` for a table of Open Images, whose columns of boxes have other names."""
    if layout_of(source) == TABLE and {b"ImageID", b"LabelName", b"XMin"} <= {
        *head_of(source.input).partition(b"\n")[0].rstrip().split(b",")
    }:
        problem = "a table of Open Images, which names no files"
        remedy = "write the columns image, label, xmin, ymin, xmax and ymax, and say "
        remedy += Arg("bbox_format", "relative") + " and " + Arg("label", SEVERAL)
        raise wrong_input(source.input, problem, "paths of images", remedy)


def head_of(path: str, num_bytes: int = _HEAD_BYTES) -> bytes:
    """Returns the first bytes of a file; none if the file cannot be read."""
    with contextlib.suppress(OSError):
        return storage.read(path, num_bytes)
    return b""
