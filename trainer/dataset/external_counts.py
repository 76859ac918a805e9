"""One pass over files that others wrote: how many records, of which labels, which are broken."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from imageshards.errors import UserError
from imageshards.example import Values, decode_example
from imageshards.progress import progress_bar
from imageshards.tfrecord import RecordError, scan_file
from trainer.config import is_remote
from trainer.dataset import counts_cache
from trainer.dataset.external_layouts import FoundFile

# Disks are read by one thread; a remote filesystem wants its answers awaited in company.
_REMOTE_THREADS = 8
_CACHE_VERSION = 1

# A class id, or the name of a class where records hold names.
Label = int | str


@dataclasses.dataclass(frozen=True)
class FileCount:
    """What one file holds.

    Attributes:
        num_records: Broken ones included.
        labels: Records per label, as it stands in the records.
        first_at: Number of the first record with each label.
        texts: The class name that comes with each label.
        broken: (number, offset in bytes, reason) of records that cannot be read.
        is_cut: Whether nobody can tell what comes after the last one.
    """

    num_records: int
    labels: Mapping[Label, int]
    first_at: Mapping[Label, int]
    texts: Mapping[Label, str]
    broken: tuple[tuple[int, int, str], ...]
    is_cut: bool


def count_files(
    data: str,
    files: Sequence[FoundFile],
    compression: str,
    label_feature: str,
    text_feature: str | None,
    skip_broken: int = 0,
) -> dict[str, FileCount]:
    """Counts every file, or remembers what was counted before.

    Args:
        data: As `--data` received it.
        files: What is counted.
        compression: `none` or `gzip`.
        label_feature: Holds the class, one int64.
        text_feature: Holds the class's name, None where none does.
        skip_broken: How many records may be broken.

    Returns:
        The count of every path.

    Raises:
        UserError: More records are broken, or an unknown number of them is lost, or a file
            cannot be read.
    """
    key = {
        "version": _CACHE_VERSION,
        "files": [[f.path, f.num_bytes, f.modified_nsec, f.ends.hex()] for f in files],
        "features": [label_feature, text_feature],
    }

    def count() -> dict[str, Any]:
        one = _Counting(compression, label_feature, text_feature)
        with concurrent.futures.ThreadPoolExecutor(_threads(files)) as pool:
            paths = [file.path for file in files]
            counts = progress_bar(pool.map(one, paths), total=len(paths), unit=" files")
            found = dict(zip(paths, counts, strict=True))
        # Before it is kept: what is broken may be repaired with no change in size or time.
        _check_broken(data, files, found, skip_broken)
        return {path: _as_json(value) for path, value in found.items()}

    num_bytes = sum(file.num_bytes for file in files)
    what = f"records of {data} ({len(files)} files, {num_bytes / 1e6:,.0f} MB)"
    counted = counts_cache.cached(what, key, count)
    found = {path: _from_json(value) for path, value in counted.items()}
    _check_broken(data, files, found, skip_broken)
    return found


def check_labels(
    counts: Mapping[str, FileCount], label_feature: str, label_offset: int, classes: Sequence[str]
) -> None:
    """Compares every label with the classes.

    Raises:
        UserError: One is below 0, too high, or an unknown name; it names file and record.
    """
    for path, count in counts.items():
        for label, record in count.first_at.items():
            if isinstance(label, str) and label not in classes:
                raise UserError(
                    f"--class_names received {','.join(classes)!r}, but record {record} of {path} "
                    f"has {label_feature} {label!r}; expected the name of every class."
                )
            if isinstance(label, int) and not 0 <= label - label_offset < len(classes):
                raise wrong_label(path, record, label_feature, label, label_offset, len(classes))


def wrong_label(
    path: str, record: int, feature: str, label: int, label_offset: int, num_classes: int
) -> UserError:
    """The refusal of a label that is no class."""
    first, last = label_offset, label_offset + num_classes - 1
    if label == num_classes and not label_offset:
        remedy = "labels that begin at 1 need --label_offset 1"
    elif label < label_offset:
        remedy = "lower --label_offset, or leave these records out"
    else:
        remedy = "name every class by --class_names"
    return UserError(
        f"--label_offset received {label_offset}, and record {record} of {path} has {feature} "
        f"{label}; expected {first} to {last} for {num_classes} classes: {remedy}."
    )


class _Counting:
    """Counts one file."""

    def __init__(self, compression: str, label_feature: str, text_feature: str | None):
        self._compression = compression
        self._label = label_feature
        self._text = text_feature
        self._wanted = {label_feature} | ({text_feature} if text_feature else set())

    def __call__(self, path: str) -> FileCount:
        labels: Counter[Label] = Counter()
        at: dict[Label, int] = {}
        texts: dict[Label, str] = {}
        broken: list[tuple[int, int, str]] = []
        num_records, is_cut = 0, False
        try:
            for record in scan_file(path, self._compression):
                num_records += 1
                if isinstance(record, RecordError):
                    broken.append((record.number, record.offset_bytes, record.reason))
                    is_cut = record.next_offset_bytes is None
                    continue
                try:
                    features = decode_example(record.payload, self._wanted)
                    label = self._label_of(features)
                except ValueError as e:
                    broken.append((record.number, record.offset_bytes, str(e)))
                    continue
                labels[label] += 1
                at.setdefault(label, record.number)
                if self._text in features and label not in texts:
                    texts[label] = self._text_of(features)
        except OSError as e:
            raise UserError(
                f"--data received a data set whose file {path} cannot be read "
                f"({e.strerror or e}); expected every file of it: copy it again."
            ) from e
        return FileCount(
            num_records,
            labels,
            at,
            texts,
            tuple(broken),
            is_cut,
        )

    def _label_of(self, features: Mapping[str, Values]) -> Label:
        values = features.get(self._label, [])
        label = values[0] if len(values) == 1 else None
        if isinstance(label, bytes):
            return label.decode()
        if not isinstance(label, int):
            raise ValueError(f"it has no feature {self._label} with one value")
        return label

    def _text_of(self, features: Mapping[str, Values]) -> str:
        values = features[self._text or ""]
        text = values[0] if values else b""
        return text.decode(errors="replace") if isinstance(text, bytes) else ""


def _check_broken(
    data: str, files: Sequence[FoundFile], counts: Mapping[str, FileCount], skip_broken: int
) -> None:
    for file in files:
        if skip_broken and file.num_records is None and counts[file.path].is_cut:
            number, offset, reason = counts[file.path].broken[-1]
            raise UserError(
                f"--skip_broken received {skip_broken}, but {file.path} is broken at record "
                f"{number}, byte {offset}: {reason}, and how many records that loses nobody has "
                "written down; expected a whole file: copy it again, or leave it out by a glob."
            )
    broken = [(path, *place) for path, count in counts.items() for place in count.broken]
    if len(broken) <= skip_broken:
        return
    path, number, offset, reason = broken[0]
    others = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    raise UserError(
        f"--data received {data!r}, whose file {path} is broken at record {number}, byte {offset}: "
        f"{reason}{others}; expected at most {skip_broken} broken records: copy the file again, "
        f"or allow them by --skip_broken {len(broken)}."
    )


def _as_json(count: FileCount) -> list[Any]:
    labels = [[label, n, count.first_at[label]] for label, n in count.labels.items()]
    return [count.num_records, labels, list(count.texts.items()), count.broken, count.is_cut]


def _from_json(raw: Sequence[Any]) -> FileCount:
    num_records, labels, texts, broken, is_cut = raw
    return FileCount(
        num_records,
        {label: n for label, n, _ in labels},
        {label: record for label, _, record in labels},
        dict(texts),
        tuple((number, offset, reason) for number, offset, reason in broken),
        is_cut,
    )


def _threads(files: Sequence[FoundFile]) -> int:
    return _REMOTE_THREADS if any(is_remote(file.path) for file in files) else 1
