"""What the records of others hold: learned from their first records, and from `--feature_map`."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence

from imageshards.errors import UserError
from imageshards.example import Values, dtype_of
from trainer.dataset.spec import FeatureSpec

KEYS = ("image", "label", "filename", "text")
# What tf-slim, TFDS, Kaggle's organisers and the tutorials call them, best known first.
_USUAL = {
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
_NEEDED = ("image", "label")
# JPEG, PNG, GIF: what TensorFlow's decoder of JPEGs takes.
_PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8")


@dataclasses.dataclass(frozen=True)
class Roles:
    """Which feature of a record is what, None where none is.

    Attributes:
        image: Holds the encoded picture.
        label: The class: its id, or its name.
        filename: The source file's name.
        text: The class's name.
    """

    image: str
    label: str
    filename: str | None
    text: str | None


def infer_features(records: Sequence[Mapping[str, Values]]) -> dict[str, FeatureSpec]:
    """Dtype and shape of every feature, as far as some records tell.

    One value everywhere is a scalar, the same number of values everywhere a fixed length,
    anything else a variable length.
    """
    specs = {}
    for name in sorted({name for record in records for name in record}):
        found = [record[name] for record in records if name in record]
        dtypes = {dtype_of(values) for values in found if values}
        if len(dtypes) != 1:
            # Without values, or of several types: nothing a model could read.
            continue
        lengths = {len(values) for values in found}
        if len(found) < len(records) or len(lengths) > 1:
            shape = None
        else:
            length = lengths.pop()
            shape = () if length == 1 else (length,)
        specs[name] = FeatureSpec(dtypes.pop(), shape)
    return specs


def find_roles(
    data: str,
    features: Mapping[str, FeatureSpec],
    feature_map: Mapping[str, str],
    usual: Mapping[str, str | None],
) -> Roles:
    """Which feature is the picture, the label, the file name, the class name.

    Args:
        data: As `--data` received it.
        features: Of the records.
        feature_map: As `--feature_map` received it; comes first.
        usual: What whoever wrote the records says; comes before the usual names.

    Raises:
        UserError: The map has an unknown key, or names a feature that is not there or has
            another type; or the picture or the label is not found.
    """
    unknown = [key for key in feature_map if key not in KEYS]
    if unknown:
        raise UserError(
            f"--feature_map received {unknown[0]!r}; expected NAME=FEATURE, where NAME is one of "
            f"{', '.join(KEYS)}."
        )
    found = {key: _find_role(data, key, features, feature_map, usual) for key in KEYS}
    for key in _NEEDED:
        if found[key] is None:
            raise UserError(
                f"--data received {data!r}, where no feature is known to be the {key}; expected "
                f"--feature_map {key}=FEATURE with one of {_listed(features)}."
            )
    return Roles(found["image"] or "", found["label"] or "", found["filename"], found["text"])


def check_picture(data: str, feature: str, values: Values) -> None:
    """Looks at the first bytes of a picture: raw pixels are a common surprise.

    Raises:
        UserError: They begin no JPEG, PNG or GIF.
    """
    first = values[0] if values else b""
    if not isinstance(first, bytes) or not first.startswith(_PICTURES):
        raise UserError(
            f"--data received {data!r}, whose feature {feature!r} holds no encoded picture (it "
            f"begins with {str(first)[:16]}); expected a JPEG (PNG and GIF work, too): name "
            "another feature by --feature_map image=FEATURE, or write the records again with "
            "tf.io.encode_jpeg."
        )


def _find_role(
    data: str,
    key: str,
    features: Mapping[str, FeatureSpec],
    feature_map: Mapping[str, str],
    usual: Mapping[str, str | None],
) -> str | None:
    named = feature_map.get(key)
    if named is None:
        names = (usual.get(key) or "", *_USUAL[key])
        scalars = [n for n in names if n in features and features[n].shape == ()]
        typed = (n for dtype in _DTYPES[key] for n in scalars if features[n].dtype == dtype)
        return next(typed, None)
    if named not in features:
        near = difflib.get_close_matches(named, features, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"--feature_map received {key}={named}, but the records of {data!r} have no such "
            f"feature; {hint}expected one of {_listed(features)}."
        )
    spec, dtypes = features[named], _DTYPES[key]
    if spec.dtype not in dtypes or spec.shape != ():
        fitting = {n: f for n, f in features.items() if f.dtype in dtypes and f.shape == ()}
        many = "" if spec.shape == () else ", not one for each record"
        raise UserError(
            f"--feature_map received {key}={named}, a feature of {spec.dtype}{many}; expected one "
            f"{' or '.join(dtypes)} for each record: {_listed(fitting)}."
        )
    return named


def _listed(features: Mapping[str, FeatureSpec]) -> str:
    return ", ".join(features) or "none"
