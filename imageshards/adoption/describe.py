"""Describes existing TFRecords: reads them once, and makes their manifest and their index."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from imageshards import storage
from imageshards.adoption.features import AdoptOptions, find_roles
from imageshards.adoption.files import TfdsFolder, find_splits, open_tfds, root_of
from imageshards.adoption.labels import name_classes, name_hot_classes, name_keys
from imageshards.adoption.scan import ScannedFile, scan_files
from imageshards.commands.options import refuse_idle
from imageshards.errors import Arg, UserError
from imageshards.example import Dtype, Values, decode_record
from imageshards.index import encode_index, index_file, index_table
from imageshards.jpeg import FORMATS
from imageshards.manifest import (
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
)
from imageshards.manifest.file import FORMAT_VERSION, common_root, fingerprint_of
from imageshards.text import counted
from imageshards.tfrecord import read_records
from imageshards.typed import convert


def describe(
    directory: str, output: str, options: AdoptOptions
) -> tuple[Manifest, dict[str, bytes]]:
    """Returns the manifest, and the bytes of each index file."""
    tfds = open_tfds(directory)
    splits = _splits_of(directory, output, options, tfds)
    roles = _roles_in(directory, options, tfds, splits)
    paths = [path for paths in splits.values() for path in paths]
    files = scan_files(paths, roles, int(options.max_image_mpx * 1e6))
    _check_lengths(tfds, files)
    if roles.label:
        _leave_out_unlabelled(roles.label, splits, files)
    name_keys(files, root_of(directory, files))
    num_records = sum(len(file.rows) for file in files.values())
    features = _features_of(directory, files, roles, num_records)
    label, classes = _name_labels(options, tfds, files, features, roles)
    # Only the scanned values show whether features of 0s and 1s are one class or several labels.
    adopted = roles if roles.label else msgspec.structs.replace(roles, labels=label)
    try:
        # A file system allows names that a manifest does not.
        described, indexes = _describe(output, splits, files, classes, features, label)
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
    return manifest, indexes


def _splits_of(
    directory: str, output: str, options: AdoptOptions, tfds: TfdsFolder
) -> dict[str, list[str]]:
    """Finds the files of each split, and checks the names of the splits and the folders."""
    if tfds.splits and not options.split:
        splits = {name: [*lengths] for name, lengths in tfds.splits.items()}
    else:
        splits = find_splits(directory, options.split)
    for name in splits:
        if not SPLIT_NAME.fullmatch(name):
            expected = "the name of a split: letters, digits and underscores"
            raise UserError(argument="split", received=repr(name), expected=expected)
    folders = [storage.parent_of(path) for paths in splits.values() for path in paths]
    outside = [folder for folder in folders if not f"{folder}/".startswith(f"{output}/")]
    # `--records_root` of the commands that read the dataset takes a single folder.
    if outside and not common_root(outside):
        raise UserError(
            argument="split",
            received=f"files in {outside[0]!r} and in {outside[-1]!r}",
            expected="all of them below one folder, or in one bucket",
            remedy="adopt them one by one",
        )
    return splits


def _roles_in(
    directory: str, options: AdoptOptions, tfds: TfdsFolder, splits: dict[str, list[str]]
) -> Roles:
    """Finds the features of the records, and leaves out the splits that lack the labels."""
    # The first record of each split shows the features; `scan_files` checks all further records.
    firsts: dict[str, dict[str, Values]] = {}
    for name, paths in splits.items():
        examples = (decode_record(path, record) for path in paths for record in read_records(path))
        if first := next(examples, None):
            firsts[name] = first
    if not firsts:
        raise UserError(
            argument="DIR",
            received=f"{directory!r}, whose files hold no record",
            expected="TFRecords of tf.train.Example with a picture and a label",
        )
    # The training split decides, because a test split may lack labels.
    main = next((name for name in TRAIN_NAMES if name in firsts), min(firsts))
    roles = find_roles(directory, options, tfds, firsts[main])
    for name, first in firsts.items():
        # A competition's test split has no labels.
        if missing := [label for label in roles.label_features if label not in first]:
            _note_left_out(name, f"have no feature {missing[0]}")
            del splits[name]
    return roles


def _leave_out_unlabelled(
    label: str, splits: dict[str, list[str]], files: dict[str, ScannedFile]
) -> None:
    """Leaves out the splits in which each record has the label -1, as TFDS marks hidden labels."""
    for name, paths in list(splits.items()):
        values = {each for path in paths for each in files[path].rows.columns["label"]}
        # Without any other label, `name_classes` refuses the records.
        if values == {-1} and len(splits) > 1:
            _note_left_out(name, f"all have {label} -1, so no label")
            for path in splits.pop(name):
                del files[path]


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


def _features_of(
    directory: str, files: Mapping[str, ScannedFile], roles: Roles, num_records: int
) -> dict[str, FeatureSpec]:
    """Returns dtype and shape of every feature for the manifest.

    One value in each record is a scalar, an equal number of values a fixed length, and anything
    else a variable length. Features without values or with mixed types are left out; pictures and
    labels must have one type and number of values.
    """
    found: dict[str, Counter[tuple[Dtype | None, int]]] = defaultdict(Counter)
    for file in files.values():
        for (name, dtype, size), records in file.lengths.items():
            found[name][dtype, size] += records
    specs = {}
    for name in sorted(found):
        dtypes = {dtype for dtype, _ in found[name] if dtype}
        sizes = {size for _, size in found[name]}
        if len(dtypes) == 1:
            is_fixed = len(sizes) == 1 and found[name].total() == num_records
            shape = (() if sizes == {1} else (*sizes,)) if is_fixed else None
            specs[name] = FeatureSpec(dtypes.pop(), shape)
    for name in (roles.image, *roles.label_features):
        if name not in specs or specs[name].shape is None:
            raise UserError(
                argument="DIR",
                received=f"{directory!r}, whose feature {name} has another type or number of "
                "values in some records",
                expected="the same in all",
                remedy="write the records again, or name another feature by " + Arg("feature_map"),
            )
    return specs


def _name_labels(
    options: AdoptOptions,
    tfds: TfdsFolder,
    files: Mapping[str, ScannedFile],
    features: Mapping[str, FeatureSpec],
    roles: Roles,
) -> tuple[str, Sequence[str]]:
    """Names the classes in the rows; returns the labels per record, and all class names."""
    if roles.label:
        # TFDS knows the class names of its own label feature only.
        of_tfds = tfds.classes if tfds.label_feature == roles.label else None
        names = options.class_names or of_tfds
        return ONE, name_classes(files, names, options.label_offset, roles.label)
    refuse_idle(options, "label_offset", "where records have no class ids", "a feature of ids")
    if not roles.hot:
        refuse_idle(options, "class_names", "with " + Arg("label", NONE), "records with labels")
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
) -> tuple[dict[str, Split], dict[str, bytes]]:
    """Returns the splits of the manifest, and the bytes of each index file."""
    indexes: dict[str, bytes] = {}

    def shard(split: str, number: int, path: str) -> Shard:
        rows, folder, file = files[path].rows, storage.parent_of(path), storage.name_of(path)
        folder = "" if folder == output else folder.removeprefix(f"{output}/")
        names = rows.columns["class_name"]
        if label != ONE:
            names = [name for several in names for name in several or ()]
        counts = Counter(names)
        name = storage.join(folder, file) if folder else file
        table = index_table(rows, split, name, features, label)
        # The number keeps index files apart if files in two folders have the same name. The hash
        # keeps them apart from those of the dataset before, which stays until it is replaced.
        index, data = encode_index(f"{split}-{number:05d}", table)
        of_index = index_file(f"{split}-{number:05d}-{index.sha256[:8]}")
        indexes[of_index] = data
        return Shard(
            file=file,
            folder=folder,
            num_records=len(rows),
            num_bytes=sum(rows.columns["num_bytes"]),
            sha256=files[path].sha256,
            classes={name: counts[name] for name in classes if counts[name]},
            index=msgspec.structs.replace(index, file=of_index),
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


def _image(tfds: TfdsFolder, feature: str, files: Mapping[str, ScannedFile]) -> Image:
    grey = tfds.image_feature == feature and tfds.channels == 1
    # The trainer decodes all but grey pictures to RGB, transparent ones included.
    channels: Literal[1, 3] = 1 if grey else 3
    columns = [file.rows.columns for file in files.values()]
    sizes = {size for one in columns for size in zip(one["height"], one["width"], strict=True)}
    # A picture that cannot be decoded has the size 0.
    if len(sizes) == 1 and min(sizes) > (0, 0):
        return Image(size=min(sizes), mode="exact", channels=channels)
    return Image(size=None, mode="none", channels=channels)
