"""`adopt`: TFRecords that others wrote are looked at once, and get a manifest and an index."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from imageshards import manifest, storage
from imageshards.adopt.classes import check_labels, find_classes, name_classes, texts_agree
from imageshards.adopt.features import (
    AdoptOptions,
    check_picture,
    find_roles,
    lengths_of,
    specs_of,
)
from imageshards.adopt.files import expand, find_splits, folder_from, reading
from imageshards.adopt.scan import (
    Roles,
    ScannedFile,
    add_own_row,
    add_row,
    scan_all,
)
from imageshards.adopt.tfds import TfdsFolder, find_folder, open_tfds
from imageshards.errors import UserError
from imageshards.example import Values, decode_example
from imageshards.form import FormError
from imageshards.index import has_index, index_table, write_index
from imageshards.manifest import TRAIN_NAMES
from imageshards.text import counted
from imageshards.tfrecord import Record, scan_file

_SAMPLE_RECORDS = 16


def adopt(
    directory: str, output: str | None = None, options: AdoptOptions | None = None
) -> dict[str, Any]:
    """Writes the manifest and the index of TFRecords; of a data set with a manifest its index.

    Args:
        directory: A folder of TFRecords or of TFDS, or a data set of ours without an index.
        output: Where manifest and index are written, and plain copies of files that are
            compressed; None for beside the files.
        options: What the files do not say.

    Returns:
        The manifest.

    Raises:
        UserError: The files, the features or the labels are not what a trainer needs.
    """
    options = options or AdoptOptions()
    output = output or directory
    if (before := _built_in(output)) is not None:
        if has_index(before) or output != directory or options != AdoptOptions():
            raise UserError(
                f"DIR received {output!r}, a data set that imageshards build wrote; expected "
                "TFRecords of others, or, without other flags, a data set of an older version, "
                f"which has no {manifest.INDEX_NAME}/."
            )
        return _add_index(directory)
    folder = find_folder(directory)
    tfds = None if folder is None else open_tfds(folder)
    if tfds is not None and not options.splits:
        splits = {name: [path for path, _ in shards] for name, shards in tfds.splits.items()}
    else:
        splits = find_splits(directory, options.splits)
    plain = expand(splits, directory, output)
    splits = {name: [plain.get(path, path) for path in paths] for name, paths in splits.items()}
    samples = {name: found for name, paths in splits.items() if (found := _sample(paths))}
    if not samples:
        raise UserError(
            f"DIR received {directory!r}, whose first files hold no tf.train.Example; expected "
            "plain TFRecords of tf.train.Example with a picture and a label."
        )
    main = next((name for name in TRAIN_NAMES if name in samples), min(samples))
    roles = find_roles(directory, options, tfds, specs_of(*map(lengths_of, samples[main])))
    check_picture(directory, roles.image, samples[main][0][roles.image])
    splits = _labelled(splits, samples, roles.label)
    files = scan_all(
        [path for paths in splits.values() for path in paths],
        functools.partial(add_row, roles=roles),
    )
    _check_lengths(tfds, files, plain)
    classes = find_classes(directory, options, tfds, files, roles)
    check_labels(files, roles.label, options.label_offset, classes)
    if not texts_agree(files, classes, options.label_offset):
        roles = roles._replace(text=None)
    name_classes(files, classes, options.label_offset)
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


def _built_in(output: str) -> dict[str, Any] | None:
    """The manifest of a build that is there."""
    if not storage.exists(storage.join(output, manifest.MANIFEST_NAME)):
        return None
    found = manifest.load_manifest(output, "DIR", adopted=True)
    return None if "adopted" in found else found


def _add_index(directory: str) -> dict[str, Any]:
    """Gives a data set of an older build its index."""
    before = manifest.load_manifest(directory, "DIR", complete=True)
    paths = {
        name: [manifest.shard_path(directory, shard) for shard in split["shards"]]
        for name, split in before["splits"].items()
    }
    files = scan_all([*itertools.chain(*paths.values())], add_own_row)
    for _, shard in manifest.shards_of(before):
        path = manifest.shard_path(directory, shard)
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
            table = index_table(rows, name, manifest.shard_name(shard), described["features"])
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
        "features": specs_of(*(file.lengths for file in files.values())),
        "image": _image(tfds, roles.image, files),
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
    """The first records of the first file that has any; the pass over all tells of damage."""
    for path in paths:
        found = []
        with reading(path):
            for record in itertools.islice(scan_file(path), _SAMPLE_RECORDS):
                with contextlib.suppress(ValueError):
                    if isinstance(record, Record):
                        found.append(decode_example(record.payload))
        if found:
            return found
    return []


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


def _check_lengths(
    tfds: TfdsFolder | None, files: Mapping[str, ScannedFile], plain: Mapping[str, str]
) -> None:
    for stored, length in itertools.chain(*tfds.splits.values()) if tfds else ():
        path = plain.get(stored, stored)
        if path in files and len(files[path].rows) != length:
            raise UserError(
                f"DIR received a data set whose file {path} holds "
                f"{counted(len(files[path].rows), 'record')}, not the {length} it should; expected "
                "the file as it was written: copy it again."
            )
