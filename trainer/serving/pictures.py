"""The pictures that a model predicts, each with a key: rows of a table, files, or records."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from imageshards import storage
from imageshards.errors import Arg, UserError, wrong_input
from imageshards.images.options import EXTENSIONS, passed_over
from imageshards.manifest import VALIDATION_NAMES
from imageshards.template import fields, fill
from imageshards.text import counted
from trainer.dataset.spec import ModelCard, ModelInputs, input_name

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq")
ARCHIVES = (".zip", ".tar")
_PACKED = (".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
# Columns whose values are the keys of rows, as in a build.
_KEYS = ("key", "id")
# The first rows of a table, of which one must name an existing picture.
_LOOKED_AT = 20


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Pictures in order, which threads read by number.

    Attributes:
        keys: The key of each picture.
        read: Returns the file, or the picture of the record, with a number. Raises OSError,
            ImageError, RecordError or ValueError if it cannot be read.
        columns: Returns the other columns of the picture with a number, by their names as inputs.
        column_names: The names of these columns.
        key_name: Name of the keys.
        inputs: The model's inputs as records have them; None for files, which are not prepared.
        identity: Equal for equal pictures.
    """

    keys: Sequence[str]
    read: Callable[[int], bytes]
    columns: Callable[[int], Mapping[str, Any]] = lambda number: {}
    column_names: Collection[str] = ()
    key_name: str = "key"
    inputs: ModelInputs | None = None
    identity: str = ""


def pictures_of_files(files: Sequence[str], keys: Sequence[str] | None = None) -> Pictures:
    """Returns image files, local or in a store."""
    keys = files if keys is None else keys
    return Pictures(
        keys, lambda number: storage.read(files[number]), identity=_digest([keys, files])
    )


def pictures_of_input(path: str, image_path: str | None, key_column: str | None) -> Pictures:
    """Returns the pictures of a table, an archive, a folder, a glob or a file.

    Args:
        path: Where the pictures are.
        image_path: Path of a table's pictures, with columns in braces; None to find a column.
        key_column: Column of a table with the keys; None to find a column.
    """
    name = path.lower()
    if name.endswith(TABLES):
        return _of_table(path, image_path, key_column)
    for argument, value in (("image_path", image_path), ("key_column", key_column)):
        if value is not None:
            received = f"{value!r} with " + Arg("input") + f" {path!r}, which is no table"
            expected = f"a table ending in {', '.join(TABLES)}"
            raise UserError(argument=argument, received=received, expected=expected)
    if name.endswith(ARCHIVES):
        return _of_archive(path)
    if name.endswith(_PACKED):
        raise wrong_input(
            path, "an archive that is not read in place", "a .tar or a .zip, or a folder"
        )
    is_glob = any(sign in path for sign in "*?[") and not storage.exists(path)
    if is_glob and not (files := storage.glob(path)):
        raise wrong_input(path, "which no file matches", "a pattern of files, a folder or a table")
    files = files if is_glob else find_files([path], "input")
    below = len(path.rstrip("/")) + 1
    return pictures_of_files(
        files, files if is_glob or files == [path] else [f[below:] for f in files]
    )


def pictures_of_split(
    card: ModelCard, data: str, records_root: str | None, split: str | None
) -> Pictures:
    """Returns the records of a split, in the order of the index, for the model of `card`."""
    # Files are predicted without these modules, which load NumPy.
    from imageshards.index import read_index
    from trainer.dataset.manifest import check_shards, load_manifest, needed_split
    from trainer.dataset.open import model_inputs
    from trainer.dataset.source import RecordSource

    dataset = load_manifest(data, records_root)
    found = needed_split(dataset, "split", split, ("test", *VALIDATION_NAMES))
    check_shards(dataset, [found])
    inputs = model_inputs(dataset, card)
    image, names = dataset.image_feature, [*inputs.features]
    pictures, columns = (RecordSource(dataset, found, some) for some in ([image], names))
    return Pictures(
        read_index(data, dataset.manifest, found.name, ["key"], "data")["key"].to_pylist(),
        lambda number: pictures[number][image],
        lambda number: _by_input(columns[number]) if names else {},
        {*map(input_name, names)},
        inputs=inputs,
        identity=f"{dataset.fingerprint} {found.name}",
    )


def find_files(paths: Sequence[str], argument: str = "FILE") -> list[str]:
    """Replaces each folder by the pictures in it, sorted by name; refuses a folder without any."""
    found: list[str] = []
    for path in paths:
        inside = _pictures_in(path, argument)
        if inside == []:
            raise UserError(
                argument=argument,
                received=f"{path!r}, a folder without pictures",
                expected=f"files ending in {', '.join(EXTENSIONS)}",
            )
        found += [path] if inside is None else inside
    return found


def _pictures_in(path: str, argument: str) -> list[str] | None:
    """Returns the pictures in a folder, sorted; None if `path` is no folder."""
    try:
        # Reading a single object needs no right to list its bucket.
        storage.check_bucket(path, argument, must_list=False)
        if not storage.is_folder(path):
            return None
        prefix = len(path.rstrip("/")) + 1
        found = storage.files_below(path, lambda folder: not passed_over(folder[prefix:]))
        return sorted(file.path for file in found if _is_picture(file.path[prefix:]))
    except OSError as e:
        raise UserError(
            argument=argument,
            received=f"{path!r}, which cannot be listed ({e.strerror or e})",
            expected="a file or a folder that may be read",
        ) from e


def _is_picture(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not passed_over(name)


def _of_table(path: str, image_path: str | None, key_column: str | None) -> Pictures:
    # Most inputs are no tables, and pyarrow takes a while to import.
    from imageshards.tables import read_rows

    found = [row for _, row in read_rows(path)]
    if not found:
        raise wrong_input(path, "which has no row", "a row for each picture")
    names = list(dict.fromkeys(name for row in found for name in row))
    rows = [{name: "" if (c := row.get(name)) is None else c for name in names} for row in found]
    image_path = image_path or _found_path(path, names, rows[0])
    used = fields(image_path)
    keys = [*filter(None, [key_column]), *(name for name in _KEYS if name in names)]
    # One column in the template is the name of the picture; several make the whole path the key.
    key = keys[0] if keys else used[0] if len(used) == 1 else None
    for argument, name in (*(("image_path", one) for one in used), ("key_column", key)):
        if name is not None and name not in names:
            expected = f"columns among {', '.join(names)}"
            raise UserError(argument=argument, received=f"the column {name!r}", expected=expected)
    keys = [fill(image_path if key is None else f"{{{key}}}", row) for row in rows]
    # A row without a cell of its path names no picture, and becomes a row with an error.
    paths = [fill(image_path, r) if all(r[one] != "" for one in used) else "" for r in rows]
    files = [p if os.path.isabs(p) or "://" in p else _beside(path, p) for p in paths]
    _check_some_exist(path, files[:_LOOKED_AT])

    def read(number: int) -> bytes:
        if not paths[number]:
            raise ValueError(f"the row has no {' or no '.join(used)}")
        return storage.read(files[number])

    return Pictures(
        keys,
        read,
        lambda number: _by_input(rows[number]),
        {*map(input_name, names)},
        key or "key",
        identity=_digest([keys, files, rows]),
    )


def _beside(table: str, path: str) -> str:
    return storage.join(storage.parent_of(table), path)


def _check_some_exist(table: str, files: Sequence[str]) -> None:
    """Refuses a table whose paths begin in another folder, before each row becomes an error."""

    def is_there(file: str) -> bool:
        with contextlib.suppress(OSError):
            return storage.exists(file)
        return False

    if not any(storage.map_concurrently(is_there, files)):
        raise wrong_input(
            table,
            f"of whose first {counted(len(files), 'picture')} none exists, not even {files[0]!r}",
            "paths relative to the table",
            "say how a path follows from columns by " + Arg("image_path", "FOLDER/{COLUMN}.jpg"),
        )


def _found_path(path: str, names: Sequence[str], row: Mapping[str, Any]) -> str:
    """Returns the template of the first column whose cell in `row` is the name of a picture."""
    for name in names:
        if str(row.get(name, "")).lower().endswith(EXTENSIONS):
            return f"{{{name}}}"
    raise wrong_input(
        path,
        f"whose columns {', '.join(names)} hold no file ending in {', '.join(EXTENSIONS[:2])}, …",
        "a column of paths",
        "say how a path follows from columns, for example "
        + Arg("image_path", f"test/{{{names[0]}}}.jpg"),
    )


def _of_archive(path: str) -> Pictures:
    reads: dict[str, Callable[[], bytes]] = {}
    try:
        local = storage.local_copy(path)
        if path.lower().endswith(".zip"):
            # Several threads may read Python's ZipFile.
            packed = zipfile.ZipFile(local)
            reads = {name: functools.partial(packed.read, name) for name in packed.namelist()}
        else:
            # "r:" refuses a compressed archive, whose members cannot be read by range.
            with tarfile.open(local, "r:") as members:
                for one in filter(tarfile.TarInfo.isreg, members):
                    begin, end = one.offset_data, one.offset_data + one.size
                    # `tar cf all.tar .` puts "./" before each name.
                    name = one.name.removeprefix("./")
                    reads[name] = functools.partial(storage.read_range, local, begin, end)
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as e:
        raise wrong_input(path, f"which cannot be read ({e})", "a whole .tar or .zip") from e
    keys = sorted(filter(_is_picture, reads))
    if not keys:
        expected = f"members ending in {', '.join(EXTENSIONS)}"
        raise wrong_input(path, "an archive without pictures", expected)

    def read(number: int) -> bytes:
        try:
            return reads[keys[number]]()
        # zipfile's errors for damage, for a password, and for an unknown compression.
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as e:
            raise ValueError(str(e)) from e

    return Pictures(keys, read, identity=_digest([keys, os.path.getsize(local)]))


def _by_input(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {input_name(name): value for name, value in columns.items()}


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()
