"""From an input to listing tasks, and from a task to references."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from beam_pipeline.inputs import image_table
from beam_pipeline.inputs.data_sets import named
from beam_pipeline.inputs.folders import (
    UNREADABLE_FOLDER,
    PathFilter,
    Skipped,
    files_below,
    files_matching,
    files_outside_folders,
    finished_input,
    is_data_set,
    none_readable,
    subfolders,
)
from beam_pipeline.inputs.image_table import TableSchema
from beam_pipeline.inputs.layout import input_root, is_glob, layout_of
from beam_pipeline.inputs.records import list_records, shards_to_list
from beam_pipeline.inputs.table_cells import split_labels
from beam_pipeline.inputs.table_rows import parts
from beam_pipeline.options import DATA_SET, TABLE, TABLE_FLAGS, InputOptions, label_group
from beam_pipeline.planning.refs import ImageRef, Label
from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import NONE, ONE, SPLIT_NAMES
from imageshards.storage import is_local, map_concurrently
from imageshards.text import composed, key_of

EMPTY_CLASS_FOLDER = "empty_class_folder"
EMPTY_SPLIT_FOLDER = "empty_split_folder"
UNREAD_FORMAT = "unread_format"
GIVEN_SPLIT = "given_split"

# What phones and cameras write, where --extensions does not name it: no stray files, but pictures.
_UNREAD = (
    ".avif", ".heic", ".heif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ListingTask:
    """What one call of `list_task` lists: a folder, a glob, or a part of one or of an image table.

    Attributes:
        path: Folder, glob or file to list.
        split, label: What the folder gives every image in it; None if it does not.
        kind: `folder`, `glob`, `table`, `shard`; `outside` for files outside of class folders,
            which are only counted, with the name of a split that has no class folder.
        row_groups: Of a Parquet file; None for all.
        entry: Of a shard, in the manifest of its data set.
        source: Number of the input.
    """

    path: str
    split: str | None = None
    label: str | None = None
    kind: str = "folder"
    row_groups: range | None = None
    entry: dict[str, Any] = dataclasses.field(default_factory=dict)
    source: int = 0


def schema_of(source: InputOptions) -> TableSchema | None:
    """The columns of an image table; None for other inputs.

    Raises:
        UserError: The table cannot be read or lacks a column, or a column was named for an
            input that is none.
    """
    layout = layout_of(source)
    if source.exclude_glob and layout in (TABLE, DATA_SET):
        what = "an image table" if layout == TABLE else "a finished data set"
        raise UserError(
            f"--exclude_glob was given, but --input {source.input!r} is {what}; expected a folder "
            "or a glob: leave images out of this input by their keys, in a file for --exclude."
        )
    if layout == TABLE:
        return image_table.read_schema(source)
    for flag in TABLE_FLAGS:
        if getattr(source, flag) != getattr(InputOptions, flag):
            raise UserError(
                f"--{flag} was given, but --input {source.input!r} is no image table; expected a "
                ".csv, .jsonl or .parquet file."
            )
    return None


def schemas_of(sources: Sequence[InputOptions]) -> tuple[TableSchema | None, ...]:
    """The columns of each input that is an image table; None for others.

    Raises:
        UserError: As `schema_of`, or the images of two inputs would have other extra columns.
    """
    schemas = tuple(map(schema_of, sources))
    columns = [
        schema.columns if schema else source.record_columns
        for source, schema in zip(sources, schemas, strict=True)
    ]
    for source, found in zip(sources[1:], columns[1:], strict=True):
        if set(found) != set(columns[0]):
            raise UserError(
                f"--input {sources[0].input!r} has the extra columns {named(columns[0])} and "
                f"--input {source.input!r} {named(found)}; expected the same ones in all: say "
                "which by --columns, '' for none, or give a table with those of a data set."
            )
    return schemas


def listing_tasks(source: InputOptions) -> Iterator[ListingTask]:
    """The tasks that together list an input.

    Raises:
        UserError: The input is not there, is a finished data set, holds no class folder, or needs
            a regex; or its bucket cannot be used.
    """
    layout = layout_of(source)
    if not is_local(source.input):
        storage.check_bucket(source.input, "--input")
    if layout == TABLE:
        files = image_table.table_files(source.input)
        for path, found in map_concurrently(lambda path: (path, parts(path)), files):
            yield from (ListingTask(path, kind="table", row_groups=part) for part in found)
    elif layout == DATA_SET:
        for path, split, entry in shards_to_list(source):
            yield ListingTask(path, split, kind="shard", entry=entry)
    elif layout == "flat":
        if source.label_regex is None and source.label != NONE:
            raise UserError(
                f"--input {source.input!r} is a flat folder or glob, so the label must be in the "
                "file name; expected --label_regex, for example '^([a-z]+)\\.' for cat.0.jpg, or "
                "--label none."
            )
        if is_data_set(input_root(source)):
            raise finished_input(input_root(source))
        yield ListingTask(source.input, kind="glob" if is_glob(source.input) else "folder")
    else:
        yield from _class_folders(source, layout)


def _class_folders(source: InputOptions, layout: str) -> Iterator[ListingTask]:
    passes_over = path_filter(source)
    top = subfolders(source.input, passes_over)
    nested = layout == "folders" and any(
        subfolders(path, passes_over) for name, path in top if _is_split(name)
    )
    if layout == "split_folders" or nested:
        # A data set beside split folders is neither a split nor a class.
        top = [(name, path) for name, path in top if _is_split(name) or not is_data_set(path)]
    if layout == "folders":
        layout = _layout_by_names(source.input, top, nested)
    others = [ListingTask(source.input, kind="outside")]
    found = []
    if layout == "class_folders":
        found = [ListingTask(path, label=key_of(name)) for name, path in top]
    else:
        for split, split_path in top:
            of_split = [
                ListingTask(path, key_of(split), key_of(name))
                for name, path in subfolders(split_path, passes_over)
            ]
            known = of_split or none_readable([split_path])
            empty = None if known else key_of(split)
            others.append(ListingTask(split_path, empty, kind="outside"))
            found += of_split
    if not found:
        raise UserError(
            f"--input {source.input!r} has no class folder; expected ROOT/<class>/*.jpg, an image "
            "table (.csv, .jsonl, .parquet), or labels in file names and a --label_regex that "
            "finds them, such as '^([a-z]+)' for cat.0.jpg; --label none takes images without one."
        )
    if none_readable(task.path for task in found):
        raise _nothing_readable(source, found[0].path)
    yield from found
    yield from others


def _nothing_readable(source: InputOptions, folder: str) -> UserError:
    return UserError(
        f"--input {source.input!r} holds no image outside of folders that this user may not list, "
        f"such as {folder!r}; expected folders that may be read: fix their permissions."
    )


def _layout_by_names(path: str, top: list[tuple[str, str]], nested: bool) -> str:
    """Tells splits from classes by the names of the folders, if they can be told.

    `nested` says whether one of `top` that is named like a split has folders in it.
    """
    splits = [name for name, _ in top if _is_split(name)]
    if not splits or (len(splits) < len(top) and not nested):
        return "class_folders"  # a class may be called train
    if len(splits) == len(top) and nested:
        return "split_folders"
    raise UserError(
        f"--input {path!r} has the folder {splits[0]!r}, which may be a split or a class; say "
        "--layout split_folders for ROOT/<split>/<class>/*.jpg, or --layout class_folders for "
        "ROOT/<class>/*.jpg."
    )


def _is_split(name: str) -> bool:
    return name.lower() in SPLIT_NAMES


def list_task(
    task: ListingTask, source: InputOptions, schema: TableSchema | None
) -> Iterator[ImageRef | Skipped]:
    """Lists what a task says: references, and what was passed over.

    Raises:
        UserError: A file name does not match --label_regex, or a row of a table is wrong.
    """
    if task.kind == "outside":
        yield from files_outside_folders(task.path, path_filter(source))
        if task.split is not None:
            yield Skipped(EMPTY_SPLIT_FOLDER, task.split)
        return
    refs: Iterator[ImageRef | Skipped]
    if schema is not None:
        refs = image_table.read_refs(task.path, schema, task.row_groups)
    elif task.kind == "shard":
        labels = source.record_label, source.label
        refs = list_records(task.path, task.split, task.entry, source.record_columns, labels)
    else:
        refs = _image_refs(task, source)
    splits: set[str] = set()
    is_empty, unreadable = True, ""
    for ref in refs:
        if isinstance(ref, Skipped):
            unreadable = unreadable or ref.name * (ref.reason == UNREADABLE_FOLDER)
            yield ref
            continue
        is_empty = False
        if ref.split:
            splits.add(ref.split)
        if task.source:
            ref = ref._replace(source=task.source)
        label = _composed(ref.label)
        yield ref if label == ref.label else ref._replace(label=label)
    if source.tells_given_splits:
        yield from (Skipped(GIVEN_SPLIT, split) for split in sorted(splits))
    if is_empty and unreadable and task.label is None:
        raise _nothing_readable(source, unreadable)
    if is_empty and task.label is not None and not unreadable:
        yield Skipped(EMPTY_CLASS_FOLDER, "/".join(filter(None, (task.split, task.label))))


def _composed(label: Label) -> Label:
    if isinstance(label, str):
        return composed(label)
    return label and tuple(dict.fromkeys(map(composed, label)))


def _image_refs(task: ListingTask, source: InputOptions) -> Iterator[ImageRef | Skipped]:
    regex = re.compile(composed(source.label_regex)) if source.label_regex else None
    root = input_root(source)
    prefix = len(root.rstrip("/")) + 1  # keys are the path below the root
    files = files_matching if task.kind == "glob" else files_below
    for path, size_bytes, mtime_ns in files(task.path, path_filter(source)):
        below = path[prefix:]
        if isinstance(size_bytes, Skipped):
            yield size_bytes
        elif not below.lower().endswith(source.extensions):
            yield Skipped("not_an_image_name")
            if below.lower().endswith(_UNREAD):
                yield Skipped(UNREAD_FORMAT, below[below.rindex(".") :].lower())
        else:
            key, name = key_of(below), key_of(below.rpartition("/")[2])
            label, split, group = _labels(task, source, regex, name, key)
            yield ImageRef(key, path, label, split, group, size_bytes, mtime_ns)


def path_filter(source: InputOptions) -> PathFilter:
    """What decides which files and folders of an input are passed over."""
    return PathFilter(input_root(source), source.exclude_glob)


def _labels(
    task: ListingTask, source: InputOptions, regex: re.Pattern[str] | None, name: str, key: str
) -> tuple[Label, str | None, str | None]:
    if task.label is not None:
        return _cut(task.label, source), task.split, None
    label, groups = None, dict[str, str]()
    if regex is not None:
        found, group = regex.search(composed(name)), label_group(regex)
        label = found.group(group) if found and group is not None else None
        if found is None or not label:
            raise UserError(
                f"--label_regex {regex.pattern!r} does not match the file name {name!r}; fix the "
                "expression or take the file out."
            )
        label, groups = _cut(label, source), found.groupdict()
    top = key.split("/")[0]
    known = source.layout == "auto" and _is_split(top)
    by_folder = top if top != key and (known or source.layout == "split_folders") else None
    return label, groups.get("split") or by_folder, groups.get("group")


def _cut(text: str, source: InputOptions) -> Label:
    """The label that a folder or file name says: one, or those that it has."""
    if source.label == ONE:
        return text
    return split_labels(text, source.label_separator) if source.label_separator else (text,)
