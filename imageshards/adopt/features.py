"""Finds the features of existing records that hold picture, label, file name and text."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from imageshards import storage
from imageshards.adopt.tfds import TfdsFolder
from imageshards.commands.command_line import names_or_file
from imageshards.commands.options import Option, check_options
from imageshards.errors import Arg, Phrase, UserError
from imageshards.example import Dtype, Values, dtype_of
from imageshards.images.options import ImageOptions, parse_limit
from imageshards.jpeg import MAX_PIXELS
from imageshards.manifest import NONE, SEVERAL, Adopted, FeatureSpec

# The first bytes of the formats that the trainer decodes (`imageshards.jpeg.FORMATS`).
_PICTURE = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8|BM|RIFF.{4}WEBP", re.DOTALL)
_AUTO = "auto"  # of `--label`
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
        "which features are image, label, filename and text (default: the usual names); label=A,"
        "label=B for several columns of 0 and 1", parse=_feature_map, metavar="image=A,label=B",
        )] = dataclasses.field(default_factory=dict)
    label_offset: Annotated[int, Option(
        "the label of the first class: 1 for labels that begin at 1", least=0)] = 0
    class_names: Annotated[tuple[str, ...] | None, Option(
        "names of the classes in the order of their ids (default: TFDS's, the texts beside the "
        "labels, else their numbers)",
        parse=functools.partial(names_or_file, "class_names"), metavar="A,B|FILE")] = None
    splits: Annotated[Sequence[tuple[str, str]], Option(
        "folder, file or glob of a split's files; may be given several times, also for one split "
        "(default: as the names of folders or files in DIR say: train, validation, test)",
        parse=_split, metavar="NAME=PLACE", flag="split", action="append")] = ()
    label: Annotated[str, Option(
        "labels of each record. auto: one class id or name; of features of 0s and 1s one class "
        "where each record has exactly one 1, else several labels. several: any number of labels, "
        "from 0s and 1s. none: no labels", choices=(_AUTO, SEVERAL, NONE))] = _AUTO
    max_pixels: Annotated[int, Option(
        "larger pictures are refused, in MPX (default: 100)", flag="max_image_mpx",
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
) -> Adopted:
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
            raise _missing(directory, role, mapped, Phrase((known,)))
        return found

    image = find("image", needed=True) or ""
    roles = Adopted(image, None, find("filename"), None)
    if options.label == NONE:
        return roles
    label, hot = _find_label(directory, options, tfds, image, example)
    text = find("text") if label else None
    return msgspec.structs.replace(roles, label=label, hot=hot, text=text)


def _missing(
    directory: str, role: str, mapped: str | Sequence[str] | None, usable: Phrase
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
    raise _no_label(directory, mapped, forms, example)


def _no_label(
    directory: str,
    mapped: str | Sequence[str] | None,
    forms: Mapping[str, tuple[Dtype | None, bool]],
    example: Mapping[str, Values],
) -> UserError:
    """Returns the error for records without a label."""
    usable = [name for name, (dtype, one) in forms.items() if one and dtype != "float32"]
    known = ", ".join(sorted(usable)) or "there is none"
    expected = Phrase((f"one class id or name in each record ({known})",))
    if len(bits := sorted(name for name in forms if example[name] in ([0], [1]))) > 1:
        pairs = ",".join(f"label={name}" for name in bits)
        expected = expected + ", or " + Arg("feature_map", pairs) + " for columns of 0 and 1"
    expected = expected + ", or " + Arg("label", "none") + " for records without labels"
    if values := [name for name, form in forms.items() if form == ("float32", True)]:
        expected = expected + " or with values, which "
        expected = expected + Arg("target", values[0]) + " trains on"
    return _missing(directory, "label", mapped, expected)


def check_picture(directory: str, feature: str, values: Values) -> None:
    """Checks the first bytes of a picture, because many datasets hold raw pixels instead."""
    if _is_picture(first := values[0]):
        return
    raise UserError(
        argument="DIR",
        received=f"{directory!r}, whose feature {feature!r} begins with {str(first)[:16]}",
        expected="a JPEG, PNG, GIF, BMP or WebP",
        remedy="name another feature by " + Arg("feature_map", "image=FEATURE") + ", or write the "
        "records again with tf.io.encode_jpeg",
    )


def _is_picture(value: object) -> bool:
    return isinstance(value, bytes) and _PICTURE.match(value) is not None
