"""Gives the labels in a file to images that no folder labels, as in official validation sets.

A file has a row for each image, or only classes, one a line, in the order of the images' names. It
is matched with the names of all unlabelled images at once, so nothing is left over unseen.
"""

from __future__ import annotations

import csv
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.transforms.combiners import ToListCombineFn, ToSetCombineFn

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.inputs.folders import Skipped
from beam_pipeline.option_texts import invalid
from beam_pipeline.planning.refs import RefBatch, names_of
from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.text import composed, counted
from imageshards.typed import decode

# Reason of images without a row, and of a `Skipped` that names rows without an image.
NO_LABEL_ROW, NO_IMAGE_OF_ROW = "no_label_row", "no_image_of_row"

_NAMES = ("imageid", "image_id", "image", "file", "filename", "file_name", "path", "id", "name")
_CLASSES = ("predictionstring", "label", "class", "category", "synset", "wnid", "target")
# Boxes as Kaggle writes them: a class and four sides for each.
_BOXES = re.compile(r"(\S+(\s+-?\d+){4}\s*)+", re.ASCII)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)

Row = tuple[str, str]
"""Name of an image, "" if its place in the order of names is meant, and its class."""


class Labelled(NamedTuple):
    """Key → label of an unlabelled image, and counts as `ListImages` gives them."""

    labels: dict[str, str]
    skipped: dict[str, int]


def read_labels(path: str) -> list[Row]:
    """Reads a file of labels; raises `UserError` if it is none, or names an image twice."""
    try:
        text = storage.read(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or str(e)
        raise _wrong(path, f"which cannot be read ({reason})") from e
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    mark = next((mark for mark in ",\t;" if lines and mark in lines[0]), None)
    if mark is None:
        # A name may have spaces, and a class has none here.
        cells = [("", *line.rsplit(maxsplit=1))[-2:] for line in lines]
        rows = [(row[0], row[1]) for row in cells]
    else:
        rows = [*_columns(path, list(csv.reader(lines, delimiter=mark)))]
    found = [(composed(name.strip().replace("\\", "/")), composed(label)) for name, label in rows]
    names = [name for name, _ in found if name]
    if not found or len({*names}) != len(names) or len(names) not in (0, len(found)):
        raise _wrong(path, "which is empty, names an image twice or lacks names in some lines")
    return found


def _columns(path: str, rows: Sequence[Sequence[str]]) -> Iterator[Row]:
    """Yields the name and the class in each row; a first row with names of columns says where."""
    head = [cell.strip().lower() for cell in rows[0]]
    image = next((head.index(name) for name in _NAMES if name in head), None)
    label = next((head.index(name) for name in _CLASSES if name in head), None)
    has_head = image is not None or label is not None
    if len(head) == 2:
        if image is None:
            image = 0 if label is None else 1 - label
        label = 1 - image
    if image is None or label is None:
        raise _wrong(path, f"with the columns {', '.join(rows[0])!r}")
    for number, row in enumerate(rows[has_head:], start=1 + has_head):
        if len(row) != len(head):
            raise _wrong(path, f"whose row {number} has {counted(len(row), 'column')}")
        classes = {row[label].strip()}
        if _BOXES.fullmatch(row[label]):
            classes = {*row[label].split()[::5]}
        if len(classes) > 1 or not all(classes):
            raise _wrong(path, f"whose row {number} has not one class, but {row[label]!r}")
        yield row[image], classes.pop()


def _wrong(path: str, problem: str) -> UserError:
    expected = "rows of a file name and a class, with the columns ImageId and PredictionString or "
    expected += "such as image and label, or one class a line, in the order of the file names"
    return invalid("labels", f"{path!r}, {problem}", expected)


def match_labels(
    keys: Sequence[str],
    rows: Sequence[Row],
    path: str,
    known: frozenset[str] = frozenset(),
    class_names: Sequence[str] | None = None,
) -> Labelled:
    """Gives each unlabelled image, by its key, the class in its row.

    `known` are the classes of labelled images: without `class_names` there are no others.
    Raises `UserError` if rows and images do not belong together, or a class is unknown.
    """
    if not keys:
        raise invalid("labels", f"{path!r}, but folders label every image", remedy="leave it out")
    rows = _named(rows, path, class_names)
    if not rows[0][0]:
        if len(rows) != len(keys):
            received = (
                f"{path!r} with {counted(len(rows), 'line')}, for {counted(len(keys), 'image')}"
            )
            remedy = "leave further images out by " + Arg("exclude_glob") + ", or write file names"
            raise invalid("labels", received, "a line for each image without a label", remedy)
        numbers = {key: number for number, key in enumerate(sorted(keys))}
    else:
        numbers = _by_name(keys, rows, path)
    used = {*numbers.values()}
    absent = sorted({*keys} - numbers.keys())
    unused = [name for number, (name, _) in enumerate(rows) if number not in used]
    found = {key: rows[number][1] for key, number in numbers.items()}
    if class_names is None and known:
        for key, label in sorted(found.items()):
            if label not in known:
                received = f"{path!r} with the class {label!r} for {key!r}, which no folder has"
                remedy = "fix it, or give all classes by " + Arg("class_names")
                remedy += ", which also names the classes of numbers"
                raise invalid("labels", received, "a class of the other images", remedy)
    skipped = {NO_LABEL_ROW: len(absent)} if absent else {}
    for reason, names in ((NO_LABEL_ROW, absent), (NO_IMAGE_OF_ROW, unused)):
        if names:
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            skipped[str(Skipped(reason, names[0] + more))] = 1
    return Labelled(found, skipped)


def _named(rows: Sequence[Row], path: str, class_names: Sequence[str] | None) -> Sequence[Row]:
    """Replaces numbers by names of classes, if there are names and no class is a number."""
    names = class_names or ()
    labels = {label for _, label in rows}
    if not names or not all(map(_NUMBER.fullmatch, labels)) or labels <= {*names}:
        return rows
    numbers = {*map(int, labels)}
    # The numbers of ImageNet's devkit begin with 1, those of other lists with 0.
    first = 0 if min(numbers) == 0 else 1
    if max(numbers) > len(names) - 1 + first or (first and max(numbers) < len(names)):
        received = f"{path!r} with numbers from {min(numbers)} to {max(numbers)}, for "
        expected = f"0 to {len(names) - 1}, or 1 to {len(names)}, with both ends"
        raise invalid("labels", received + counted(len(names), "name"), expected, "write the names")
    return [(name, names[int(label) - first]) for name, label in rows]


def _by_name(keys: Sequence[str], rows: Sequence[Row], path: str) -> dict[str, int]:
    """Returns the number of the row of each image that has one, by path, name or stem."""
    numbers: dict[str, set[int]] = {}
    for number, (name, _) in enumerate(rows):
        for form in {name, posixpath.basename(name)}:
            numbers.setdefault(form, set()).add(number)
    found: dict[str, int] = {}
    owners: dict[int, str] = {}
    for key in sorted(keys):
        name = composed(key)
        base = posixpath.basename(name)
        forms = (name, posixpath.splitext(name)[0], base, posixpath.splitext(base)[0])
        of_key = next((numbers[form] for form in forms if form in numbers), None)
        if of_key is None:
            continue
        number = min(of_key)
        other = owners.setdefault(number, key)
        if len(of_key) > 1 or other != key:
            both = f"both {other!r} and {key!r}" if other != key else f"several rows for {key!r}"
            received = f"{path!r}, where {rows[number][0]!r} may mean {both}"
            raise invalid("labels", received, "one row an image", "write paths below the input")
        found[key] = number
    if not found:
        received = f"{path!r} with rows such as {rows[0][0]!r}, for images such as {min(keys)!r}"
        raise invalid("labels", received, "the file names of images, with or without their ending")
    return found


class LabelImages(beam.PTransform):
    """Transform from `RefBatch`es to the same with labels for images without one, and counts.

        labelled, skipped = listed.batches | LabelImages("val.csv")

    Args:
        path: The file of labels.
        folder: Folder that all workers see; "" if they see the file itself.
        class_names: Names of numbered classes; None if the labels of other images are all classes.

    Raises:
        UserError: The file holds no labels. While running: rows and images do not belong together.
    """

    def __init__(self, path: str, folder: str = "", class_names: Sequence[str] | None = None):
        super().__init__()
        self._given = path, folder and storage.join(folder, "labels.json"), class_names

    def expand(self, batches: beam.PCollection[RefBatch]) -> tuple[Any, Any]:
        stores, (path, shared, _) = StoreConfig.of_pipeline(batches), self._given
        rows = stores.step(read_labels)(path)
        if shared:
            stores.step(storage.write)(shared, json.dumps(rows))
        keys = (
            batches
            | "Unlabelled"
            >> beam.FlatMap(lambda batch: [ref.key for ref in batch.refs if ref.label is None])
            | "Keys" >> beam.CombineGlobally(ToListCombineFn())
        )  # one [key]
        known = (
            batches
            | "Labels"
            >> beam.FlatMap(lambda batch: {n for ref in batch.refs for n in names_of(ref.label)})
            | "Known" >> beam.CombineGlobally(ToSetCombineFn())
        )  # one {class}
        found = keys | "Match" >> beam.Map(
            stores.step(_match), pvalue.AsSingleton(known), *self._given
        )
        labelled = batches | "Give" >> beam.FlatMap(_give, pvalue.AsSingleton(found))
        return labelled, found | "Counts" >> beam.Map(lambda labelled: labelled.skipped)


def _match(
    keys: list[str], known: set[str], path: str, shared: str, names: Sequence[str] | None
) -> Labelled:
    rows = decode(storage.read(shared), list[Row]) if shared else read_labels(path)
    return match_labels(keys, rows, path, frozenset(known), names)


def _give(batch: RefBatch, found: Labelled) -> Iterator[RefBatch]:
    """Yields a batch with the labels of its images, without the images that have none."""
    labels = found.labels
    refs = [r if r.label is not None else r._replace(label=labels.get(r.key)) for r in batch.refs]
    if refs := [ref for ref in refs if ref.label is not None]:
        yield RefBatch(refs)
