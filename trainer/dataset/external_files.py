"""Which files are TFRecords that others wrote, which split each belongs to, how many it holds.

Only names are looked at here; the file itself has the last word, elsewhere.
"""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Sequence

from imageshards import storage
from imageshards.errors import UserError

SPLIT_NAMES = ("train", "training", "validation", "valid", "val", "test", "testing", "eval", "dev")
ENDINGS = "*.tfrec, *.tfrecord, *.tfrecords (each also with .gz) or NAME-00000-of-00008"

# `x.tfrecord`, `x.tfrec.gz`, `x.tfrecord-00000-of-00008`, `train-00000-of-01024`.
_RECORDS = re.compile(
    r"(\.(tfrec|tfrecord|tfrecords)(-\d+-of-\d+)?|^[^.]+-\d+-of-\d+)(\.gz)?$", re.IGNORECASE
)
_PART = re.compile(r"^(.*?)-(\d+)-of-(\d+)(.*)$")
_COUNT = re.compile(r"[-_](\d+)\.(tfrec|tfrecord|tfrecords)(\.gz)?$", re.IGNORECASE)


def list_files(flag: str, data: str) -> list[str]:
    """The TFRecord files that `data` means, sorted.

    Args:
        flag: Named in errors.
        data: A file, a glob, or a folder, whose own files and whose sub-folders' count.

    Raises:
        UserError: There are none, or `data` cannot be listed, or a part of a numbered
            series is missing from a folder.
    """
    try:
        if any(c in data for c in "*?["):
            paths = storage.glob(data)
        elif storage.is_folder(data):
            paths = files_below(data)
            _check_series(flag, data, paths)
        elif storage.exists(data):
            paths = [data]
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), data)
    except OSError as e:
        raise UserError(
            f"{flag} received {data!r}, which cannot be listed ({e.strerror or e}); expected a "
            f"folder, a file or a glob of TFRecords: {ENDINGS}."
        ) from e
    if not paths:
        raise UserError(
            f"{flag} received {data!r}, where there is neither a manifest.json nor a TFRecord; "
            f"expected files called {ENDINGS}, or a data set built with "
            "python -m beam_pipeline --input PHOTOS --output FOLDER."
        )
    return paths


def files_below(data: str) -> list[str]:
    """Every TFRecord file in a folder and in its sub-folders, sorted.

    Raises:
        OSError: It cannot be listed.
    """
    entries = storage.list_folder(data)
    for folder in entries.copy():
        if folder.is_folder and not folder.name.startswith("."):
            entries += storage.list_folder(folder.path)
    return sorted(e.path for e in entries if not e.is_folder and _is_records(e.name))


def split_files(data: str, paths: Sequence[str]) -> dict[str, list[str]]:
    """Which split every file belongs to: by its folder's name, else by a word of its own name.

    Where no name says anything, all files are `train`.

    Args:
        data: As `--data` received it.
        paths: Files.

    Raises:
        UserError: Only some of the names say something.
    """
    splits: dict[str, list[str]] = defaultdict(list)
    nameless = []
    for path in paths:
        name = split_of(path)
        if name:
            splits[name].append(path)
        else:
            nameless.append(path)
    if nameless and splits:
        raise UserError(
            f"--data received {data!r}, where {os.path.basename(nameless[0])} belongs to no split, "
            f"but {os.path.basename(next(iter(splits.values()))[0])} to {next(iter(splits))}; "
            "expected train, validation or test in every name or in none: name the files to "
            "train on by a glob, and others by --validation_data."
        )
    return dict(splits) if splits else {"train": nameless}


def split_of(path: str) -> str | None:
    """The split a path names, in lower case: `validation-00000-of-00128` → `validation`."""
    folder, name = os.path.split(path)
    folder = os.path.basename(folder).lower()
    if folder in SPLIT_NAMES:
        return folder
    words = re.split(r"[^a-z]+", name.lower())
    return next((word for word in words if word in SPLIT_NAMES), None)


def count_in_name(path: str) -> int | None:
    """230 for `flowers00-230.tfrec`, None where the name ends in no number.

    What ends in a number may still mean something else by it.
    """
    name = os.path.basename(path)
    if _PART.match(name):
        return None
    found = _COUNT.search(name)
    return int(found[1]) if found else None


def _is_records(name: str) -> bool:
    return not name.startswith((".", "_")) and bool(_RECORDS.search(name))


def _check_series(flag: str, data: str, paths: Sequence[str]) -> None:
    """Of `…-00000-of-00008` all eight have to be there: a half-copied folder is found now."""
    series: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for path in paths:
        found = _PART.match(os.path.basename(path))
        if found:
            stem = os.path.join(os.path.dirname(path), found[1])
            series[stem, found[3], found[4]].add(int(found[2]))
    for (stem, total, _), numbers in series.items():
        missing = sorted(set(range(int(total))) - numbers)
        if missing:
            raise UserError(
                f"{flag} received {data!r}, where of {os.path.basename(stem)}-…-of-{total} "
                f"{len(missing)} of {int(total)} files are missing (the first is number "
                f"{missing[0]}); expected all of them: copy the folder again, or name the files "
                "that are meant by a glob."
            )
