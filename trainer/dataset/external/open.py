"""Data sets without a manifest: TFRecords that others wrote, opened as if we had built them."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from imageshards.errors import UserError
from imageshards.example import Values, decode_example, dtype_of
from imageshards.manifest import TRAIN_NAMES
from imageshards.text import counted
from imageshards.tfrecord import Record, scan_file
from trainer.config import DataConfig
from trainer.dataset.counting import FileCount, count_files
from trainer.dataset.external.files import ExternalFile, Layout, find_layout
from trainer.dataset.spec import DataSet, FeatureSpec, ImageSpec, Shard, Split
from trainer.dataset.tensorflow_files import check_readable

# Enough to tell a fixed length from a variable one, little enough to be read at once.
_SAMPLE_RECORDS = 64
_SAMPLE_FILES = 4
# More than any data set of pictures has: a larger label is some other number.
_MAX_CLASSES = 100_000
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

_Features = Mapping[str, Values]


@dataclasses.dataclass(frozen=True)
class _Roles:
    """Which feature is the picture, the class, the source file's name, the class's name."""

    image: str
    label: str
    filename: str | None
    text: str | None


def open_external(config: DataConfig) -> DataSet:
    """Opens TFRecords without a manifest.

    Counts come from `dataset_info.json` (TFDS), from the files' names
    (`flowers00-230.tfrec`), or from one pass over all records, which is cached. Classes
    come from `config.class_names`, from TFDS, or from that pass. A feature's dtype and
    shape are those of the first records.

    Args:
        config: `data`, `validation_data`, `feature_map`, `label_offset`, `class_names`,
            `image_size` and `skip_broken` matter here.

    Raises:
        UserError: The files, the features or the labels are not what a trainer needs.
    """
    if config.validation_data is not None:
        check_readable(config.validation_data, "⟦--validation_data⟧")
    layout = find_layout(config)
    samples = _sample(config.data, layout)
    main = next((name for name in TRAIN_NAMES if name in samples), min(samples))
    features = _infer_features(samples[main])
    roles = _find_roles(config, layout, features)
    _check_picture(config.data, roles.image, samples[main][0][roles.image])
    files = _labelled_splits(layout, samples, roles.label)
    counts = _counts(config, layout, files, roles)
    classes = _classes(config, layout, counts, roles)
    _check_labels(counts, roles.label, config.label_offset, classes)
    splits = {
        name: Split(name, tuple(_shard(f, counts.get(f.path), config, classes) for f in found))
        for name, found in files.items()
    }
    return DataSet(
        data=config.data,
        splits=splits,
        classes=classes,
        image=_image(config, layout, roles.image),
        compression=layout.compression,
        shard_by=_shard_by(splits),
        features=features,
        image_feature=roles.image,
        label_feature=roles.label,
        filename_feature=roles.filename,
        text_feature=roles.text,
        label_offset=config.label_offset,
        fingerprint=_fingerprint(config, splits, files, classes, roles),
        has_manifest=False,
    )


def _sample(data: str, layout: Layout) -> dict[str, list[_Features]]:
    """The first records of every split that has any."""
    samples = {}
    for name, files in layout.splits.items():
        examples: list[_Features] = []
        for file in files[:_SAMPLE_FILES]:
            records = scan_file(file.path, layout.compression)
            for record in itertools.islice(records, _SAMPLE_RECORDS // _SAMPLE_FILES):
                with contextlib.suppress(ValueError):
                    if isinstance(record, Record) and (found := decode_example(record.payload)):
                        examples.append(found)
        if examples:
            samples[name] = examples
    if not samples:
        raise UserError(
            f"⟦--data⟧ received {data!r}, whose first files hold no tf.train.Example; expected "
            "TFRecords of tf.train.Example with a picture and a label."
        )
    return samples


def _infer_features(records: Sequence[_Features]) -> dict[str, FeatureSpec]:
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
        shape: tuple[int, ...] | None = None
        if len(found) == len(records) and len(lengths) == 1:
            shape = () if lengths == {1} else tuple(lengths)
        specs[name] = FeatureSpec(dtypes.pop(), shape)
    return specs


def _find_roles(config: DataConfig, layout: Layout, features: Mapping[str, FeatureSpec]) -> _Roles:
    """By `--feature_map`, else as TFDS says, else by the usual names."""
    for key in config.feature_map:
        if key not in _USUAL_NAMES:
            raise UserError(
                f"⟦--feature_map⟧ received {key!r}; expected NAME=FEATURE, where NAME is one of "
                f"{', '.join(_USUAL_NAMES)}."
            )
    tfds = layout.tfds
    known = {"image": tfds.image_feature, "label": tfds.label_feature} if tfds else {}

    def find(key: str) -> str | None:
        if key in config.feature_map:
            return _mapped_feature(config.data, key, config.feature_map[key], features)
        scalars = {name: spec.dtype for name, spec in features.items() if spec.shape == ()}
        names = [n for n in (known.get(key) or "", *_USUAL_NAMES[key]) if n in scalars]
        return next((n for dtype in _DTYPES[key] for n in names if scalars[n] == dtype), None)

    def need(key: str) -> str:
        found = find(key)
        if found is None:
            raise UserError(
                f"⟦--data⟧ received {config.data!r}, where no feature is known to be the {key}; "
                f"expected ⟦--feature_map {key}=FEATURE|feature_map={{'{key}': 'FEATURE'}}⟧ "
                f"with one of {_listed(features)}."
            )
        return found

    return _Roles(need("image"), need("label"), find("filename"), find("text"))


def _mapped_feature(data: str, key: str, name: str, features: Mapping[str, FeatureSpec]) -> str:
    """What `--feature_map KEY=NAME` names, checked."""
    if name not in features:
        near = difflib.get_close_matches(name, features, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"⟦--feature_map⟧ received {key}={name}, but the records of {data!r} have no such "
            f"feature; {hint}expected one of {_listed(features)}."
        )
    spec, dtypes = features[name], _DTYPES[key]
    if spec.dtype not in dtypes or spec.shape != ():
        usable = [n for n, f in features.items() if f.dtype in dtypes and f.shape == ()]
        many = "" if spec.shape == () else ", not one for each record"
        raise UserError(
            f"⟦--feature_map⟧ received {key}={name}, a feature of {spec.dtype}{many}; expected one "
            f"{' or '.join(dtypes)} for each record: {_listed(usable)}."
        )
    return name


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _check_picture(data: str, feature: str, values: Values) -> None:
    """Looks at the first bytes of a picture: raw pixels are a common surprise."""
    first = values[0] if values else b""
    if not isinstance(first, bytes) or not first.startswith(_PICTURES):
        raise UserError(
            f"⟦--data⟧ received {data!r}, whose feature {feature!r} holds no encoded picture (it "
            f"begins with {str(first)[:16]}); expected a JPEG (PNG and GIF work, too): name "
            "another feature by ⟦--feature_map image=FEATURE|feature_map={'image': 'FEATURE'}⟧, or "
            "write the records again with tf.io.encode_jpeg."
        )


def _labelled_splits(
    layout: Layout, samples: Mapping[str, Sequence[_Features]], label: str
) -> dict[str, tuple[ExternalFile, ...]]:
    """Splits with labels: those of a competition's test have none."""
    kept = {}
    for name, files in layout.splits.items():
        if name in samples and label not in samples[name][0]:
            print(
                f"note: the split {name} is left out, since its records have no feature {label}",
                file=sys.stderr,
            )
        else:
            kept[name] = files
    return kept


def _counts(
    config: DataConfig,
    layout: Layout,
    splits: Mapping[str, Sequence[ExternalFile]],
    roles: _Roles,
) -> dict[str, FileCount]:
    """The counting pass, where something is unknown without it; empty otherwise."""
    files = [file for found in splits.values() for file in found]
    counted = all(file.num_records is not None for file in files)
    if counted and (config.class_names is not None or _tfds_classes(layout, roles)):
        return {}
    return count_files(
        config.data, files, layout.compression, roles.label, roles.text, config.skip_broken
    )


def _tfds_classes(layout: Layout, roles: _Roles) -> tuple[str, ...] | None:
    # The names belong to that label only, not to another one that was mapped.
    if layout.tfds is None or layout.tfds.label_feature != roles.label:
        return None
    return layout.tfds.classes


def _classes(
    config: DataConfig, layout: Layout, counts: Mapping[str, FileCount], roles: _Roles
) -> tuple[str, ...]:
    named = config.class_names or _tfds_classes(layout, roles)
    if named is not None:
        if len(set(named)) < len(named):
            raise UserError(
                f"⟦--class_names⟧ received {','.join(named)!r}; expected every name once."
            )
        return tuple(named)
    labels = [label for count in counts.values() for label in count.labels]
    texts = {one.label: one.text for one in labels if one.text}
    ids = sorted({one.label for one in labels if isinstance(one.label, int)})
    if not labels:
        raise UserError(
            f"⟦--data⟧ received {config.data!r}, which holds no record with a label; expected "
            "TFRecords of labelled pictures."
        )
    if not ids:
        return tuple(sorted({str(one.label) for one in labels}))
    if ids[-1] - config.label_offset >= _MAX_CLASSES:
        raise UserError(
            f"⟦--data⟧ received {config.data!r}, where {roles.label} is up to {ids[-1]}; expected "
            "class ids from 0 or 1 on: name the right feature by "
            "⟦--feature_map label=FEATURE|feature_map={'label': 'FEATURE'}⟧."
        )
    if ids[0] == 1 and not config.label_offset:
        print(
            f"note: the labels of {config.data} begin at 1, so class 0 has no records; "
            "--label_offset 1 makes the first class number 0",
            file=sys.stderr,
        )
    # The texts that come with the ids, else the ids themselves.
    num_classes = max(1, ids[-1] + 1 - config.label_offset)
    names = [texts.get(i + config.label_offset, str(i)) for i in range(num_classes)]
    # ImageNet has two kinds of crane: their numbers tell them apart.
    times = Counter(names)
    return tuple(f"{n} {i}" if times[n] > 1 else n for i, n in enumerate(names))


def _check_labels(
    counts: Mapping[str, FileCount], feature: str, label_offset: int, classes: Sequence[str]
) -> None:
    """Compares every label with the classes; a wrong one is told with its file and record."""
    first, last = label_offset, label_offset + len(classes) - 1
    for path, count in counts.items():
        for label, _, record, _ in count.labels:
            if isinstance(label, str):
                if label not in classes:
                    raise UserError(
                        f"⟦--class_names⟧ received {','.join(classes)!r}, but record {record} of "
                        f"{path} has {feature} {label!r}; expected the name of every class."
                    )
            elif not first <= label <= last:
                if label == len(classes) and not label_offset:
                    remedy = "labels that begin at 1 need ⟦--label_offset 1|label_offset=1⟧"
                elif label < first:
                    remedy = "lower ⟦--label_offset⟧, or leave these records out"
                else:
                    remedy = "name every class by ⟦--class_names⟧"
                raise UserError(
                    f"⟦--label_offset⟧ received {label_offset}, and record {record} of {path} has "
                    f"{feature} {label}; expected {_range(first, last)} for "
                    f"{counted(len(classes), 'class')}: "
                    f"{remedy}."
                )


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _shard(
    file: ExternalFile, count: FileCount | None, config: DataConfig, classes: Sequence[str]
) -> Shard:
    if count is None:
        return Shard(file.path, file.num_records or 0, file.num_bytes)
    expected = count.num_records if file.num_records is None else file.num_records
    # A shard of another length is repaired like a broken record, if that many may be broken.
    if abs(expected - count.num_records) > config.skip_broken:
        raise UserError(
            f"⟦--data⟧ received a data set whose file {file.path} holds "
            f"{counted(count.num_records, 'record')}, not the {expected} it should; expected the "
            "file as it was written: copy it again."
        )
    # A broken record has no label: what is known of the classes then does not add up.
    if count.broken or expected != count.num_records:
        return Shard(file.path, expected, file.num_bytes)
    labels = {
        one.label
        if isinstance(one.label, str)
        else classes[one.label - config.label_offset]: one.num_records
        for one in count.labels
    }
    return Shard(file.path, expected, file.num_bytes, labels)


def _shard_by(splits: Mapping[str, Split]) -> str:
    """`class` where no shard mixes classes: the reader then has to mix many shards."""
    known = [shard.classes for split in splits.values() for shard in split.shards]
    if None in known or not known:
        return "balanced"
    single = all(len(classes or {}) <= 1 for classes in known)
    return "class" if single and len({name for c in known for name in c or {}}) > 1 else "balanced"


def _image(config: DataConfig, layout: Layout, feature: str) -> ImageSpec:
    height, width, depth = (None, None, None)
    if layout.tfds is not None and layout.tfds.image_feature == feature:
        height, width, depth = layout.tfds.image_shape
    # Transparency and the like is decoded to RGB.
    channels = 1 if depth == 1 else 3
    mean, std = (0.5,) * channels, (0.25,) * channels
    if height is not None and width is not None:
        return ImageSpec((height, width), False, channels, mean, std)
    return ImageSpec(config.image_size, True, channels, mean, std)


def _fingerprint(
    config: DataConfig,
    splits: Mapping[str, Split],
    files: Mapping[str, Sequence[ExternalFile]],
    classes: Sequence[str],
    roles: _Roles,
) -> str:
    """Of names, sizes, checksums at both ends and counts: a copy elsewhere has the same."""
    shards = {
        name: [
            [os.path.basename(f.path), f.num_bytes, f.ends.hex(), shard.num_records]
            for f, shard in zip(files[name], split.shards, strict=True)
        ]
        for name, split in splits.items()
    }
    known: dict[str, object] = {
        "splits": shards,
        "classes": list(classes),
        "features": [roles.image, roles.label],
        "label_offset": config.label_offset,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
