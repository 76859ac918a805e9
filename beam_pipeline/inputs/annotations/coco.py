"""Reads the images of a COCO file, with their boxes and the names of their categories."""

from __future__ import annotations

import collections
from collections.abc import Iterator

import msgspec

from beam_pipeline.inputs.annotations.places import Place
from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.inputs.labels import split_word
from beam_pipeline.inputs.tables.paths import image_place
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import Arg, UserError, unreadable_input, wrong_input
from imageshards.text import printable

# Reasons of boxes that are left out, and of images and categories without boxes.
CROWD, WITHOUT_IMAGE, WITHOUT_BOXES = "crowd_boxes", "annotations_without_image", "without_boxes"
UNUSED_CATEGORY, USED_CATEGORY = "unused_category", "used_category"
# Name of what a warning counts, and does not name.
ANY = "any"
# Images of a file by which the folder of its pictures is found.
_SOME_IMAGES = 20

# Where annotations are, for messages; the boxes of a picture and their classes; the picture.
Annotated = tuple[str, list[tuple[float, ...]], list[str], ImageRef]


class _Image(msgspec.Struct):
    id: int | str
    file_name: str


class _Annotation(msgspec.Struct):
    image_id: int | str
    category_id: int | str
    bbox: list[float]
    iscrowd: int | bool = 0


class _Category(msgspec.Struct):
    id: int | str
    name: str


class _File(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def coco_rows(place: Place) -> Iterator[Annotated | Skipped]:
    """Yields the images of a file; raises `UserError` if the file or an annotation is damaged."""
    path = place.path
    found = _read(path)
    names = {category.id: category.name for category in found.categories}
    boxes = collections.defaultdict[int | str, list[_Annotation]](list)
    for number, one in enumerate(found.annotations):
        if one.iscrowd:
            yield Skipped(CROWD, ANY)
        elif one.category_id not in names or len(one.bbox) != 4:
            given = f"category_id {one.category_id!r} and bbox {one.bbox!r}"
            problem = f"{path} annotation {number} of the file has the {given}"
            raise UserError(problem, expected="the id of a category, and x, y, width and height")
        else:
            boxes[one.image_id].append(one)
    ids = {image.id for image in found.images}
    if len(ids) < len(found.images):
        raise wrong_input(path, "with two images of one id", remedy="give each image its own id")
    for _ in range(sum(len(lost) for key, lost in boxes.items() if key not in ids)):
        yield Skipped(WITHOUT_IMAGE, ANY)
    root, prefix = _pictures(place, [image.file_name for image in found.images[:_SOME_IMAGES]])
    for image in found.images:
        own = boxes.get(image.id, [])
        if not own:
            yield Skipped(WITHOUT_BOXES, ANY)
        where = f"{path} image {printable(image.file_name)!r}"
        categories = [names[one.category_id] for one in own]
        ref = image_place(where, root, f"{prefix}{image.file_name}", False)
        yield where, [tuple(one.bbox) for one in own], categories, ref
    used_ids = {one.category_id for key in ids for one in boxes.get(key, ())}
    used = {names[key] for key in used_ids}
    if len(used) < len(used_ids) or len(names) < len(found.categories):
        problem = "with boxes of two categories of one name, or two categories of one id"
        raise wrong_input(path, problem, remedy="rename one of them")
    for name in names.values():
        yield Skipped(USED_CATEGORY if name in used else UNUSED_CATEGORY, name)


def _read(path: str) -> _File:
    try:
        return msgspec.json.decode(storage.read(path), type=_File)
    except OSError as e:
        raise unreadable_input(path, e) from e
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        expected = "images with id and file_name, annotations with image_id, category_id and bbox, "
        expected += "and categories with id and name"
        raise wrong_input(path, f"which is no COCO file of boxes ({e})", expected) from e


def _pictures(place: Place, names: list[str]) -> tuple[str, str]:
    """Returns the folder of the file or the user, and the path below it with most of the images."""
    here = storage.parent_of(storage.absolute_place("input", place.path))
    roots = [place.root] if place.root else [here, storage.parent_of(here)]
    # `instances_train2017.json` describes the pictures in `train2017/` or `images/train2017/`.
    words = storage.name_of(place.path).removesuffix(".json").removeprefix("instances_")
    splits = dict.fromkeys(filter(None, (words, split_word(words))))
    folders = ["", "images/", *(f"{b}{s}/" for b in ("", "images/") for s in splits)]
    folders += [f"{split}/images/" for split in splits]
    places = [(root, below) for root in roots for below in folders]

    def count(candidate: tuple[str, str]) -> int:
        root, below = candidate
        refs = (image_place(place.path, root, f"{below}{name}", True) for name in names)
        # An address of the web is no file, and `..` may lead to any file.
        return sum(ref.uri.startswith(root) and storage.exists(ref.uri) for ref in refs)

    counts = dict(zip(places, storage.map_concurrently(count, places), strict=True))
    best = max(places, key=lambda each: counts[each])  # the first of equals
    if names and not counts[best]:
        problem = f"whose picture {names[0]!r} is in no usual folder of {' or '.join(roots)}"
        remedy = "name the folder above the pictures by " + Arg("image_root")
        raise wrong_input(place.path, problem, remedy=remedy)
    return best
