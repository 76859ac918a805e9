"""`adopt`: TFRecords that others wrote are looked at once, and get a manifest and an index."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from imageshards import storage
from imageshards.adopt.classes import name_classes, name_hot_classes
from imageshards.adopt.features import AdoptOptions, check_picture, features_of, find_roles
from imageshards.adopt.files import check_plain, find_splits, folder_from
from imageshards.adopt.scan import ScannedFile, features_in, scan_files
from imageshards.adopt.tfds import TfdsFolder, open_tfds
from imageshards.errors import Arg, UserError
from imageshards.example import Values
from imageshards.index import encode_index, index_table
from imageshards.jpeg import FORMATS
from imageshards.manifest import (
    FORMAT_VERSION,
    INDEX_NAME,
    MANIFEST_NAME,
    NONE,
    ONE,
    SEVERAL,
    SPLIT_NAME,
    TRAIN_NAMES,
    Adopted,
    FeatureSpec,
    Image,
    Manifest,
    Shard,
    Source,
    Split,
    common_root,
    outside_folders,
    publish_manifest,
)
from imageshards.text import counted
from imageshards.tfrecord import RecordError, read_records
from imageshards.typed import convert


def adopt(
    directory: str, output: str | None = None, options: AdoptOptions | None = None
) -> Manifest:
    """Writes the manifest and the index of TFRecords.

    Args:
        directory: A folder of TFRecords or of TFDS.
        output: Where manifest and index are written; None for beside the files.
        options: What the files do not say.

    Returns:
        The manifest.

    Raises:
        UserError: The files, the features or the labels are not what a trainer needs.
    """
    output = output or directory
    try:
        manifest, indexes = _adopt(directory, output, options or AdoptOptions())
        # A manifest never stands beside the index of another one, whenever this process is killed.
        storage.delete([storage.join(output, MANIFEST_NAME)])
        storage.delete_unfinished(output, MANIFEST_NAME, INDEX_NAME)
        for file, data in indexes.items():
            storage.write(storage.join(output, file), data)
        return publish_manifest(output, manifest)
    except RecordError as e:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, of which this is damaged: {str(e).rstrip('.')}",
            expected="whole TFRecords",
            remedy="copy the file again, or name the others by " + Arg("split", "NAME=GLOB"),
        ) from e
    except OSError as e:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, where {e.filename or 'a file'} cannot be read or written "
            f"({e.strerror or e})",
            expected="TFRecords, and a folder that may be written",
            remedy="copy them again, or give another folder by " + Arg("output"),
        ) from e


def _adopt(directory: str, output: str, options: AdoptOptions) -> tuple[Manifest, dict[str, bytes]]:
    """Returns the manifest, and the bytes of each index file that it names."""
    _check_no_build(output)
    tfds = open_tfds(directory)
    if tfds is not None and not options.splits:
        splits = {name: [*lengths] for name, lengths in tfds.splits.items()}
    else:
        splits = find_splits(directory, options.splits)
    for name in splits:
        if not SPLIT_NAME.fullmatch(name):
            expected = "the name of a split: letters, digits and underscores"
            raise UserError(argument="split", received=repr(name), expected=expected)
    check_plain([path for paths in splits.values() for path in paths])
    firsts = {name: first for name, paths in splits.items() if (first := _first_example(paths))}
    if not firsts:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, whose files hold no record",
            expected="TFRecords of tf.train.Example with a picture and a label",
        )
    main = next((name for name in TRAIN_NAMES if name in firsts), min(firsts))
    roles = find_roles(directory, options, tfds, firsts[main])
    check_picture(directory, roles.image, firsts[main][roles.image])
    splits = _labelled(splits, firsts, roles.label_features)
    paths = [path for paths in splits.values() for path in paths]
    files = scan_files(paths, roles, options.max_pixels)
    if tfds is not None:
        _check_lengths(tfds, files)
    features = features_of([file.lengths for file in files.values()], _num_records(files))
    _check_forms(directory, features, roles)
    label, classes = _name_labels(options, tfds, files, features, roles)
    adopted = roles if roles.label else msgspec.structs.replace(roles, labels=label)
    try:
        # A file system allows names that no manifest may have.
        described, indexes = _describe(output, splits, files, classes, features, label)
        bytes_of = [
            [name, *(shard.sha256 for shard in split.shards)] for name, split in described.items()
        ]
        known = [bytes_of, [*classes], options.label_offset, msgspec.to_builtins(adopted)]
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            splits=described,
            classes=[*classes],
            first_label=options.label_offset,
            features=features,
            image=_image(tfds, roles.image, files),
            source=Source(_formats(files)),
            warnings=_undecodable(files),
            adopted=adopted,
            listed=_num_records(files),
            rejects={},
            fingerprint=hashlib.sha256(json.dumps(known).encode()).hexdigest(),
        )
        convert(msgspec.to_builtins(manifest), Manifest)
    except ValueError as e:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, whose manifest.json would not be one: {e}",
        ) from e
    outside = outside_folders(manifest)
    if outside and not common_root(outside):
        raise UserError(
            argument="split",
            received=f"files in {outside[0]!r} and in {outside[-1]!r}",
            expected="all of them below one folder, or in one bucket",
            remedy="adopt them one by one",
        )
    return manifest, indexes


def _check_no_build(output: str) -> None:
    """Refuses to replace the manifest of a build. One of `adopt` is replaced even if damaged."""
    try:
        found = json.loads(storage.read(storage.join(output, MANIFEST_NAME)))
    except FileNotFoundError:
        return
    except ValueError:
        found = None
    if not isinstance(found, dict) or "adopted" not in found:
        raise UserError(
            argument="DIR",
            received=f"{output!r}, whose {MANIFEST_NAME} imageshards adopt did not write",
            expected="TFRecords of others, as those of a build need no adopt",
            remedy="give another folder by " + Arg("output") + ", or delete the file if it is "
            "damaged",
        )


def _first_example(paths: Sequence[str]) -> dict[str, Values] | None:
    found = (features_in(path, record) for path in paths for record in read_records(path))
    return next(found, None)


def _labelled(
    splits: Mapping[str, list[str]],
    firsts: Mapping[str, Mapping[str, Values]],
    labels: Sequence[str],
) -> dict[str, list[str]]:
    """Splits with labels: those of a competition's test have none."""
    without = [name for name, first in firsts.items() if not {*labels} <= first.keys()]
    for name in without:
        missing = next(label for label in labels if label not in firsts[name])
        print(
            f"note: the split {name} is left out, since its records have no feature {missing}",
            file=sys.stderr,
        )
    return {name: paths for name, paths in splits.items() if name not in without}


def _check_lengths(tfds: TfdsFolder, files: Mapping[str, ScannedFile]) -> None:
    """A file that ends between two records has no damage; TFDS says how many there were."""
    for lengths in tfds.splits.values():
        for path, length in lengths.items():
            if path in files and len(files[path].rows) != length:
                held = counted(len(files[path].rows), "record")
                raise UserError(
                    argument="DIR",
                    received=f"a dataset whose file {path} holds {held}, not the {length} it "
                    "should",
                    expected="the file as it was written",
                    remedy="copy it again",
                )


def _num_records(files: Mapping[str, ScannedFile]) -> int:
    return sum(len(file.rows) for file in files.values())


def _check_forms(directory: str, features: Mapping[str, FeatureSpec], roles: Adopted) -> None:
    """Refuses pictures and labels that have another form in some records."""
    for name in (roles.image, *roles.label_features):
        if name not in features or features[name].shape is None:
            raise UserError(
                argument="DIR",
                received=f"{directory!r}, whose feature {name} has another type or number of "
                "values in some records",
                expected="the same in all",
                remedy="write the records again, or name another feature by " + Arg("feature_map"),
            )


def _name_labels(
    options: AdoptOptions,
    tfds: TfdsFolder | None,
    files: Mapping[str, ScannedFile],
    features: Mapping[str, FeatureSpec],
    roles: Adopted,
) -> tuple[str, Sequence[str]]:
    """How many labels a record has, and the names of all; these are put into the rows."""
    if roles.label:
        # TFDS's names belong to its label only, not to another one that was mapped.
        of_tfds = tfds.classes if tfds is not None and tfds.label_feature == roles.label else None
        names = options.class_names or of_tfds
        return ONE, name_classes(files, names, options.label_offset, roles.label)
    if options.label_offset:
        raise UserError(
            argument="label_offset",
            received=f"{options.label_offset}, but there are no class ids",
            expected="0",
            remedy="leave it out",
        )
    if not roles.hot:
        if options.class_names:
            raise UserError(
                argument="class_names",
                received=f"{','.join(options.class_names)!r} with " + Arg("label", "none"),
                expected="no names",
                remedy="leave one of them out",
            )
        return NONE, ()
    count = sum(math.prod(features[name].shape or ()) for name in roles.hot)
    columns = roles.hot if len(roles.hot) == count > 1 else tuple(map(str, range(count)))
    classes = options.class_names or columns
    if len(classes) != count:
        raise UserError(
            argument="class_names",
            received=f"{counted(len(classes), 'name')}, but {', '.join(roles.hot)} has "
            f"{counted(count, 'value')} in each record",
            expected="a name for each",
        )
    return name_hot_classes(files, classes, options.label == SEVERAL), classes


def _describe(
    output: str,
    splits: Mapping[str, Sequence[str]],
    files: Mapping[str, ScannedFile],
    classes: Sequence[str],
    features: Mapping[str, FeatureSpec],
    label: str,
) -> tuple[dict[str, Split], dict[str, bytes]]:
    """Returns the splits of the manifest, and the bytes of each index file that they name."""
    indexes: dict[str, bytes] = {}

    def shard(split: str, number: int, path: str) -> Shard:
        rows, folder = files[path].rows, folder_from(output, path)
        names = rows.columns["class_name"]
        if label != ONE:
            names = [name for several in names for name in several or ()]
        counts, file = Counter(names), storage.name_of(path)
        name = storage.join(folder, file) if folder else file
        table = index_table(rows, split, name, features, label)
        # Files of two folders may have one name.
        index, data = encode_index(f"{split}-{number:05d}", table)
        indexes[index.file] = data
        return Shard(
            file=file,
            folder=folder,
            num_records=len(rows),
            num_bytes=sum(rows.columns["num_bytes"]),
            sha256=files[path].sha256,
            classes={name: counts[name] for name in classes if counts[name]},
            index=index,
        )

    described = {
        name: [shard(name, number, path) for number, path in enumerate(paths)]
        for name, paths in splits.items()
    }
    return {
        name: Split(sum(one.num_records for one in shards), shards)
        for name, shards in described.items()
    }, indexes


def _formats(files: Mapping[str, ScannedFile]) -> dict[str, int]:
    """Format of pictures that the trainer decodes → records."""
    totals = sum((file.formats for file in files.values()), Counter[str]())
    return {name: totals[name] for name in FORMATS if totals[name]}


def _undecodable(files: Mapping[str, ScannedFile]) -> list[str]:
    """A sentence about pictures that cannot be decoded, which is printed, too; or none."""
    places = [(path, number) for path, file in files.items() for number in file.undecodable]
    if not places:
        return []
    path, number = places[0]
    sentence = (
        f"{counted(len(places), 'picture')} cannot be decoded, the first in record {number} of "
        f"{path}: training ends there, so write such files again without them."
    )
    print(f"note: {sentence}", file=sys.stderr)
    return [sentence]


def _image(tfds: TfdsFolder | None, feature: str, files: Mapping[str, ScannedFile]) -> Image:
    grey = tfds is not None and tfds.image_feature == feature and tfds.channels == 1
    # Transparency and the like is decoded to RGB.
    channels: Literal[1, 3] = 1 if grey else 3
    columns = [file.rows.columns for file in files.values()]
    sizes = {size for one in columns for size in zip(one["height"], one["width"], strict=True)}
    if len(sizes) == 1 and min(sizes) > (0, 0):
        return Image(size=min(sizes), mode="exact", channels=channels)
    return Image(size=None, mode="none", channels=channels)
