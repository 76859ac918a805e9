"""Finds COCO files, YOLO folders and Pascal VOC folders, which their content tells apart."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml  # type: ignore[import-untyped]

from beam_pipeline.inputs.annotations.refused import has_form, head_of, kind_of
from beam_pipeline.inputs.folders import Skipped, folder_entries, matching_files
from beam_pipeline.inputs.layout import is_pattern, layout_of, unfit_option
from beam_pipeline.inputs.tables.cells import shown
from beam_pipeline.options import ARCHIVES, COCO, TABLE, VOC, YOLO, InputOptions
from imageshards import storage
from imageshards.errors import Arg, unreadable_input, wrong_input
from imageshards.images.options import passed_over
from imageshards.manifest import SPLIT_NAMES

# Reasons of notes about a data.yaml: pictures that two splits share, and a split without a folder.
SHARED_BY_SPLITS, ABSENT_SPLIT = "shared_by_splits", "absent_split"
# A folder of pictures and the folder with a file for each picture → the format of these files.
_PAIRS = {
    ("jpegimages", "annotations"): VOC, ("images", "annotations"): VOC, ("images", "labels"): YOLO,
}  # fmt: skip
ENDINGS = {YOLO: ".txt", VOC: ".xml"}
# Files of a YOLO folder with the name of a class on each line.
NAMES_FILES = ("classes.txt", "obj.names", "classes.names")
_SPLIT_KEYS = ("train", "val", "valid", "test")
_EXPECTED = {
    COCO: "a .json file of COCO, or a folder that holds one",
    YOLO: "a data.yaml, or a folder with images/ and labels/",
    VOC: "a folder with JPEGImages/ and Annotations/, or with .xml files beside the pictures",
}
# Files of a folder that are seen and read to find its format, and levels of folders below.
_SEEN_FILES, _SOME_FILES, _LEVELS = 1000, 20, 4
_YAML_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Place:
    """Where pictures and their annotations are.

    Attributes:
        form: `COCO`, `YOLO` or `VOC`.
        path: COCO file, folder of pictures, or file with the path of a picture on each line.
        root: Folder above the pictures.
        marks: Folder with an annotation file for each picture of the folder `path`.
        split: Split that a data.yaml says, or None.
        lists: Splits and files with the names of their pictures, from ImageSets/ of Pascal VOC.
        names: Class names of a YOLO folder by number.
        has_points: Whether keypoints follow each box of a YOLO folder.
        notes: What is worth a warning.
    """

    form: str
    path: str
    root: str
    marks: str = ""
    split: str | None = None
    lists: tuple[tuple[str, str], ...] = ()
    names: tuple[str, ...] = ()
    has_points: bool = False
    notes: tuple[Skipped, ...] = ()


def resolved(source: InputOptions) -> InputOptions:
    """Returns an input with the layout of a detection dataset if its content shows a format.

    Raises `UserError` if its files have different formats.
    """
    is_asked = source.layout != "auto" or source.label_regex is not None
    if is_asked or layout_of(source) in (ARCHIVES, TABLE):
        return source
    forms = sorted({place.form for place in _Search(source, "").places()})
    if len(forms) > 1:
        problem = f"with annotations of the formats {' and '.join(forms)}"
        remedy = "say " + Arg("layout", forms[0]) + " or " + Arg("layout", forms[1])
        raise wrong_input(source.input, problem, "annotations of one format", remedy)
    return dataclasses.replace(source, layout=forms[0]) if forms else source


def places_of(source: InputOptions) -> list[Place]:
    """Returns the places of a detection dataset; raises `UserError` if there is none."""
    form = source.layout
    for believed in ("", form):
        found = [one for one in _Search(source, believed).places() if one.form == form]
        if found:
            return found
    problem = "holds no annotations of this format"
    raise unfit_option("layout", form, source.input, problem, _EXPECTED[form])


class _Search:
    """Search of an input; of the form `believed`, usual names are enough, whatever files hold."""

    def __init__(self, source: InputOptions, believed: str):
        self._source, self._believed = source, believed
        path = source.input.rstrip("/") or "/"
        self._is_file = os.path.splitext(path)[1] != "" and storage.exists(path)
        self._base = storage.parent_of(path) if self._is_file else path
        self._root = source.image_root or self._base

    def places(self) -> list[Place]:
        path, ending = self._source.input, os.path.splitext(self._source.input)[1].lower()
        if is_pattern(path) or self._is_file:
            files = matching_files(path, _EXPECTED[COCO]) if ending == ".json" else []
            config = _config(path) if ending in (".yaml", ".yml") else None
            if not config:
                return [*self._of_coco(files)]
            return self._described(path, config) or [*self._in_folder(self._base, 1, config)]
        return [*self._in_folder(self._base, _LEVELS)]

    def _in_folder(
        self, folder: str, levels: int, config: Mapping[str, Any] | None = None
    ) -> Iterator[Place]:
        """Yields the places in a folder, and in folders below that have usual names."""
        try:
            entries = sorted((name, is_one) for name, _, is_one in folder_entries(folder))
        except OSError:
            return  # the listing reports the error
        inner = {n.lower(): n for n, is_folder in entries if is_folder and not passed_over(n)}
        files = [storage.join(folder, name) for name, is_folder in entries if not is_folder]
        yield from self._of_coco(path for path in files if path.lower().endswith(".json"))
        for path in files if config is None else ():
            if path.lower().endswith((".yaml", ".yml")) and (found := _config(path)):
                config = found
                if described := self._described(path, found):
                    yield from described
                    return
        for (images, marks), form in _PAIRS.items():
            if marks in inner and (images in inner or self._source.image_root):
                own = storage.join(folder, inner[marks])
                some = itertools.islice(storage.files_below(own), _SEEN_FILES)
                # Labels may all be empty.
                is_described = form == YOLO and config is not None
                if is_described or self._shows(form, (file.path for file in some)):
                    pictures = self._pictures(folder, inner.get(images, images))
                    yield self._beside(form, folder, pictures, own, config)
        if any(path.lower().endswith(self._source.extensions) for path in files):
            for form in ENDINGS:
                if self._shows(form, files):
                    yield self._beside(form, folder, folder, folder, config)
        for lower, name in inner.items():
            is_usual = lower in SPLIT_NAMES or kind_of(lower) == "masks" or lower[:3] == "voc"
            if levels > 1 and (is_usual or len(inner) == 1):
                yield from self._in_folder(storage.join(folder, name), levels - 1, config)

    def _shows(self, form: str, files: Iterable[str]) -> bool:
        if self._believed:
            return self._believed == form
        named = (path for path in files if path.lower().endswith(ENDINGS.get(form, "")))
        return any(has_form(path, form) for path in itertools.islice(named, _SOME_FILES))

    def _of_coco(self, files: Iterable[str]) -> Iterator[Place]:
        found = [path for path in files if self._shows(COCO, [path])]
        # Files of captions and keypoints describe the same pictures.
        instances = [p for p in found if storage.name_of(p).lower().startswith("instances")]
        for path in instances or found:
            yield Place(COCO, path, self._source.image_root or "")

    def _pictures(self, folder: str, name: str) -> str:
        """Returns the folder of the pictures that belong to the annotations in a folder."""
        below = folder[len(self._base) :].strip("/")
        roots = [storage.join(self._root, below, name), storage.join(self._root, below)]
        return next(filter(storage.is_folder, roots), self._root)

    def _beside(
        self, form: str, folder: str, pictures: str, marks: str, config: Mapping[str, Any] | None
    ) -> Place:
        place = Place(form, pictures, self._root, marks)
        if form == VOC:
            return dataclasses.replace(place, lists=_image_sets(folder))
        if config:
            return _with_names(place, config)
        files = (storage.join(each, name) for each in (folder, marks) for name in NAMES_FILES)
        file = next(filter(storage.exists, files), "")
        names = storage.read(file, _YAML_BYTES).decode(errors="replace").split("\n") if file else ()
        return dataclasses.replace(place, names=tuple(filter(None, map(str.strip, names))))

    def _described(self, path: str, config: Mapping[str, Any]) -> list[Place]:
        """Returns the places that the splits of a data.yaml name; [] if it names no split."""
        home = self._source.image_root or storage.parent_of(path)
        keys: dict[str, list[str]] = {}  # folder or list of pictures → its splits
        absent = []
        for key in _SPLIT_KEYS:
            given = config.get(key) or ()
            for value in [given] if isinstance(given, str) else given:
                if found := _existing(home, str(config.get("path", "")), str(value)):
                    keys.setdefault(found, []).append(key)
                else:
                    absent.append(f"{key}: {value}")
        if absent and not keys:
            problem = f"whose pictures, {absent[0]!r}, are not in {home!r}"
            remedy = "name the folder above them by " + Arg("image_root") + ", or fix the line"
            raise wrong_input(path, problem, remedy=remedy)
        shared = [" and ".join(splits) for splits in keys.values() if len(splits) > 1]
        notes = [Skipped(ABSENT_SPLIT, each) for each in absent]
        notes += [Skipped(SHARED_BY_SPLITS, each) for each in shared]
        places = []
        for found, splits in keys.items():
            split = splits[0] if len(splits) == 1 else None
            # A folder `valid` says its split itself, like the folders of other formats.
            own = next((n for n in reversed(found.split("/")) if n.lower() in SPLIT_NAMES), "")
            split = own if split and own.lower().startswith(split) else split
            marks = "" if storage.exists(found) else marks_of(found, self._root)
            place = Place(YOLO, found, self._root, marks, split, notes=tuple(notes))
            places.append(_with_names(place, config))
            notes = []
        return places


def _existing(home: str, folder: str, value: str) -> str:
    """Returns the folder or file below `home` that a data.yaml names; "" without any."""
    for name in (f"{folder}/{value}", value, re.sub(r"^(\.{1,2}/)+", "", value)):
        below = posixpath.normpath(name.removeprefix(f"{home}/")).lstrip("/")
        path = storage.join(home, below)
        if below.startswith("..") or not (storage.is_folder(path) or storage.exists(path)):
            continue
        inner = storage.join(path, "images")
        has_images = "images" in below.split("/") or not storage.is_folder(inner)
        return path if has_images else inner
    return ""


def marks_of(path: str, root: str) -> str:
    """Returns the path below a folder `labels` for a path below a folder `images` of YOLO."""
    before, images, behind = path[len(root) :].rpartition("/images")
    is_whole = images and behind[:1] in ("", "/")
    return f"{root}{before}/labels{behind}" if is_whole else path


def _image_sets(folder: str) -> tuple[tuple[str, str], ...]:
    """Returns the splits of a Pascal VOC folder, each with the file that lists its pictures."""
    for names in (("ImageSets", "Main"), ("ImageSets",)):
        with contextlib.suppress(OSError):
            found = [path for _, path, _ in folder_entries(storage.join(folder, *names))]
            stems = {storage.name_of(path).removesuffix(".txt").lower(): path for path in found}
            splits = {stem: path for stem, path in stems.items() if stem in SPLIT_NAMES}
            # `trainval` holds both splits, so it is a split only if there is neither.
            if "trainval" in stems and not {"train", "val"} & splits.keys():
                splits["trainval"] = stems["trainval"]
            if splits:
                return tuple(sorted(splits.items()))
    return ()


def _config(path: str) -> Mapping[str, Any] | None:
    """Returns the content of a YAML file that names classes; None for other files."""
    if b"names" not in (text := head_of(path, _YAML_BYTES)):
        return None
    try:
        # The base loader makes only texts, so that a class `no` is not read as False.
        found = yaml.load(text, yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise unreadable_input(path, e) from e
    return found if isinstance(found, dict) and "names" in found else None


def _with_names(place: Place, config: Mapping[str, Any]) -> Place:
    """Returns a place with the class names of a data.yaml, a list or a dict by number."""
    given = config["names"]
    by_number = given if isinstance(given, dict) else dict(enumerate(given))
    names = [by_number.get(key, by_number.get(str(key))) for key in range(len(by_number))]
    count = config.get("nc", str(len(names)))
    if not all(isinstance(name, str) for name in names) or count != str(len(names)):
        problem = f"whose data.yaml has the names {shown(given)} and the number nc {count}"
        raise wrong_input(place.root, problem, "a name for each number from 0, as many as nc says")
    has_points = "kpt_shape" in config
    return dataclasses.replace(place, names=tuple(map(str, names)), has_points=has_points)
