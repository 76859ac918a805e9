"""Options of `imageshards adopt`, and the features that hold picture, label, name and text."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from imageshards import storage
from imageshards.adoption.files import TfdsFolder
from imageshards.commands.command_line import names_or_file
from imageshards.commands.options import Option, check_options, options_of
from imageshards.errors import Arg, UserError
from imageshards.example import Values, dtype_of
from imageshards.jpeg import MAX_PIXELS
from imageshards.manifest import NONE, SEVERAL, Roles

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


def _pair(argument: str, text: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise UserError(argument=argument, received=repr(text), expected="NAME=VALUE")
    return name, value


def _feature_map(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for role, feature in (_pair("feature_map", part) for part in text.split(",")):
        found[role].append(feature)
    return found


def _split(text: str) -> tuple[str, str]:
    name, place = _pair("split", text)
    return name, storage.absolute_place("split", place)


@dataclasses.dataclass(frozen=True)
class AdoptOptions:
    """The flags of `imageshards adopt`: facts about existing records that their files lack."""

    # fmt: off
    output: Annotated[str | None, Option(
        "folder for the manifest and the index (default: DIR). If the records are not below "
        "this folder, all other commands need --records_root",
        place=storage.absolute_place, metavar="FOLDER")] = None
    feature_map: Annotated[Mapping[str, str | Sequence[str]], Option(
        "names of the features that hold image, label, filename and text, as in image=jpeg,"
        "label=class. For features of 0s and 1s, one per class, repeat label=: label=cat,label=dog "
        "(default: the usual names, such as image/encoded and image/class/label)",
        parse=_feature_map, metavar="image=A,label=B",
        )] = dataclasses.field(default_factory=dict)
    label_offset: Annotated[int, Option(
        "label of the first class; 1 if labels count from 1", least=0)] = 0
    class_names: Annotated[Sequence[str], Option(
        "class names in the order of their ids: a list with commas, or a text file with one name "
        "per line. In a list, write a comma inside a name as \\,. A label must be one of these "
        "names or a class id (default: the names that TFDS stored, else the texts beside the ids, "
        "else the labels in order; for features of 0s and 1s, the names of the features, or "
        "numbers for a vector)",
        parse=functools.partial(names_or_file, "class_names"), metavar="A,B|FILE")] = ()
    split: Annotated[Sequence[tuple[str, str]] | Mapping[str, str], Option(
        "the files of a split: a folder, a file or a glob. Repeat the flag for more splits or more "
        "files (default: the splits of TFDS, else train, validation, test and the like by a word "
        "in the name of each file, else in the names of its folders below DIR)",
        parse=_split, metavar="NAME=PLACE", action="append")] = ()
    label: Annotated[str, Option(
        "labels of each record. auto: one class id or name; from features of 0s and 1s, one class "
        "if every record has exactly one 1, else several labels. several: several labels from "
        "features of 0s and 1s. none: no labels", choices=(_AUTO, SEVERAL, NONE))] = _AUTO
    max_image_mpx: Annotated[float, Option(
        "limit in megapixels; larger pictures are refused", above=0, most=MAX_PIXELS / 1e6,
        metavar="MPX")] = 100
    # fmt: on

    def __post_init__(self) -> None:
        for name, (_, option) in options_of(AdoptOptions).items():
            # In Python, too, a value may be the text of its flag.
            if option.parse and isinstance(given := getattr(self, name), str):
                found = option.parse(given)
                object.__setattr__(self, name, [found] if option.action else found)
        check_options(self)
        for role, named in self.feature_map.items():
            if role not in _USUAL_NAMES:
                expected = f"NAME=FEATURE, where NAME is one of {', '.join(_USUAL_NAMES)}"
                raise UserError(argument="feature_map", received=repr(role), expected=expected)
            features = self.features_for(role)
            if len({*features}) < len(features) or (role != "label" and len(features) > 1):
                raise UserError(
                    argument="feature_map",
                    received=f"{role}={named}",
                    expected="one feature, or for label several different columns of 0 and 1",
                )
        if self.label == NONE and "label" in self.feature_map:
            raise UserError(
                argument="label",
                received="'none' beside a label in " + Arg("feature_map"),
                expected="one of them",
            )
        if len({*self.class_names}) < len(self.class_names):
            received = repr(",".join(self.class_names))
            raise UserError(argument="class_names", received=received, expected="every name once")

    def features_for(self, role: str) -> tuple[str, ...]:
        """Returns the features that `feature_map` names for a role."""
        named = self.feature_map.get(role, ())
        return (named,) if isinstance(named, str) else tuple(named)


def find_roles(
    directory: str, options: AdoptOptions, tfds: TfdsFolder, example: Mapping[str, Values]
) -> Roles:
    """Finds the features of an adopted dataset.

    `--feature_map` comes first, then the description of TFDS, then usual names. The last two must
    be in `example`, the first record, with values of a fitting type.

    Raises:
        UserError: No feature holds the picture or the label.
    """
    # Picture, file name and text are all single strings.
    texts = [n for n, found in example.items() if len(found) == 1 and dtype_of(found) == "string"]

    def find(role: str, said: str | None = None) -> str | None:
        mapped = options.features_for(role)
        names = mapped or (said or "", *_USUAL_NAMES[role])
        found = next((name for name in names if name in texts), None)
        if found is None and (mapped or role == "image"):
            known = f"one string in each record: {', '.join(sorted(texts)) or 'none'}"
            raise _missing(directory, role, mapped, known)
        return found

    image = find("image", tfds.image_feature) or ""
    if not _is_picture(first := example[image][0]):  # Many datasets hold raw pixels instead.
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, whose feature {image!r} begins with {str(first)[:16]}",
            expected="a JPEG, PNG, GIF, BMP or WebP",
            remedy="name another feature by " + Arg("feature_map", "image=FEATURE") + ", or write "
            "the records again with tf.io.encode_jpeg",
        )
    roles = Roles(image, None, find("filename"), None)
    if options.label == NONE:
        return roles
    label, hot = _find_label(directory, options, tfds, image, example)
    return msgspec.structs.replace(
        roles, label=label, hot=hot, text=find("text") if label else None
    )


def _is_picture(value: object) -> bool:
    return isinstance(value, bytes) and _PICTURE.match(value) is not None


def _missing(directory: str, role: str, mapped: Sequence[str], usable: str) -> UserError:
    """Returns the error for records without a feature for `role`, naming `usable` features."""
    received = f"{directory!r}, where no feature is known to be the {role}"
    if mapped:
        received = f"{role}={f',{role}='.join(mapped)}, which the records of {directory!r} lack"
    return UserError(
        argument="feature_map" if mapped else "DIR",
        received=received,
        expected=Arg("feature_map", f"{role}=FEATURE") + ", " + usable,
    )


def _find_label(
    directory: str,
    options: AdoptOptions,
    tfds: TfdsFolder,
    image: str,
    example: Mapping[str, Values],
) -> tuple[str | None, tuple[str, ...]]:
    """Returns the feature of class ids or names, or the features of 0s and 1s."""
    mapped = options.features_for("label")
    names = mapped or (tfds.label_feature or "", *_USUAL_NAMES["label"])
    # A feature may be called `label` and hold a picture, such as a mask.
    forms = {
        name: (dtype_of(values), len(values) == 1)
        for name, values in example.items()
        if values and name != image and not _is_picture(values[0])
    }
    numbers = [n for n in names if forms.get(n, ("",))[0] in ("int64", "float32")]
    if len(mapped) > 1:
        if len(numbers) == len(names):
            return None, mapped
    elif options.label == SEVERAL and numbers:
        return None, (numbers[0],)
    else:
        # Class ids come first, and class names serve where there are no ids.
        for dtype in ("int64", "string"):
            if single := next((n for n in names if forms.get(n) == (dtype, True)), None):
                return single, ()
        if vector := next((name for name in numbers if not forms[name][1]), None):
            return None, (vector,)
    usable = sorted(name for name, (dtype, one) in forms.items() if one and dtype != "float32")
    expected = f"one class id or name in each record ({', '.join(usable) or 'there is none'}), or "
    expected += Arg("feature_map", "label=A,label=B") + " for columns of 0 and 1, or "
    expected += Arg("label", "none") + " for records without labels or with other values, which "
    raise _missing(directory, "label", mapped, expected + Arg("target", "COLUMN") + " trains on")
