"""Which features of somebody else's records are which, and what flags say of them."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from imageshards.adopt.scan import Roles
from imageshards.adopt.tfds import TfdsFolder
from imageshards.commands.command_line import names_or_file, parse_path
from imageshards.commands.options import Option, check_options
from imageshards.errors import ImageError, UserError
from imageshards.example import Values, dtype_of
from imageshards.images.options import ImageOptions, parse_limit
from imageshards.jpeg import MAX_PIXELS

# How the formats begin that the trainer decodes: `imageshards.jpeg.FORMATS`.
_PICTURE = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8|BM|RIFF.{4}WEBP", re.DOTALL)
# What tf-slim, TFDS, Kaggle's organisers and the tutorials call them, best known first.
_USUAL_NAMES = {
    "image": ("image/encoded", "image", "image_raw", "image/image_raw", "image_bytes", "jpeg"),
    "label": ("image/class/label", "label", "class", "target", "class_id"),
    "filename": ("image/filename", "filename", "file_name", "image_name", "image_id", "id"),
    "text": ("image/class/text", "class_name", "label_name"),
}


def _pair(flag: str, example: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise UserError(f"{flag} received {text!r}; expected NAME=VALUE, for example {example}.")
    return name.strip(), value.strip()


def _feature_map(text: str) -> dict[str, str]:
    example = "image=image_raw,label=class"
    return dict(_pair("--feature_map", example, part) for part in text.split(","))


def _split(text: str) -> tuple[str, str]:
    name, place = _pair("--split", "validation=FOLDER or 'train=FOLDER/a*'", text)
    return name, parse_path("--split", place)


@dataclasses.dataclass(frozen=True)
class AdoptOptions:
    """What the files do not say.

    Attributes:
        feature_map: Which feature is `image`, `label`, `filename` or `text`.
        label_offset: The label of the first class.
        class_names: Names of the classes in the order of their ids.
        max_pixels: A larger picture is refused.
        splits: Pairs of a split and a folder, file or glob of its files.
    """

    # fmt: off
    feature_map: Annotated[Mapping[str, str], Option(
        "which features are image, label, filename and text (default: the usual names)",
        parse=_feature_map, metavar="image=A,label=B")] = dataclasses.field(default_factory=dict)
    label_offset: Annotated[int, Option(
        "the label of the first class: 1 for labels that begin at 1", least=0)] = 0
    class_names: Annotated[tuple[str, ...] | None, Option(
        "names of the classes in the order of their ids (default: TFDS's, the texts beside the "
        "labels, else their numbers)",
        parse=functools.partial(names_or_file, "--class_names"), metavar="A,B|FILE")] = None
    max_pixels: Annotated[int, Option(
        "larger pictures are refused, in MPX (default: 100)", flag="max_image_mpx",
        parse=functools.partial(parse_limit, "--max_image_mpx", 1e6), metavar="MPX", least=1,
        most=MAX_PIXELS)] = ImageOptions.max_pixels
    splits: Annotated[Sequence[tuple[str, str]], Option(
        "folder, file or glob of a split's files; once for each (default: as the names of folders "
        "or files in DIR say: train, validation, test)",
        parse=_split, metavar="NAME=PLACE", flag="split", action="append")] = ()
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        for key in self.feature_map:
            if key not in _USUAL_NAMES:
                raise UserError(
                    f"--feature_map received {key!r}; expected NAME=FEATURE, where NAME is one of "
                    f"{', '.join(_USUAL_NAMES)}."
                )
        names = self.class_names or ()
        if len({*names}) < len(names):
            raise UserError(
                f"--class_names received {','.join(names)!r}; expected every name once."
            )


def features_of(
    files: Sequence[Counter[tuple[str, str, int]]], num_records: int
) -> dict[str, dict[str, Any]]:
    """Dtype and shape of every feature, as the manifest has them, from `ScannedFile.lengths`.

    One value everywhere is a scalar, the same number of values everywhere a fixed length, anything
    else a variable length. What has no values, or those of several types, no model could read.
    """
    found: dict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    for lengths in files:
        for (name, dtype, size), records in lengths.items():
            found[name][dtype, size] += records
    specs = {}
    for name in sorted(found):
        dtypes = {dtype for dtype, _ in found[name] if dtype}
        sizes = {size for _, size in found[name]}
        if len(dtypes) == 1:
            is_fixed = len(sizes) == 1 and found[name].total() == num_records
            shape = ([] if sizes == {1} else [*sizes]) if is_fixed else None
            specs[name] = {"dtype": dtypes.pop(), "shape": shape}
    return specs


def find_roles(
    directory: str, options: AdoptOptions, tfds: TfdsFolder | None, example: Mapping[str, Values]
) -> Roles:
    """By `--feature_map`, else as TFDS says, else by the usual names: those that the first record,
    `example`, has with one value of a fitting type.
    """
    said = {"image": tfds.image_feature, "label": tfds.label_feature} if tfds else {}
    dtype_of_single = {n: dtype_of(values) for n, values in example.items() if len(values) == 1}

    def find(role: str, needed: bool = False) -> str | None:
        # Of labels ids first; where there are none, the names of the classes do as well.
        dtypes = ("int64", "string") if role == "label" else ("string",)
        mapped = options.feature_map.get(role)
        names = (mapped,) if mapped else (said.get(role) or "", *_USUAL_NAMES[role])
        fit = [name for name in names if dtype_of_single.get(name) in dtypes]
        if fit:
            return min(fit, key=lambda name: dtypes.index(dtype_of_single[name]))
        if not (needed or mapped):
            return None
        received = (
            f"--feature_map received {role}={mapped}, which the records of {directory!r} have not"
            if mapped
            else f"DIR received {directory!r}, where no feature is known to be the {role}"
        )
        usable = [name for name, dtype in dtype_of_single.items() if dtype in dtypes]
        raise UserError(
            f"{received}; expected --feature_map {role}=FEATURE, one {' or '.join(dtypes)} in each "
            f"record: {', '.join(sorted(usable)) or 'there is none'}."
        )

    image, label = find("image", needed=True), find("label", needed=True)
    return Roles(image or "", label or "", find("filename"), find("text"))


def check_picture(directory: str, feature: str, values: Values) -> None:
    """Looks at the first bytes of a picture: raw pixels are a common surprise."""
    first = values[0]
    if isinstance(first, bytes) and _PICTURE.match(first):
        return
    raise UserError(
        f"DIR received {directory!r}, whose feature {feature!r} holds {_named(first)}; expected a "
        "JPEG, PNG, GIF, BMP or WebP: name another feature by --feature_map image=FEATURE, or "
        "write the records again with tf.io.encode_jpeg."
    )


def _named(value: object) -> str:
    """What a value is that is no picture for the trainer, such as `a TIFF`, for people."""
    from imageshards.images.decode import open_source

    if isinstance(value, bytes):
        try:
            return f"a picture of the format {open_source(value, ImageOptions()).format}"
        except ImageError as e:
            if e.code == "unsupported_format":
                return e.message.partition(";")[0].partition(",")[0]
    return f"no encoded picture (it begins with {str(value)[:16]})"
