"""Data sets without a manifest: TFRecords that others wrote, opened as if we had built them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence

from imageshards import storage
from imageshards.errors import UserError
from imageshards.example import Values, decode_example
from imageshards.tfrecord import Record, scan_file
from trainer.config import DataConfig
from trainer.dataset.external_counts import FileCount, check_labels, count_files
from trainer.dataset.external_features import Roles, check_picture, find_roles, infer_features
from trainer.dataset.external_files import files_below
from trainer.dataset.external_layouts import FoundFile, Layout, find_layout
from trainer.dataset.spec import DataSet, ImageSpec, Shard, Split
from trainer.dataset.tensorflow_files import check_readable
from trainer.dataset.tfds import find_folder

# Enough to tell a fixed length from a variable one, little enough to be read at once.
_SAMPLE_RECORDS = 64
_SAMPLE_FILES = 4
# More than any data set of pictures has: a larger label is some other number.
_MAX_CLASSES = 100_000

_Features = Mapping[str, Values]


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
        check_readable(config.validation_data, "--validation_data")
    layout = find_layout(config)
    samples = _sample(config.data, layout)
    main = next((name for name in ("train", "training") if name in samples), min(samples))
    features = infer_features(samples[main])
    roles = find_roles(config.data, features, config.feature_map, _usual(layout))
    check_picture(config.data, roles.image, samples[main][0][roles.image])
    kept = _labelled(layout, samples, roles.label)
    counts = _counts(config, layout, kept, roles)
    classes = _classes(config, layout, counts, roles)
    check_labels(counts, roles.label, config.label_offset, classes)
    splits = {
        name: Split(name, tuple(_shard(f, counts.get(f.path), config, classes) for f in files))
        for name, files in kept.items()
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
        label_offset=config.label_offset,
        fingerprint=_fingerprint(config, splits, kept, classes, roles),
        has_manifest=False,
    )


def has_records(data: str) -> bool:
    """Whether `data` means TFRecords: a glob, a file, or a folder that holds some."""
    try:
        if find_folder(data) is not None or any(c in data for c in "*?["):
            return True
        return bool(files_below(data)) if storage.is_folder(data) else storage.exists(data)
    except OSError:
        return False


def _sample(data: str, layout: Layout) -> dict[str, list[_Features]]:
    """The first records of every split that has any."""
    samples = {}
    for name, files in layout.splits.items():
        examples: list[_Features] = []
        for file in files[:_SAMPLE_FILES]:
            records = scan_file(file.path, layout.compression)
            for record in itertools.islice(records, _SAMPLE_RECORDS // _SAMPLE_FILES):
                if isinstance(record, Record):
                    examples += _read(record)
        if examples:
            samples[name] = examples
    if not samples:
        raise UserError(
            f"--data received {data!r}, whose first files hold no tf.train.Example; expected "
            "TFRecords of tf.train.Example with a picture and a label."
        )
    return samples


def _read(record: Record) -> list[_Features]:
    try:
        found = decode_example(record.payload)
    except ValueError:
        return []
    return [found] if found else []


def _usual(layout: Layout) -> dict[str, str | None]:
    if layout.tfds is None:
        return {}
    return {"image": layout.tfds.image_feature, "label": layout.tfds.label_feature}


def _labelled(
    layout: Layout, samples: Mapping[str, Sequence[_Features]], label: str
) -> dict[str, tuple[FoundFile, ...]]:
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
    splits: Mapping[str, Sequence[FoundFile]],
    roles: Roles,
) -> dict[str, FileCount]:
    """The counting pass, where something is unknown without it; empty otherwise."""
    files = [file for found in splits.values() for file in found]
    counted = all(file.num_records is not None for file in files)
    if counted and (config.class_names is not None or _tfds_classes(layout, roles)):
        return {}
    return count_files(
        config.data, files, layout.compression, roles.label, roles.text, config.skip_broken
    )


def _tfds_classes(layout: Layout, roles: Roles) -> tuple[str, ...] | None:
    # The names belong to that label only, not to another one that was mapped.
    if layout.tfds is None or layout.tfds.label_feature != roles.label:
        return None
    return layout.tfds.classes


def _classes(
    config: DataConfig, layout: Layout, counts: Mapping[str, FileCount], roles: Roles
) -> tuple[str, ...]:
    named = config.class_names or _tfds_classes(layout, roles)
    if named is not None:
        if len(set(named)) < len(named):
            raise UserError(
                f"--class_names received {','.join(named)!r}; expected every name once."
            )
        return tuple(named)
    found = {label for count in counts.values() for label in count.labels}
    ids = sorted(label for label in found if isinstance(label, int))
    if not found:
        raise UserError(
            f"--data received {config.data!r}, which holds no record with a label; expected "
            "TFRecords of labelled pictures."
        )
    if not ids:
        return tuple(sorted(str(label) for label in found))
    if ids[-1] - config.label_offset >= _MAX_CLASSES:
        raise UserError(
            f"--data received {config.data!r}, where {roles.label} is up to {ids[-1]}; expected "
            "class ids from 0 or 1 on: name the right feature by --feature_map label=FEATURE."
        )
    if ids[0] == 1 and not config.label_offset:
        print(
            f"note: the labels of {config.data} begin at 1, so class 0 has no records; "
            "--label_offset 1 makes the first class number 0",
            file=sys.stderr,
        )
    return _numbered_classes(max(1, ids[-1] + 1 - config.label_offset), counts, config)


def _numbered_classes(
    num_classes: int, counts: Mapping[str, FileCount], config: DataConfig
) -> tuple[str, ...]:
    """The texts that come with the ids, else the ids themselves."""
    texts = {
        label - config.label_offset: text
        for count in counts.values()
        for label, text in count.texts.items()
        if text and isinstance(label, int)
    }
    names = [texts.get(i, str(i)) for i in range(num_classes)]
    # ImageNet has two kinds of crane: their numbers tell them apart.
    return tuple(f"{n} {i}" if names.count(n) > 1 else n for i, n in enumerate(names))


def _shard(
    file: FoundFile, count: FileCount | None, config: DataConfig, classes: Sequence[str]
) -> Shard:
    if count is None:
        return Shard(file.path, file.num_records or 0, file.num_bytes)
    expected = count.num_records if file.num_records is None else file.num_records
    # A shard of another length is repaired like a broken record, if that many may be broken.
    if abs(expected - count.num_records) > config.skip_broken:
        raise UserError(
            f"--data received a data set whose file {file.path} holds {count.num_records} "
            f"records, not the {expected} it should; expected the file as it was "
            "written: copy it again."
        )
    labels = {
        label if isinstance(label, str) else classes[label - config.label_offset]: n
        for label, n in count.labels.items()
    }
    # A broken record has no label: what is known of the classes then does not add up.
    complete = not count.broken and expected == count.num_records
    return Shard(file.path, expected, file.num_bytes, labels if complete else None)


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
    files: Mapping[str, Sequence[FoundFile]],
    classes: Sequence[str],
    roles: Roles,
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
