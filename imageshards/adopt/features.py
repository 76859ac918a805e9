"""Finds the features of existing records that hold picture, label, file name and text.

Names the classes of the records, and checks that labels and texts agree.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from imageshards import storage
from imageshards.adopt.files import TfdsFolder
from imageshards.adopt.scan import ScannedFile
from imageshards.bounds import MAX_CLASSES
from imageshards.commands.command_line import names_or_file
from imageshards.commands.options import Option, check_options
from imageshards.errors import Arg, UserError
from imageshards.example import Dtype, Values, dtype_of
from imageshards.images.options import ImageOptions, parse_limit
from imageshards.jpeg import MAX_PIXELS
from imageshards.manifest import NONE, ONE, SEVERAL, FeatureSpec, Roles
from imageshards.text import class_sort_key, counted

# The first bytes of the formats that the trainer decodes (`imageshards.jpeg.FORMATS`).
_PICTURE = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8|BM|RIFF.{4}WEBP", re.DOTALL)
_AUTO = "auto"  # of `--label`
# (label, text beside the label) → records; a label is a class id or the name of a class.
_Pairs = Mapping[tuple[int | str, str], int]
# Feature names of tf-slim, TFDS, Kaggle's organisers and the tutorials, most frequent first.
_USUAL_NAMES = {
    "image": ("image/encoded", "image", "image_raw", "image/image_raw", "image_bytes", "jpeg"),
    "label": ("image/class/label", "label", "class", "target", "class_id"),
    "filename": ("image/filename", "filename", "file_name", "image_name", "image_id", "id"),
    "text": ("image/class/text", "class_name", "label_name"),
}


def _pair(argument: str, example: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        expected = f"NAME=VALUE, for example {example}"
        raise UserError(argument=argument, received=repr(text), expected=expected)
    return name.strip(), value.strip()


def _feature_map(text: str) -> dict[str, str | Sequence[str]]:
    example = "image=image_raw,label=class"
    found: dict[str, list[str]] = defaultdict(list)
    for part in text.split(","):
        role, feature = _pair("feature_map", example, part)
        found[role].append(feature)
    return {role: one if len(one) > 1 else one[0] for role, one in found.items()}


def _split(text: str) -> tuple[str, str]:
    name, place = _pair("split", "validation=FOLDER or 'train=FOLDER/a*'", text)
    return name, storage.absolute_place("split", place)


@dataclasses.dataclass(frozen=True)
class AdoptOptions:
    """Facts about existing records that their files do not contain, given as flags of `adopt`."""

    # fmt: off
    feature_map: Annotated[Mapping[str, str | Sequence[str]], Option(
        "names of the features that hold image, label, filename and text, as in image=jpeg,"
        "label=class. For features of 0s and 1s, one per class, repeat label=: label=cat,label=dog "
        "(default: the usual names, such as image/encoded and image/class/label)",
        parse=_feature_map, metavar="image=A,label=B",
        )] = dataclasses.field(default_factory=dict)
    label_offset: Annotated[int, Option(
        "label of the first class; 1 if labels count from 1", least=0)] = 0
    class_names: Annotated[tuple[str, ...] | None, Option(
        "class names in the order of their ids: a list with commas, or a text file with one name "
        "per line. In a list, write a comma inside a name as \\,. A label must be one of these "
        "names or a class id (default: the names that TFDS stored, else the texts beside the ids, "
        "else the labels in order; for features of 0s and 1s, the names of the features, or "
        "numbers for a vector)",
        parse=functools.partial(names_or_file, "class_names"), metavar="A,B|FILE")] = None
    splits: Annotated[Sequence[tuple[str, str]], Option(
        "the files of a split: a folder, a file or a glob. Repeat the flag for more splits or more "
        "files (default: the splits of TFDS, else train, validation, test and the like by a word "
        "in the name of each file, else in the names of its folders below DIR)",
        parse=_split, metavar="NAME=PLACE", flag="split", action="append")] = ()
    label: Annotated[str, Option(
        "labels of each record. auto: one class id or name; from features of 0s and 1s, one class "
        "if every record has exactly one 1, else several labels. several: several labels from "
        "features of 0s and 1s. none: no labels", choices=(_AUTO, SEVERAL, NONE))] = _AUTO
    max_pixels: Annotated[int, Option(
        "limit in megapixels; larger pictures are refused (default: 100)", flag="max_image_mpx",
        parse=functools.partial(parse_limit, "max_image_mpx", 1e6), metavar="MPX", least=1,
        most=MAX_PIXELS)] = ImageOptions.max_pixels
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        for key, feature in self.feature_map.items():
            is_once = isinstance(feature, str) or len({*feature}) == len(feature)
            if not is_once or (key != "label" and not isinstance(feature, str)):
                raise UserError(
                    argument="feature_map",
                    received=f"{key}={f',{key}='.join(feature)}",
                    expected="one feature, or for label several different columns of 0 and 1",
                )
            if key not in _USUAL_NAMES:
                expected = f"NAME=FEATURE, where NAME is one of {', '.join(_USUAL_NAMES)}"
                raise UserError(argument="feature_map", received=repr(key), expected=expected)
        if self.label == NONE and "label" in self.feature_map:
            raise UserError(
                argument="label",
                received="'none' beside a label in " + Arg("feature_map"),
                expected="one of them",
            )
        names = self.class_names or ()
        if len({*names}) < len(names):
            received = repr(",".join(names))
            raise UserError(argument="class_names", received=received, expected="every name once")


def features_of(
    files: Sequence[Counter[tuple[str, Dtype | None, int]]], num_records: int
) -> dict[str, FeatureSpec]:
    """Returns dtype and shape of every feature for the manifest, from `ScannedFile.lengths`.

    One value in each record is a scalar, an equal number of values a fixed length, and anything
    else a variable length. Features without values or with mixed types are left out.
    """
    found: dict[str, Counter[tuple[Dtype | None, int]]] = defaultdict(Counter)
    for lengths in files:
        for (name, dtype, size), records in lengths.items():
            found[name][dtype, size] += records
    specs = {}
    for name in sorted(found):
        dtypes = {dtype for dtype, _ in found[name] if dtype}
        sizes = {size for _, size in found[name]}
        if len(dtypes) == 1:
            is_fixed = len(sizes) == 1 and found[name].total() == num_records
            shape = (() if sizes == {1} else (*sizes,)) if is_fixed else None
            specs[name] = FeatureSpec(dtypes.pop(), shape)
    return specs


def find_roles(
    directory: str, options: AdoptOptions, tfds: TfdsFolder | None, example: Mapping[str, Values]
) -> Roles:
    """Finds the features of an adopted dataset.

    `--feature_map` comes first, then the description of TFDS, then usual names. The last two must
    be in `example`, the first record, with values of a fitting type.

    Raises:
        UserError: No feature holds the picture or the label.
    """
    said = {"image": tfds.image_feature} if tfds else {}
    # Picture, file name and text are all single strings.
    texts = [n for n, found in example.items() if len(found) == 1 and dtype_of(found) == "string"]

    def find(role: str, needed: bool = False) -> str | None:
        mapped = options.feature_map.get(role)
        names = (str(mapped),) if mapped else (said.get(role) or "", *_USUAL_NAMES[role])
        found = next((name for name in names if name in texts), None)
        if found is None and (needed or mapped):
            known = f"one string in each record: {', '.join(sorted(texts)) or 'none'}"
            raise _missing(directory, role, mapped, known)
        return found

    image = find("image", needed=True) or ""
    roles = Roles(image, None, find("filename"), None)
    if options.label == NONE:
        return roles
    label, hot = _find_label(directory, options, tfds, image, example)
    text = find("text") if label else None
    return msgspec.structs.replace(roles, label=label, hot=hot, text=text)


def _missing(
    directory: str, role: str, mapped: str | Sequence[str] | None, usable: str
) -> UserError:
    """Returns the error for records without a feature for `role`, naming `usable` features."""
    expected = Arg("feature_map", f"{role}=FEATURE") + ", " + usable
    if not mapped:
        received = f"{directory!r}, where no feature is known to be the {role}"
        return UserError(argument="DIR", received=received, expected=expected)
    names = mapped if isinstance(mapped, str) else f",{role}=".join(mapped)
    received = f"{role}={names}, which the records of {directory!r} lack"
    return UserError(argument="feature_map", received=received, expected=expected)


def _find_label(
    directory: str,
    options: AdoptOptions,
    tfds: TfdsFolder | None,
    image: str,
    example: Mapping[str, Values],
) -> tuple[str | None, tuple[str, ...]]:
    """Returns the feature of class ids or names, or the features of 0s and 1s."""
    mapped = options.feature_map.get("label")
    said = (tfds and tfds.label_feature) or ""
    names = [mapped] if isinstance(mapped, str) else mapped or [said, *_USUAL_NAMES["label"]]
    # A feature may be called `label` and hold a picture, such as a mask.
    forms = {
        name: (dtype_of(values), len(values) == 1)
        for name, values in example.items()
        if values and name != image and not _is_picture(values[0])
    }
    numbers = [n for n in names if forms.get(n, ("",))[0] in ("int64", "float32")]
    if mapped and not isinstance(mapped, str):
        if len(numbers) == len(names):
            return None, tuple(names)
    elif options.label == SEVERAL and numbers:
        return None, (numbers[0],)
    else:
        # Class ids come first, and class names serve where there are no ids.
        for dtype in ("int64", "string"):
            if single := next((n for n in names if forms.get(n) == (dtype, True)), None):
                return single, ()
        if vector := next((name for name in numbers if not forms[name][1]), None):
            return None, (vector,)
    usable = [name for name, (dtype, one) in forms.items() if one and dtype != "float32"]
    known = ", ".join(sorted(usable)) or "there is none"
    expected = f"one class id or name in each record ({known})"
    if len(bits := sorted(name for name in forms if example[name] in ([0], [1]))) > 1:
        pairs = ",".join(f"label={name}" for name in bits)
        expected = expected + ", or " + Arg("feature_map", pairs) + " for columns of 0 and 1"
    expected = expected + ", or " + Arg("label", "none") + " for records without labels"
    if values := [name for name, form in forms.items() if form == ("float32", True)]:
        expected = expected + " or with values, which "
        expected = expected + Arg("target", values[0]) + " trains on"
    raise _missing(directory, "label", mapped, expected)


def check_picture(directory: str, feature: str, values: Values) -> None:
    """Checks the first bytes of a picture, because many datasets hold raw pixels instead."""
    if not _is_picture(first := values[0]):
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, whose feature {feature!r} begins with {str(first)[:16]}",
            expected="a JPEG, PNG, GIF, BMP or WebP",
            remedy="name another feature by " + Arg("feature_map", "image=FEATURE") + ", or write "
            "the records again with tf.io.encode_jpeg",
        )


def _is_picture(value: object) -> bool:
    return isinstance(value, bytes) and _PICTURE.match(value) is not None


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
