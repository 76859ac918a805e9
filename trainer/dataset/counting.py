"""How many records of each class files hold, and which are broken: counted once, then cached."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imageshards import storage
from imageshards.errors import UserError
from imageshards.example import Values, decode_example
from imageshards.tfrecord import Record, RecordError, scan_file
from trainer.cluster.connection import note_work
from trainer.dataset.index import indexed_class_counts
from trainer.dataset.spec import DataSet, Split
from trainer.dataset.subset import filter_function

_BATCH_RECORDS = 512
_CACHE_VERSION = 3

# A class id, or the name of a class where records hold names.
Label = int | str
# Payloads → the class id of each, None for one that does not pass the filters.
_Classify = Callable[[Sequence[bytes]], list[int | None]]


class RecordProblem(ValueError):
    """Why a record cannot be counted, without a full stop."""


class Broken(NamedTuple):
    """A record that cannot be counted.

    Attributes:
        path: The file.
        number: Of the record within the file, from 0.
        offset_bytes: Where it begins.
        reason: What is wrong, without a full stop.
    """

    path: str
    number: int
    offset_bytes: int
    reason: str


def class_counts(
    dataset: DataSet, split: Split, filters: Sequence[str], skip_broken: int = 0
) -> tuple[int, ...]:
    """The records of `split` that pass `filters`, per class id of the data set.

    The index of the data set says it where there is one, and no record is read; a record that has
    been damaged since counts then. Empty records, the placeholders of broken ones, do not count.

    Args:
        dataset: Where the split belongs.
        split: The split.
        filters: As `--where` gives them, see `trainer.dataset.subset`.
        skip_broken: How many records may be broken; they do not count, either.

    Raises:
        UserError: More records are broken, or have a label that is no class; it names file,
            record and byte offset. Or a filter is wrong.
    """
    if dataset.parts:
        totals: Counter[str] = Counter()
        for part, own in dataset.by_part(split):
            found = class_counts(part, own, filters, skip_broken)
            totals.update(dict(zip(part.classes, found, strict=True)))
        return tuple(totals[name] for name in dataset.classes)
    indexed = indexed_class_counts(dataset, split, filters) if not skip_broken else None
    if indexed is not None:
        return indexed
    key = {
        "version": _CACHE_VERSION,
        "fingerprint": dataset.fingerprint,
        "label": [dataset.label_feature, dataset.label_offset, list(dataset.classes)],
        "shards": [[os.path.basename(s.path), s.num_records, s.num_bytes] for s in split.shards],
        "where": sorted(filters),
    }

    def check(counted: Any) -> None:
        _check_broken(dataset.data, [Broken(*one) for one in counted[1]], skip_broken)

    what = f"classes of {split.name} in {dataset.data}" + "".join(f", {text}" for text in filters)
    counts, _ = _cached(what, key, lambda: _count_split(dataset, split, filters), check)
    return tuple(counts)


def class_id(dataset: DataSet, payload: bytes) -> int:
    """The class id of a serialized record, found without TensorFlow.

    Raises:
        RecordProblem: It is no `tf.train.Example`, has no label, or one that is no class.
    """
    name = dataset.label_feature
    label = _label_in(_decoded(payload, {name}), name)
    if isinstance(label, str):
        if label in dataset.classes:
            return dataset.classes.index(label)
        raise RecordProblem(f"its {name} is {label!r}, which is no class")
    least = dataset.label_offset
    greatest = least + len(dataset.classes) - 1
    if not least <= label <= greatest:
        raise RecordProblem(
            f"its {name} is {label}, expected {least} to {greatest} (see label_offset)"
        )
    return label - least


def cache_home() -> str:
    """The user's own folder for what can be had again: `$XDG_CACHE_HOME/imageshards`."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "imageshards")


def _cached(what: str, key: object, count: Callable[[], Any], check: Callable[[Any], None]) -> Any:
    """What `count()` returned when it was first called with this `key`.

    Says on stderr what it does. A cache that cannot be read or written is done without.

    Args:
        what: What is counted, for people.
        key: JSON values that say what the result depends on.
        count: Returns JSON values; named tuples come back as lists.
        check: Raises where a result may not be used. Such a result is not kept: what is broken
            may be repaired with no change in size.
    """
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    path = os.path.join(cache_home(), "counts", f"{name}.json")
    try:
        with open(path, encoding="utf-8") as stored:
            counted = json.load(stored)["counted"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    else:
        print(f"{what}: counted before, see {path}", file=sys.stderr)
        check(counted)
        return counted
    print(f"{what}: counting, once …", file=sys.stderr, flush=True)
    start = time.monotonic()
    counted = count()
    check(counted)
    try:
        storage.write(path, json.dumps({"key": key, "counted": counted}))
        kept = f"kept in {path}"
    except OSError:
        kept = "not kept"
    print(f"counted in {time.monotonic() - start:.1f} s, {kept}", file=sys.stderr)
    return counted


def _whole_records(path: str, broken: list[Broken]) -> Iterator[Record]:
    """The records of a file; those that cannot be read are added to `broken`."""
    try:
        for record in scan_file(path):
            note_work()
            if isinstance(record, RecordError):
                broken.append(Broken(path, record.number, record.offset_bytes, record.reason))
            else:
                yield record
    except OSError as e:
        raise UserError(
            f"⟦--data⟧ received a data set whose file {path} cannot be read ({e.strerror or e}); "
            "expected every file of it: copy it again."
        ) from e


def _decoded(payload: bytes, wanted: set[str]) -> Mapping[str, Values]:
    try:
        return decode_example(payload, wanted)
    except ValueError as e:
        raise RecordProblem(str(e)) from e


def _label_in(features: Mapping[str, Values], name: str) -> Label:
    values = features.get(name, [])
    label = values[0] if len(values) == 1 else None
    if isinstance(label, bytes):
        return label.decode(errors="replace")
    if not isinstance(label, int):
        raise RecordProblem(f"it has no feature {name} with one value")
    return label


def _check_broken(data: str, broken: Sequence[Broken], skip_broken: int) -> None:
    if len(broken) <= skip_broken:
        return
    first = broken[0]
    others = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    raise UserError(
        f"⟦--data⟧ received {data!r}, whose file {first.path} is broken at record {first.number}, "
        f"byte {first.offset_bytes}: {first.reason}{others}; expected at most {skip_broken} broken "
        f"records: copy the file again, or allow them by "
        f"⟦--skip_broken {len(broken)}|skip_broken={len(broken)}⟧."
    )


def _count_split(
    dataset: DataSet, split: Split, filters: Sequence[str]
) -> tuple[list[int], list[Broken]]:
    classify = _filtered_classes(dataset, filters) if filters else _all_classes(dataset)
    totals: Counter[int | None] = Counter()
    broken: list[Broken] = []
    for shard in split.shards:
        batch: list[Record] = []
        for record in _whole_records(shard.path, broken):
            if record.payload:
                batch.append(record)
            if len(batch) == _BATCH_RECORDS:
                totals.update(_classify_all(classify, batch, shard.path, broken))
                batch = []
        totals.update(_classify_all(classify, batch, shard.path, broken))
    return [totals[i] for i in range(len(dataset.classes))], broken


def _classify_all(
    classify: _Classify, records: Sequence[Record], path: str, broken: list[Broken]
) -> list[int | None]:
    """Classifies a batch; where that fails, its halves, down to the records at fault."""
    if not records:
        return []
    try:
        return classify([record.payload for record in records])
    except RecordProblem as e:
        if len(records) == 1:
            broken.append(Broken(path, records[0].number, records[0].offset_bytes, str(e)))
            return []
    half = len(records) // 2
    return [
        *_classify_all(classify, records[:half], path, broken),
        *_classify_all(classify, records[half:], path, broken),
    ]


def _all_classes(dataset: DataSet) -> _Classify:
    return lambda payloads: [class_id(dataset, payload) for payload in payloads]


def _filtered_classes(dataset: DataSet, filters: Sequence[str]) -> _Classify:
    """Filters are left to the reader's own code: a float must compare as it will there."""
    import tensorflow as tf

    label_and_filter = filter_function(dataset, filters)

    def classify(payloads: Sequence[bytes]) -> list[int | None]:
        try:
            with tf.device("CPU"):
                labels, keep = label_and_filter(tf.constant(list(payloads), tf.string))
        # TensorFlow quotes a record that is no tf.train.Example, and stumbles over its bytes.
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:
            if len(payloads) == 1:
                class_id(dataset, payloads[0])
            raise RecordProblem(f"it lacks a feature that {' and '.join(filters)} needs") from e
        pairs = zip(labels.numpy().tolist(), keep.numpy().tolist(), strict=True)
        return [label if kept else None for label, kept in pairs]

    return classify
