"""Names the records and their classes, and checks that labels and texts agree."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from imageshards.adoption.scan import ScannedFile
from imageshards.bounds import MAX_CLASSES
from imageshards.errors import Arg, UserError
from imageshards.manifest import ONE, SEVERAL
from imageshards.text import class_sort_key, counted

# (label, text beside the label) → records; a label is a class id or the name of a class.
_Pairs = Mapping[tuple[int | str, str], int]


def name_keys(files: Mapping[str, ScannedFile], root: str) -> None:
    """Gives each row a key that no other row has.

    A record's key is the file name that only this record has, else `FILE#NUMBER`: the path of its
    TFRecord file below `root`, and its number in the file.
    """
    columns = {path.removeprefix(f"{root}/"): file.rows.columns for path, file in files.items()}
    times = Counter(name for each in columns.values() for name in each["key"])

    def is_key(name: str) -> bool:
        # A file name may look like the key of another record.
        return bool(name) and times[name] == 1 and name.rpartition("#")[0] not in columns

    for below, each in columns.items():
        each["key"] = [
            name if is_key(name) else f"{below}#{number}" for number, name in enumerate(each["key"])
        ]


def name_classes(
    files: Mapping[str, ScannedFile], known: Sequence[str] | None, first: int, feature: str
) -> Sequence[str]:
    """Puts class ids, from `first` on, and class names into the rows of the files.

    Returns:
        The class names in the order of the ids: `known`, or names from the records.

    Raises:
        UserError: A label belongs to no class, or names and texts are in different orders.
    """
    rows = [file.rows.columns for file in files.values()]
    pairs = Counter(
        pair for each in rows for pair in zip(each["label"], each["class_name"], strict=True)
    )
    classes = known or _classes_in(pairs, first, feature)
    valid: set[int | str] = {*classes, *range(first, first + len(classes))}
    for path, file in files.items():
        for record, label in enumerate(file.rows.columns["label"]):
            if label not in valid:
                raise UserError(
                    argument="label_offset",
                    received=f"{first}, and record {record} of {path} has {feature} {label!r}",
                    expected=f"{first} to {first + len(classes) - 1} or the name for "
                    f"{counted(len(classes), 'class')}",
                    remedy="correct it, or name every class by " + Arg("class_names"),
                )
    _check_texts(pairs, first, classes)
    # Labels that are names become ids, and ids stay.
    labels = {name: number for number, name in enumerate(classes, first)}
    for each in rows:
        each["label"] = [labels.get(label, label) for label in each["label"]]
        each["class_name"] = [classes[label - first] for label in each["label"]]
    return classes


def name_hot_classes(
    files: Mapping[str, ScannedFile], classes: Sequence[str], is_several: bool
) -> str:
    """Puts class names into rows whose labels came from features of 0s and 1s.

    Returns:
        `ONE` if every record has exactly one label, unless `is_several`; else `SEVERAL`.
    """
    rows = [file.rows.columns for file in files.values()]
    is_one = not is_several and all(len(ids) == 1 for each in rows for ids in each["label"])
    for each in rows:
        named = [[classes[number] for number in ids] for ids in each["label"]]
        each["class_name"] = [names[0] for names in named] if is_one else named
        if is_one:
            each["label"] = [ids[0] for ids in each["label"]]
    return ONE if is_one else SEVERAL


def _classes_in(pairs: _Pairs, first: int, feature: str) -> Sequence[str]:
    """Returns the labels that are names; else the texts beside the ids, or the ids themselves."""
    ids = sorted({label for label, _ in pairs if isinstance(label, int)})
    if not ids:
        return sorted({str(label) for label, _ in pairs}, key=class_sort_key)
    # No dataset of pictures has more classes, so a larger label is not a class id.
    if ids[-1] - first >= MAX_CLASSES:
        raise UserError(
            argument="DIR",
            received=f"records whose {feature} is up to {ids[-1]}",
            expected="class ids from 0 or 1 on",
            remedy="name the right feature by " + Arg("feature_map", "label=FEATURE"),
        )
    if ids[0] == 1 and not first:
        print(
            "note: the labels begin at 1, so class 0 has no records; --label_offset 1 makes the "
            "first class number 0",
            file=sys.stderr,
        )
    texts = {label: text for label, text in pairs if text}
    names = [texts.get(label, str(label)) for label in range(first, max(first, ids[-1]) + 1)]
    # Two classes may have the same name (ImageNet has two kinds of crane): both get their number.
    times = Counter(names)
    return [f"{name} {i}" if times[name] > 1 else name for i, name in enumerate(names)]


def _check_texts(pairs: _Pairs, first: int, classes: Sequence[str]) -> None:
    """Refuses names in a different order than the texts of the records."""
    known = {*classes}
    named = {
        (label - first, text): records
        for (label, text), records in pairs.items()
        if isinstance(label, int) and text in known
    }
    # Texts may also be descriptions, which match no name and do not count.
    wrong = {pair: n for pair, n in named.items() if classes[pair[0]] != pair[1]}
    # A minority of disagreeing records are wrong labels, not a wrong order.
    if 2 * sum(wrong.values()) > sum(named.values()):
        number, text = next(iter(wrong))
        raise UserError(
            argument="class_names",
            received=f"{','.join(classes)!r}, whose class {number} is {classes[number]!r}, but "
            f"most records of this id have the text {text!r}",
            expected="the names in the order of the ids",
            remedy="reorder them, or correct " + Arg("label_offset"),
        )
