"""The classes of somebody else's records: names by ids, and whether labels and texts agree."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from imageshards.adopt.features import AdoptOptions
from imageshards.adopt.scan import Label, Roles, ScannedFile
from imageshards.adopt.tfds import TfdsFolder
from imageshards.errors import UserError
from imageshards.text import counted

# More than any data set of pictures has: a larger label is some other number.
_MAX_CLASSES = 100_000


def find_classes(
    directory: str,
    options: AdoptOptions,
    tfds: TfdsFolder | None,
    files: Mapping[str, ScannedFile],
    roles: Roles,
) -> tuple[str, ...]:
    if options.class_names is not None:
        return options.class_names
    # TFDS's names belong to its label only, not to another one that was mapped.
    if tfds is not None and tfds.classes is not None and tfds.label_feature == roles.label:
        return tfds.classes
    labels = {label for file in files.values() for label in file.labels}
    if not labels:
        raise UserError(
            f"DIR received {directory!r}, which holds no record; expected TFRecords of labelled "
            "pictures."
        )
    ids = sorted(label for label in labels if isinstance(label, int))
    if not ids:
        return tuple(sorted(map(str, labels)))
    if ids[-1] - options.label_offset >= _MAX_CLASSES:
        raise UserError(
            f"DIR received {directory!r}, where {roles.label} is up to {ids[-1]}; expected class "
            "ids from 0 or 1 on: name the right feature by --feature_map label=FEATURE."
        )
    if ids[0] == 1 and not options.label_offset:
        print(
            f"note: the labels of {directory} begin at 1, so class 0 has no records; "
            "--label_offset 1 makes the first class number 0",
            file=sys.stderr,
        )
    # The texts that come with the ids, else the ids themselves.
    texts = {label: text for label, text in _named(files) if text}
    num_classes = max(1, ids[-1] + 1 - options.label_offset)
    names = [texts.get(i + options.label_offset, str(i)) for i in range(num_classes)]
    # ImageNet has two kinds of crane: their numbers tell them apart.
    times = Counter(names)
    return tuple(f"{n} {i}" if times[n] > 1 else n for i, n in enumerate(names))


def _named(files: Mapping[str, ScannedFile]) -> Iterable[tuple[Label, str]]:
    """The label of every record with the text that stands beside it."""
    for file in files.values():
        yield from zip(file.labels, file.rows.columns["class_name"], strict=True)


def check_labels(
    files: Mapping[str, ScannedFile], feature: str, first: int, classes: Sequence[str]
) -> None:
    """Compares every label with the classes; a wrong one is told with its file and record."""
    last = first + len(classes) - 1
    ids = f"{first} to {last}" if last > first else str(first)
    for path, file in files.items():
        good = {label for label in {*file.labels} if _is_class(label, first, last, classes)}
        for record, label in enumerate(file.labels) if len(good) < len({*file.labels}) else ():
            if label in good:
                continue
            if isinstance(label, str):
                raise UserError(
                    f"--class_names received {','.join(classes)!r}, but record {record} of "
                    f"{path} has {feature} {label!r}; expected the name of every class."
                )
            remedy = "name every class by --class_names"
            if label == len(classes) and not first:
                remedy = "labels that begin at 1 need --label_offset 1"
            elif label < first:
                remedy = "lower --label_offset, or leave these records out"
            raise UserError(
                f"--label_offset received {first}, and record {record} of {path} has {feature} "
                f"{label}; expected {ids} for {counted(len(classes), 'class')}: {remedy}."
            )


def _is_class(label: Label, first: int, last: int, classes: Sequence[str]) -> bool:
    return label in classes if isinstance(label, str) else first <= label <= last


def texts_agree(files: Mapping[str, ScannedFile], classes: Sequence[str], first: int) -> bool:
    """Whether the texts beside ids are the names of their classes.

    Others write descriptions there, or one name for several classes, as ImageNet has two kinds of
    crane: then they name none.

    Raises:
        UserError: Most of those that are names of classes are those of others.
    """
    known = {*classes}
    pairs = {pair: n for pair, n in Counter(_named(files)).items() if isinstance(pair[0], int)}
    named = {(int(label) - first, text): n for (label, text), n in pairs.items() if text in known}
    wrong = {(c, text): n for (c, text), n in named.items() if classes[c] != text}
    if 2 * sum(wrong.values()) > sum(named.values()):
        number, text = next(iter(wrong))
        raise UserError(
            f"--class_names received {','.join(classes)!r}, whose class {number} is "
            f"{classes[number]!r}, but most records of this id have the text {text!r}; expected "
            "the names in the order of the ids: put them into it, or correct --label_offset."
        )
    return not wrong and len(named) == len(pairs)


def name_classes(files: Mapping[str, ScannedFile], classes: Sequence[str], first: int) -> None:
    """Puts ids and names of the classes into the rows."""
    numbers = {name: number for number, name in enumerate(classes)}
    for file in files.values():
        columns = file.rows.columns
        columns["label"] = [
            numbers[label] + first if isinstance(label, str) else label for label in file.labels
        ]
        columns["class_name"] = [classes[label - first] for label in columns["label"]]
