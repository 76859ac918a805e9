"""Describes existing TFRecords: reads them once, and makes their manifest and their index."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from imageshards import storage
from imageshards.adopt.features import (
    AdoptOptions,
    check_picture,
    features_of,
    find_roles,
    name_classes,
    name_hot_classes,
    name_keys,
)
from imageshards.adopt.files import (
    TfdsFolder,
    check_plain,
    find_splits,
    folder_from,
    open_tfds,
    root_of,
)
from imageshards.adopt.scan import ScannedFile, features_in, scan_files
from imageshards.errors import Arg, UserError
from imageshards.example import Values
from imageshards.index import encode_index, index_file, index_table
from imageshards.jpeg import FORMATS
from imageshards.manifest import (
    FORMAT_VERSION,
    NONE,
    ONE,
    SEVERAL,
    SPLIT_NAME,
    TRAIN_NAMES,
    FeatureSpec,
    Image,
    Manifest,
    Roles,
    Shard,
    Source,
    Split,
    common_root,
    fingerprint_of,
    outside_folders,
)
from imageshards.text import counted
from imageshards.tfrecord import read_records
from imageshards.typed import convert


def describe(
    directory: str, output: str, options: AdoptOptions, known: Mapping[str, str]
) -> tuple[Manifest, dict[str, bytes]]:
    """Returns the manifest, and the bytes of each index file.

    `known` maps the index files of the dataset before, which stay until it is replaced, to their
    SHA-256.
    """
    tfds = open_tfds(directory)
    splits = _splits_of(directory, options, tfds)
    roles = _roles_in(directory, options, tfds, splits)
    paths = [path for paths in splits.values() for path in paths]
    files = scan_files(paths, roles, options.max_pixels)
    if tfds is not None:
        _check_lengths(tfds, files)
    if roles.label:
        _leave_out_unlabelled(directory, roles.label, splits, files)
    name_keys(files, root_of(directory, files))
    num_records = sum(len(file.rows) for file in files.values())
    features = features_of([file.lengths for file in files.values()], num_records)
    _check_forms(directory, features, roles)
    label, classes = _name_labels(options, tfds, files, features, roles)
    # Only the scanned values show whether features of 0s and 1s are one class or several labels.
    adopted = roles if roles.label else msgspec.structs.replace(roles, labels=label)
    try:
        # A file system allows names that a manifest does not.
        described, indexes = _describe(output, splits, files, classes, features, label, known)
        formats = sum((file.formats for file in files.values()), Counter[str]())
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            splits=described,
            classes=[*classes],
            first_label=options.label_offset,
            features=features,
            image=_image(tfds, roles.image, files),
            source=Source({name: formats[name] for name in FORMATS if formats[name]}),
            warnings=_undecodable(files),
            adopted=adopted,
            listed=num_records,
            rejects={},
            fingerprint="",
        )
        manifest = msgspec.structs.replace(manifest, fingerprint=fingerprint_of(manifest))
        # A loaded manifest is checked, so this one must pass the same checks before it is written.
        convert(msgspec.to_builtins(manifest), Manifest)
    except ValueError as e:
        received = f"{directory!r}, whose manifest.json would be invalid: {e}"
        raise UserError(argument="DIR", received=received) from e
    _check_outside(outside_folders(manifest))
    return manifest, indexes


def _check_outside(folders: Sequence[str]) -> None:
    # `--records_root` of the commands that read the dataset takes a single folder.
    if folders and not common_root(folders):
        raise UserError(
            argument="split",
            received=f"files in {folders[0]!r} and in {folders[-1]!r}",
            expected="all of them below one folder, or in one bucket",
            remedy="adopt them one by one",
        )


def _splits_of(
    directory: str, options: AdoptOptions, tfds: TfdsFolder | None
) -> dict[str, list[str]]:
    """Finds the files of each split, and checks names of splits and forms of files."""
    # `--split` overrides the splits of TFDS.
    if tfds is not None and not options.splits:
        splits = {name: [*lengths] for name, lengths in tfds.splits.items()}
    else:
        splits = find_splits(directory, options.splits)
    for name in splits:
        if not SPLIT_NAME.fullmatch(name):
            expected = "the name of a split: letters, digits and underscores"
            raise UserError(argument="split", received=repr(name), expected=expected)
    check_plain([path for paths in splits.values() for path in paths])
    return splits


def _roles_in(
    directory: str,
    options: AdoptOptions,
    tfds: TfdsFolder | None,
    splits: dict[str, list[str]],
) -> Roles:
    """Finds the features of the records, and leaves out the splits that lack the labels."""
    firsts = _first_examples(directory, splits)
    # The training split decides, because a test split may lack labels.
    main = next((name for name in TRAIN_NAMES if name in firsts), min(firsts))
    roles = find_roles(directory, options, tfds, firsts[main])
    check_picture(directory, roles.image, firsts[main][roles.image])
    for name, first in firsts.items():
        # A competition's test split has no labels.
        if missing := [label for label in roles.label_features if label not in first]:
            _note_left_out(name, f"have no feature {missing[0]}")
            del splits[name]
    return roles


def _first_examples(
    directory: str, splits: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Values]]:
    """Reads the first record of each split that has records; refuses a folder without any."""
    # The first record of each split shows the features; `scan_files` checks all further records.
    firsts: dict[str, dict[str, Values]] = {}
    for name, paths in splits.items():
        examples = (features_in(path, record) for path in paths for record in read_records(path))
        if first := next(examples, None):
            firsts[name] = first
    if not firsts:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, whose files hold no record",
            expected="TFRecords of tf.train.Example with a picture and a label",
        )
    return firsts


def _leave_out_unlabelled(
    directory: str, label: str, splits: dict[str, list[str]], files: dict[str, ScannedFile]
) -> None:
    """Leaves out the splits in which each record has the label -1, as TFDS marks hidden labels."""
    for name, paths in list(splits.items()):
        if {each for path in paths for each in files[path].rows.columns["label"]} != {-1}:
            continue
        _note_left_out(name, f"all have {label} -1, so no label")
        del splits[name]
        for path in paths:
            del files[path]
    if not splits:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, whose records all have {label} -1",
            expected="class ids from 0 on",
            remedy="adopt them without labels by " + Arg("label", NONE),
        )


def _note_left_out(split: str, why: str) -> None:
    print(f"note: the split {split} is left out, since its records {why}", file=sys.stderr)


def _check_lengths(tfds: TfdsFolder, files: Mapping[str, ScannedFile]) -> None:
    """Compares the number of records in each file with the description of TFDS."""
    for path, length in itertools.chain(*(each.items() for each in tfds.splits.values())):
        # A file that was cut between two records looks undamaged.
        if path in files and len(files[path].rows) != length:
            held = counted(len(files[path].rows), "record")
            raise UserError(
                argument="DIR",
                received=f"a dataset whose file {path} holds {held} instead of {length}",
                expected="the file as it was written",
                remedy="copy it again",
            )


def _check_forms(directory: str, features: Mapping[str, FeatureSpec], roles: Roles) -> None:
    """Refuses pictures and labels whose type or number of values varies."""
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
    roles: Roles,
) -> tuple[str, Sequence[str]]:
    """Names the classes in the rows; returns the labels per record, and all class names."""
    if roles.label:
        # TFDS knows the class names of its own label feature only.
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
    # Several features with a value each name their classes; the values of a vector get numbers.
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
    known: Mapping[str, str],
) -> tuple[dict[str, Split], dict[str, bytes]]:
    """Returns the splits of the manifest, and the bytes of each index file (see `describe`)."""
    indexes: dict[str, bytes] = {}

    def shard(split: str, number: int, path: str) -> Shard:
        rows, folder = files[path].rows, folder_from(output, path)
        names = rows.columns["class_name"]
        if label != ONE:
            names = [name for several in names for name in several or ()]
        counts, file = Counter(names), storage.name_of(path)
        name = storage.join(folder, file) if folder else file
        table = index_table(rows, split, name, features, label)
        # The number keeps index files apart if files in two folders have the same name.
        index, data = encode_index(f"{split}-{number:05d}", table)
        if known.get(index.file, index.sha256) != index.sha256:
            other = index_file(f"{split}-{number:05d}-{index.sha256[:8]}")
            index = msgspec.structs.replace(index, file=other)
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

    described = {}
    for name, paths in splits.items():
        shards = [shard(name, number, path) for number, path in enumerate(paths)]
        described[name] = Split(sum(one.num_records for one in shards), shards)
    return described, indexes


def _undecodable(files: Mapping[str, ScannedFile]) -> list[str]:
    """Prints and returns a warning about pictures that cannot be decoded, if there are any."""
    places = [(path, number) for path, file in files.items() for number in file.undecodable]
    if not places:
        return []
    path, number = places[0]
    sentence = (
        f"{counted(len(places), 'picture')} cannot be decoded, the first in record {number} of "
        f"{path}: training ends at such a record, so write the files again without the pictures."
    )
    print(f"note: {sentence}", file=sys.stderr)
    return [sentence]


def _image(tfds: TfdsFolder | None, feature: str, files: Mapping[str, ScannedFile]) -> Image:
    grey = tfds is not None and tfds.image_feature == feature and tfds.channels == 1
    # The trainer decodes all but grey pictures to RGB, transparent ones included.
    channels: Literal[1, 3] = 1 if grey else 3
    columns = [file.rows.columns for file in files.values()]
    sizes = {size for one in columns for size in zip(one["height"], one["width"], strict=True)}
    # A picture that cannot be decoded has the size 0.
    if len(sizes) == 1 and min(sizes) > (0, 0):
        return Image(size=min(sizes), mode="exact", channels=channels)
    return Image(size=None, mode="none", channels=channels)
