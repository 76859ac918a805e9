"""`adopt`: TFRecords that others wrote are looked at once, and get a manifest and an index."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from imageshards import manifest, storage
from imageshards.adopt.files import find_splits, folder_from
from imageshards.adopt.scan import (
    Label,
    Roles,
    ScannedFile,
    add_foreign_row,
    add_own_row,
    check_kind,
    scan_all,
)
from imageshards.adopt.tfds import TfdsFolder, find_folder, open_tfds
from imageshards.errors import UserError
from imageshards.example import Values, decode_example, dtype_of
from imageshards.form import FormError
from imageshards.index import has_index, index_table, write_index
from imageshards.manifest import TRAIN_NAMES
from imageshards.text import counted
from imageshards.tfrecord import Record, scan_file

# More than any data set of pictures has: a larger label is some other number.
_MAX_CLASSES = 100_000
_SAMPLE_RECORDS = 16
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


def adopt(
    directory: str, output: str | None = None, options: AdoptOptions | None = None
) -> dict[str, Any]:
    """Writes the manifest and the index of TFRecords; of a data set with a manifest its index.

    Args:
        directory: A folder of TFRecords or of TFDS, or a data set of ours without an index.
        output: Where manifest and index are written; None for beside the files.
        options: What the files do not say.

    Returns:
        The manifest.

    Raises:
        UserError: The files, the features or the labels are not what a trainer needs.
    """
    options = options or AdoptOptions()
    output = output or directory
    before = _manifest_in(output)
    if before is not None and "adopted" not in before:
        return _add_index(directory, output, before, options)
    folder = find_folder(directory)
    tfds = None if folder is None else open_tfds(folder)
    if tfds is not None and not options.splits:
        splits = {name: [path for path, _ in shards] for name, shards in tfds.splits.items()}
    else:
        splits = find_splits(directory, options.splits)
    samples = {name: found for name, paths in splits.items() if (found := _sample(paths))}
    if not samples:
        raise UserError(
            f"DIR received {directory!r}, whose first files hold no tf.train.Example; expected "
            "plain TFRecords of tf.train.Example with a picture and a label."
        )
    main = next((name for name in TRAIN_NAMES if name in samples), min(samples))
    roles = _find_roles(directory, options, tfds, _specs(*map(_lengths, samples[main])))
    _check_picture(directory, roles.image, samples[main][0][roles.image])
    splits = _labelled(splits, samples, roles.label)
    files = scan_all(
        [path for paths in splits.values() for path in paths],
        functools.partial(add_foreign_row, roles=roles),
    )
    _check_lengths(tfds, files)
    classes = _classes(directory, options, tfds, files, roles)
    _check_labels(files, roles.label, options.label_offset, classes)
    if not _texts_agree(files, classes, options.label_offset):
        roles = roles._replace(text=None)
    _name_classes(files, classes, options.label_offset)
    described = _described(output, options, tfds, splits, files, classes, roles)
    try:
        manifest.check_form(described)
    except FormError as e:
        raise UserError(
            f"DIR received {directory!r}, whose manifest.json would say what none can: {e}."
        ) from e
    _write_index(output, described, splits, files)
    manifest.write_manifest(output, described)
    return described


def _manifest_in(output: str) -> dict[str, Any] | None:
    if not storage.exists(storage.join(output, manifest.MANIFEST_NAME)):
        return None
    return manifest.load_manifest(output, "DIR", adopted=True)


def _add_index(
    directory: str, output: str, before: dict[str, Any], options: AdoptOptions
) -> dict[str, Any]:
    """Gives a data set of an older build its index."""
    if output != directory:
        raise UserError(
            f"--output received {output!r}, a data set that imageshards build wrote; expected a "
            "new or empty folder."
        )
    if options != AdoptOptions() or has_index(before):
        raise UserError(
            f"DIR received {directory!r}, whose manifest.json says all that "
            f"{'with its index' if has_index(before) else 'but for its index'}; expected "
            f"{'TFRecords that others wrote' if has_index(before) else 'no further flag'}."
        )
    before = manifest.load_manifest(directory, "DIR", complete=True)
    if before.get("compression", "none") != "none":
        raise UserError(
            f"DIR received {directory!r}, whose shards are compressed; expected plain ones: build "
            "the data set again."
        )
    paths = {
        name: [manifest.shard_path(directory, shard) for shard in split["shards"]]
        for name, split in before["splits"].items()
    }
    files = scan_all([path for found in paths.values() for path in found], add_own_row)
    for (_, shard), path in zip(
        manifest.shards_of(before), itertools.chain(*paths.values()), strict=True
    ):
        if files[path].sha256 != shard["sha256"]:
            raise UserError(
                f"DIR received {directory!r}, whose shard {path} is not the one that manifest.json "
                "names: its SHA-256 is another; expected the data set as it was built: copy it "
                "again."
            )
    _write_index(directory, before, paths, files)
    manifest.write_manifest(directory, before)
    return before


def _write_index(
    output: str,
    described: Mapping[str, Any],
    splits: Mapping[str, Sequence[str]],
    files: Mapping[str, ScannedFile],
) -> None:
    """Writes an index file for every shard, and names it in the manifest's entry."""
    for name, paths in splits.items():
        for number, path in enumerate(paths):
            shard = described["splits"][name]["shards"][number]
            rows = files[path].rows
            table = index_table(
                rows, name, manifest.shard_name(shard), "none", described["features"]
            )
            stem = f"{name}-{number:05d}" if "adopted" in described else shard["file"]
            shard["index"] = write_index(output, stem, table)


def _described(
    output: str,
    options: AdoptOptions,
    tfds: TfdsFolder | None,
    splits: Mapping[str, Sequence[str]],
    files: Mapping[str, ScannedFile],
    classes: Sequence[str],
    roles: Roles,
) -> dict[str, Any]:
    """The manifest."""

    def shard(path: str) -> dict[str, Any]:
        file, folder = files[path], folder_from(output, path)
        counts = Counter(file.rows.columns["class_name"])
        return {
            "file": storage.name_of(path),
            **({"folder": folder} if folder else {}),
            "num_records": len(file.rows),
            "num_bytes": file.num_bytes,
            "sha256": file.sha256,
            "classes": {name: counts[name] for name in classes if counts[name]},
        }

    shards = {name: [shard(path) for path in paths] for name, paths in splits.items()}
    counts = {name: sum(one["num_records"] for one in found) for name, found in shards.items()}
    told: dict[str, Any] = {
        "format_version": manifest.FORMAT_VERSION,
        "splits": {n: {"num_records": counts[n], "shards": found} for n, found in shards.items()},
        "classes": list(classes),
        "first_label": options.label_offset,
        "features": _specs(*(file.lengths for file in files.values())),
        "image": _image(tfds, roles.image, files),
        "compression": "none",
        "shard_by": _shard_by([one["classes"] for found in shards.values() for one in found]),
        "listed": sum(counts.values()),
        "rejects": {},
        "adopted": roles._asdict(),
    }
    bytes_of = [[name, *(one["sha256"] for one in found)] for name, found in shards.items()]
    known = [bytes_of, told["classes"], told["first_label"], told["adopted"]]
    return told | {"fingerprint": hashlib.sha256(json.dumps(known).encode()).hexdigest()}


def _shard_by(counts: Sequence[Mapping[str, int]]) -> str:
    """`class` where no shard mixes classes: the reader then has to mix many shards."""
    single = all(len(classes) <= 1 for classes in counts)
    return "class" if single and len({name for one in counts for name in one}) > 1 else "balanced"


def _image(
    tfds: TfdsFolder | None, feature: str, files: Mapping[str, ScannedFile]
) -> dict[str, Any]:
    grey = tfds is not None and tfds.image_feature == feature and tfds.channels == 1
    columns = [file.rows.columns for file in files.values()]
    sizes = {size for one in columns for size in zip(one["height"], one["width"], strict=True)}
    if len(sizes) == 1 and min(sizes) > (0, 0):
        return {"size": [*min(sizes)], "mode": "exact", "channels": 1 if grey else 3}
    # Transparency and the like is decoded to RGB.
    return {"size": None, "mode": "none", "channels": 1 if grey else 3}


def _sample(paths: Sequence[str]) -> list[dict[str, Values]]:
    """The first records of the first file that has any."""
    for path in paths:
        found = []
        for record in itertools.islice(_records(path), _SAMPLE_RECORDS):
            try:
                found.append(decode_example(record.payload))
            except ValueError:
                continue
        if found:
            return found
    return []


def _records(path: str) -> Iterable[Record]:
    """Whole records; what is wrong with others is told by the pass over all of them."""
    try:
        for record in scan_file(path):
            if isinstance(record, Record):
                yield record
            elif not record.number:
                check_kind(path)
    except OSError as e:
        raise UserError(
            f"DIR received a data set whose file {path} cannot be read ({e.strerror or e}); "
            "expected every file of it: copy it again."
        ) from e


def _lengths(features: Mapping[str, Values]) -> dict[str, Counter[tuple[str, int]]]:
    return {name: Counter([(dtype_of(v), len(v))]) for name, v in features.items()}


def _specs(*parts: Mapping[str, Counter[tuple[str, int]]]) -> dict[str, dict[str, Any]]:
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


def _find_roles(
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


def _check_picture(directory: str, feature: str, values: Values) -> None:
    """Looks at the first bytes of a picture: raw pixels are a common surprise."""
    first = values[0] if values else b""
    if not isinstance(first, bytes) or not first.startswith(_PICTURES):
        raise UserError(
            f"DIR received {directory!r}, whose feature {feature!r} holds no encoded picture (it "
            f"begins with {str(first)[:16]}); expected a JPEG (PNG and GIF work, too): name "
            "another feature by --feature_map image=FEATURE, or write the records again with "
            "tf.io.encode_jpeg."
        )


def _labelled(
    splits: Mapping[str, list[str]],
    samples: Mapping[str, Sequence[Mapping[str, Values]]],
    label: str,
) -> dict[str, list[str]]:
    """Splits with labels: those of a competition's test have none."""
    kept = {}
    for name, paths in splits.items():
        if name in samples and label not in samples[name][0]:
            print(
                f"note: the split {name} is left out, since its records have no feature {label}",
                file=sys.stderr,
            )
        else:
            kept[name] = paths
    return kept


def _check_lengths(tfds: TfdsFolder | None, files: Mapping[str, ScannedFile]) -> None:
    for path, length in itertools.chain(*tfds.splits.values()) if tfds else ():
        if path in files and len(files[path].rows) != length:
            raise UserError(
                f"DIR received a data set whose file {path} holds "
                f"{counted(len(files[path].rows), 'record')}, not the {length} it should; expected "
                "the file as it was written: copy it again."
            )


def _classes(
    directory: str,
    options: AdoptOptions,
    tfds: TfdsFolder | None,
    files: Mapping[str, ScannedFile],
    roles: Roles,
) -> tuple[str, ...]:
    if options.class_names is not None:
        return options.class_names
    # TFDS's names belong to its label only, not to another one that was mapped.
    if tfds is not None and tfds.classes is not None and tfds.label_feature == roles.label:
        return tfds.classes
    labels = {label for file in files.values() for label in file.labels}
    if not labels:
        raise UserError(
            f"DIR received {directory!r}, which holds no record; expected TFRecords of labelled "
            "pictures."
        )
    ids = sorted(label for label in labels if isinstance(label, int))
    if not ids:
        return tuple(sorted(map(str, labels)))
    if ids[-1] - options.label_offset >= _MAX_CLASSES:
        raise UserError(
            f"DIR received {directory!r}, where {roles.label} is up to {ids[-1]}; expected class "
            "ids from 0 or 1 on: name the right feature by --feature_map label=FEATURE."
        )
    if ids[0] == 1 and not options.label_offset:
        print(
            f"note: the labels of {directory} begin at 1, so class 0 has no records; "
            "--label_offset 1 makes the first class number 0",
            file=sys.stderr,
        )
    # The texts that come with the ids, else the ids themselves.
    texts = {label: text for label, text in _named(files) if text}
    num_classes = max(1, ids[-1] + 1 - options.label_offset)
    names = [texts.get(i + options.label_offset, str(i)) for i in range(num_classes)]
    # ImageNet has two kinds of crane: their numbers tell them apart.
    times = Counter(names)
    return tuple(f"{n} {i}" if times[n] > 1 else n for i, n in enumerate(names))


def _named(files: Mapping[str, ScannedFile]) -> Iterable[tuple[Label, str]]:
    """The label of every record with the text that stands beside it."""
    for file in files.values():
        yield from zip(file.labels, file.rows.columns["class_name"], strict=True)


def _check_labels(
    files: Mapping[str, ScannedFile], feature: str, first: int, classes: Sequence[str]
) -> None:
    """Compares every label with the classes; a wrong one is told with its file and record."""
    last = first + len(classes) - 1
    ids = f"{first} to {last}" if last > first else str(first)
    for path, file in files.items():
        good = {label for label in {*file.labels} if _is_class(label, first, last, classes)}
        for record, label in enumerate(file.labels) if len(good) < len({*file.labels}) else ():
            if label in good:
                continue
            if isinstance(label, str):
                raise UserError(
                    f"--class_names received {','.join(classes)!r}, but record {record} of "
                    f"{path} has {feature} {label!r}; expected the name of every class."
                )
            remedy = "name every class by --class_names"
            if label == len(classes) and not first:
                remedy = "labels that begin at 1 need --label_offset 1"
            elif label < first:
                remedy = "lower --label_offset, or leave these records out"
            raise UserError(
                f"--label_offset received {first}, and record {record} of {path} has {feature} "
                f"{label}; expected {ids} for {counted(len(classes), 'class')}: {remedy}."
            )


def _is_class(label: Label, first: int, last: int, classes: Sequence[str]) -> bool:
    return label in classes if isinstance(label, str) else first <= label <= last


def _texts_agree(files: Mapping[str, ScannedFile], classes: Sequence[str], first: int) -> bool:
    """Whether the texts beside ids are the names of their classes.

    Others write descriptions there, or one name for several classes, as ImageNet has two kinds of
    crane: then they name none.

    Raises:
        UserError: Most of those that are names of classes are those of others.
    """
    known = {*classes}
    pairs = {pair: n for pair, n in Counter(_named(files)).items() if isinstance(pair[0], int)}
    named = {(int(label) - first, text): n for (label, text), n in pairs.items() if text in known}
    wrong = {(c, text): n for (c, text), n in named.items() if classes[c] != text}
    if 2 * sum(wrong.values()) > sum(named.values()):
        number, text = next(iter(wrong))
        raise UserError(
            f"--class_names received {','.join(classes)!r}, whose class {number} is "
            f"{classes[number]!r}, but most records of this id have the text {text!r}; expected "
            "the names in the order of the ids: put them into it, or correct --label_offset."
        )
    return not wrong and len(named) == len(pairs)


def _name_classes(files: Mapping[str, ScannedFile], classes: Sequence[str], first: int) -> None:
    """Puts ids and names of the classes into the rows."""
    numbers = {name: number for number, name in enumerate(classes)}
    for file in files.values():
        columns = file.rows.columns
        columns["label"] = [
            numbers[label] + first if isinstance(label, str) else label for label in file.labels
        ]
        columns["class_name"] = [classes[label - first] for label in columns["label"]]
