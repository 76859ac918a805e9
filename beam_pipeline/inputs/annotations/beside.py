"""Reads pictures that have a file of annotations each: YOLO and Pascal VOC."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree

from beam_pipeline.inputs import labels
from beam_pipeline.inputs.annotations.coco import (
    ANY,
    UNUSED_CATEGORY,
    USED_CATEGORY,
    WITHOUT_BOXES,
    WITHOUT_IMAGE,
    Annotated,
)
from beam_pipeline.inputs.annotations.places import ENDINGS, NAMES_FILES, Place, marks_of
from beam_pipeline.inputs.folders import PathFilter, Skipped, files_below
from beam_pipeline.inputs.tables.cells import shown
from beam_pipeline.inputs.tables.paths import image_place
from beam_pipeline.options import VOC, InputOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import Arg, UserError, wrong_input

WITHOUT_FILE, OTHER_NAME = "without_annotation_file", "other_file_name"
LONG_LINE, DIFFICULT, OUTSIDE_SETS = "long_lines", "difficult_objects", "outside_image_sets"
SIDES = ("xmin", "ymin", "xmax", "ymax")
# What follows the name of a picture in a file of ImageSets: whether it holds an object of a class.
_FLAG = re.compile(r"\s+-?[01]$")
_LINE = "a class and x, y, width and height of its box, or a polygon, from 0 to 1"

# Reasons of notes, the boxes of a picture, and the class of each box.
Boxes = tuple[list[str], list[tuple[float, ...]], list[str]]


def beside_rows(
    place: Place, source: InputOptions, are_named: bool
) -> Iterator[Annotated | Skipped]:
    """Yields the pictures of a place; raises `UserError` if a file of annotations is damaged.

    `are_named` says that a user names the classes, so that their numbers are enough.
    """
    yield from place.notes
    is_voc = place.form == VOC
    if not is_voc and not place.names and not are_named:
        remedy = "write the names into a data.yaml or a classes.txt, or say " + Arg("class_names")
        remedy += ", or, for pictures without boxes, " + Arg("layout", "flat")
        raise wrong_input(place.path, "a YOLO folder without names of classes", remedy=remedy)
    refs: list[ImageRef] = []
    marked: set[str] = set()  # annotation files of the pictures, without endings
    for path, found in _listed(place, source):
        if isinstance(found, Skipped):
            yield found
        elif path.lower().endswith(source.extensions):
            refs.append(found)
        else:
            if not path.lower().endswith(ENDINGS[place.form]):
                why = labels.read_path(labels.Layout(), source, storage.name_of(path), {})
                yield from (each for each in why if isinstance(each, Skipped))
            continue
        marked.add(_mark(place, path))
    marks = _annotation_files(place, marked)
    if marks and marks.keys().isdisjoint(marked):
        problem = f"whose annotations in {place.marks!r} have other paths than its pictures"
        remedy = "give each file the path of its picture, or say " + Arg("layout", "flat")
        raise wrong_input(place.path, problem, remedy=remedy)
    if place.marks:
        yield from (Skipped(WITHOUT_IMAGE, ANY) for _ in marks.keys() - marked)

    def read(ref: ImageRef) -> tuple[ImageRef, str, bytes | None]:
        mark = marks.get(_mark(place, ref.uri), "")
        return ref, mark, storage.read(mark) if mark else None

    used: set[str] = set()
    placed, left_out = _with_splits(place, refs)
    yield from (Skipped(OUTSIDE_SETS, ANY) for _ in range(left_out))
    for ref, mark, text in storage.map_concurrently(read, placed):
        parsed = _of_voc(mark, text) if is_voc else _of_yolo(mark, text or b"", place)
        notes, boxes, names = parsed
        if not boxes:
            yield Skipped(WITHOUT_FILE if text is None else WITHOUT_BOXES, ANY)
        yield from (Skipped(note, ANY) for note in notes)
        used.update(names)
        yield mark or ref.uri, boxes, names, ref
    for name in place.names:
        yield Skipped(USED_CATEGORY if name in used else UNUSED_CATEGORY, name)


def _listed(place: Place, source: InputOptions) -> Iterator[tuple[str, ImageRef | Skipped]]:
    """Yields the files of a folder, or of a list of pictures; keys are paths below the folder."""
    if not storage.exists(place.path):
        start = len(place.path.rstrip("/")) + 1
        for path, size, mtime_ns in files_below(
            place.path, PathFilter(place.root, source.exclude_glob)
        ):
            if isinstance(size, Skipped):
                yield path, size
            else:
                ref = ImageRef(path[start:], path, None, size_bytes=size, mtime_ns=mtime_ns)
                yield path, ref
        return
    lines = [line.removeprefix("./") for line in _lines(place.path)]
    folders = (place.root, storage.parent_of(place.path))
    # Tools write such paths relative to the list, or to the folder of the dataset.
    first = lines[0] if lines else ""
    folder = next((f for f in folders if storage.exists(storage.join(f, first))), place.root)
    for number, line in enumerate(lines, start=1):
        ref = image_place(f"{place.path} line {number}", folder, line, False)
        yield ref.uri, ref._replace(key=ref.uri[len(folder) :].lstrip("/"))


def _lines(path: str) -> list[str]:
    text = storage.read(path).decode("utf-8-sig", "surrogateescape")
    return [line.strip() for line in text.split("\n") if line.strip()]


def _mark(place: Place, path: str) -> str:
    """Returns the path of a picture's annotation file without its ending."""
    stem = path.removesuffix(os.path.splitext(path)[1])
    if not place.marks:
        return marks_of(stem, place.root)
    return storage.join(place.marks, stem[len(place.path.rstrip("/")) + 1 :])


def _annotation_files(place: Place, marked: Iterable[str]) -> dict[str, str]:
    """Returns the annotation files by their paths without endings."""
    folders = {place.marks} if place.marks else {storage.parent_of(mark) for mark in marked}
    ending, found = ENDINGS[place.form], dict[str, str]()
    for folder in sorted(folders):
        for path, size, _ in files_below(folder, PathFilter(folder)):
            is_one = path.lower().endswith(ending) and not isinstance(size, Skipped)
            if is_one and storage.name_of(path).lower() not in NAMES_FILES:
                found[path[: -len(ending)]] = path
    return found


def _with_splits(place: Place, refs: list[ImageRef]) -> tuple[list[ImageRef], int]:
    """Returns the pictures with their splits, and how many no file of ImageSets names."""
    if not place.lists:
        # Folders of splits are in the folder of the pictures: `images/train2017/`.
        tops = sorted({ref.key.partition("/")[0] for ref in refs if "/" in ref.key})
        said = dict(zip(tops, labels.said_splits([[top] for top in tops]), strict=True))
        return [r._replace(split=place.split or said.get(r.key.partition("/")[0])) for r in refs], 0
    split_of: dict[str, str] = {}
    for split, path in place.lists:
        for line in _lines(path):
            name = _FLAG.sub("", line)
            if split_of.setdefault(name, split) != split:
                problem = f"whose picture {name!r} is in the splits {split_of[name]} and {split}"
                raise wrong_input(path, problem, "each picture in one split", "fix the lists")
    stems = [os.path.splitext(ref.key)[0] for ref in refs]
    # A listed picture that does not exist is rejected when it is read, with its name.
    absent = sorted(split_of.keys() - set(stems))
    refs = refs + [image_place(path, place.path, f"{stem}.jpg", False) for stem in absent]
    found = zip(refs, [*stems, *absent], strict=True)
    named = [ref._replace(split=split_of[stem]) for ref, stem in found if stem in split_of]
    return named, len(refs) - len(named)


def _of_yolo(mark: str, text: bytes, place: Place) -> Boxes:
    notes: list[str] = []
    boxes: list[tuple[float, ...]] = []
    names: list[str] = []
    for number, line in enumerate(text.decode("utf-8-sig", "replace").splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{mark} line {number}"
        try:
            given, *values = map(float, line.split())
        except ValueError as e:
            raise UserError(f"{where} is no line of numbers", expected=_LINE) from e
        class_number = int(given) if given.is_integer() and given >= 0 else -1
        if class_number < 0 or class_number >= len(place.names or range(class_number + 1)):
            most = f"0 to {len(place.names) - 1}, a name's number" if place.names else "0 or more"
            raise UserError(f"{where} has the class {given:g}", expected=most)
        names.append(place.names[class_number] if place.names else str(class_number))
        is_polygon = len(values) >= 6 and len(values) % 2 == 0 and not place.has_points
        has_box = len(values) == 4 or (len(values) > 4 and place.has_points)
        if not (is_polygon or has_box) or not all(-1 <= value <= 2 for value in values):
            problem = f"{where} has the {len(values)} numbers {shown(values)} behind the class"
            raise UserError(problem, expected=_LINE)
        if len(values) > 4:
            notes.append(LONG_LINE)
        if is_polygon:
            across, down = values[::2], values[1::2]
            boxes.append((min(across), min(down), max(across), max(down)))
            continue
        x, y, width, height = values[:4]
        if min(width, height) < 0:
            problem = f"{where} has the width {width:g} and the height {height:g}"
            raise UserError(problem, expected="0 or more")
        boxes.append((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    return notes, boxes, names


def _of_voc(mark: str, text: bytes | None) -> Boxes:
    notes: list[str] = []
    boxes: list[tuple[float, ...]] = []
    names: list[str] = []
    try:
        root = ElementTree.fromstring(b"<annotation/>" if text is None else text)
        said = root.findtext("filename", "")
        stem = os.path.splitext(storage.name_of(said.replace("\\", "/").strip()))[0]
        if stem and stem != storage.name_of(mark)[: -len(ENDINGS[VOC])]:
            notes.append(OTHER_NAME)
        for one in root.iter("object"):
            names.append(one.findtext("name", "").strip())
            boxes.append(tuple(float(one.findtext(f"bndbox/{side}", "")) for side in SIDES))
            if one.findtext("difficult", "0").strip() == "1":
                notes.append(DIFFICULT)
    except (ElementTree.ParseError, ValueError) as e:
        problem = f"{mark} is no annotation of Pascal VOC ({e})"
        expected = "objects with a name and a bndbox of xmin, ymin, xmax and ymax"
        raise UserError(problem, expected=expected, remedy="fix or remove the file") from e
    return notes, boxes, names
