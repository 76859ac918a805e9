"""Which features of somebody else's records are which, and what flags say of them."""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from imageshards.adopt.scan import Roles
from imageshards.adopt.tfds import TfdsFolder
from imageshards.errors import UserError
from imageshards.example import Values, dtype_of

# JPEG, PNG, GIF: what TensorFlow's decoder of JPEGs takes.
_PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8")
# What tf-slim, TFDS, Kaggle's organisers and the tutorials call them, best known first.
_USUAL_NAMES = {
    "image": ("image/encoded", "image", "image_raw", "image/image_raw", "image_bytes", "jpeg"),
    "label": ("image/class/label", "label", "class", "target", "class_id"),
    "filename": ("image/filename", "filename", "file_name", "image_name", "image_id", "id"),
    "text": ("image/class/text", "class_name", "label_name"),
}
_DTYPES = {
    "image": ("string",),
    # Ids first; where there are none, the names of the classes do as well.
    "label": ("int64", "string"),
    "filename": ("string",),
    "text": ("string",),
}


@dataclasses.dataclass(frozen=True)
class AdoptOptions:
    """What the files do not say.

    Attributes:
        feature_map: Which feature is `image`, `label`, `filename` or `text`.
        label_offset: The label of the first class.
        class_names: Names of the classes in the order of their ids.
        splits: Pairs of a split and a folder, file or glob of its files.
    """

    feature_map: Mapping[str, str] = dataclasses.field(default_factory=dict)
    label_offset: int = 0
    class_names: tuple[str, ...] | None = None
    splits: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for key in self.feature_map:
            if key not in _USUAL_NAMES:
                raise UserError(
                    f"--feature_map received {key!r}; expected NAME=FEATURE, where NAME is one of "
                    f"{', '.join(_USUAL_NAMES)}."
                )
        if self.label_offset < 0:
            raise UserError(f"--label_offset received {self.label_offset}; expected 0 or more.")
        names = self.class_names or ()
        if len({*names}) < len(names):
            raise UserError(
                f"--class_names received {','.join(names)!r}; expected every name once."
            )


def lengths_of(features: Mapping[str, Values]) -> dict[str, Counter[tuple[str, int]]]:
    return {name: Counter([(dtype_of(v), len(v))]) for name, v in features.items()}


def specs_of(*parts: Mapping[str, Counter[tuple[str, int]]]) -> dict[str, dict[str, Any]]:
    """Dtype and shape of every feature, as the manifest has them.

    One value everywhere is a scalar, the same number of values everywhere a fixed length, anything
    else a variable length. What has no values, or those of several types, no model could read.
    """
    total: dict[str, Counter[tuple[str, int]]] = {}
    for part in parts:
        for name, lengths in part.items():
            total.setdefault(name, Counter()).update(lengths)
    most = max((lengths.total() for lengths in total.values()), default=0)
    specs = {}
    for name in sorted(total):
        dtypes = {dtype for dtype, _ in total[name] if dtype}
        if len(dtypes) == 1:
            sizes = {size for _, size in total[name]}
            fixed = len(sizes) == 1 and total[name].total() == most
            shape = ([] if sizes == {1} else [*sizes]) if fixed else None
            specs[name] = {"dtype": dtypes.pop(), "shape": shape}
    return specs


def find_roles(
    directory: str,
    options: AdoptOptions,
    tfds: TfdsFolder | None,
    features: Mapping[str, Mapping[str, Any]],
) -> Roles:
    """By `--feature_map`, else as TFDS says, else by the usual names."""
    said = {"image": tfds.image_feature, "label": tfds.label_feature} if tfds else {}
    scalars = {name: spec["dtype"] for name, spec in features.items() if spec["shape"] == []}

    def find(key: str) -> str | None:
        if key in options.feature_map:
            return _mapped_feature(directory, key, options.feature_map[key], features)
        names = [n for n in (said.get(key) or "", *_USUAL_NAMES[key]) if n in scalars]
        return next((n for dtype in _DTYPES[key] for n in names if scalars[n] == dtype), None)

    def need(key: str) -> str:
        found = find(key)
        if found is None:
            raise UserError(
                f"DIR received {directory!r}, where no feature is known to be the {key}; "
                f"expected --feature_map {key}=FEATURE with one of {_listed(features)}."
            )
        return found

    return Roles(need("image"), need("label"), find("filename"), find("text"))


def _mapped_feature(
    directory: str, key: str, name: str, features: Mapping[str, Mapping[str, Any]]
) -> str:
    """What `--feature_map KEY=NAME` names, checked."""
    if name not in features:
        near = difflib.get_close_matches(name, features, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"--feature_map received {key}={name}, but the records of {directory!r} have no such "
            f"feature; {hint}expected one of {_listed(features)}."
        )
    spec, dtypes = features[name], _DTYPES[key]
    if spec["dtype"] not in dtypes or spec["shape"] != []:
        usable = [n for n, f in features.items() if f["dtype"] in dtypes and f["shape"] == []]
        many = "" if spec["shape"] == [] else ", not one for each record"
        raise UserError(
            f"--feature_map received {key}={name}, a feature of {spec['dtype']}{many}; expected "
            f"one {' or '.join(dtypes)} for each record: {_listed(usable)}."
        )
    return name


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def check_picture(directory: str, feature: str, values: Values) -> None:
    """Looks at the first bytes of a picture: raw pixels are a common surprise."""
    first = values[0] if values else b""
    if not isinstance(first, bytes) or not first.startswith(_PICTURES):
        raise UserError(
            f"DIR received {directory!r}, whose feature {feature!r} holds no encoded picture (it "
            f"begins with {str(first)[:16]}); expected a JPEG (PNG and GIF work, too): name "
            "another feature by --feature_map image=FEATURE, or write the records again with "
            "tf.io.encode_jpeg."
        )
