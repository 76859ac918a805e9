"""From an input to listing tasks, and from a task to batches of references."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator

from beam_pipeline.inputs import manifest
from beam_pipeline.inputs.folders import (
    Skipped,
    files_below,
    files_beside,
    files_matching,
    glob_root,
    is_glob,
    printable,
    subfolders,
)
from beam_pipeline.inputs.manifest import ManifestSchema
from beam_pipeline.inputs.manifest_rows import WHOLE, Span, spans
from beam_pipeline.options import MANIFEST_SUFFIXES, InputOptions, label_group
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards import storage
from imageshards.errors import UserError
from imageshards.storage import is_local, map_concurrently

BATCH_SIZE = 1000
SPLIT_FOLDERS = {
    "train", "training", "val", "valid", "validation", "dev", "eval", "evaluation", "test",
    "testing",
}  # fmt: skip


_COLUMN_FLAGS = (
    "image_column", "label_column", "key_column", "split_column", "group_column", "columns",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ListingTask:
    """What one call of `list_task` lists: a folder, a glob, or a part of one or of a manifest.

    Attributes:
        path: ListingTask, glob or manifest to list.
        split, label: What the folder gives every image in it; None if it does not.
        kind: `folder`, `glob`, `manifest`, or `outside` for files beside class folders,
            which are only counted.
        span: Part of a manifest.
    """

    path: str
    split: str | None = None
    label: str | None = None
    kind: str = "folder"
    span: Span = WHOLE


def input_root(source: InputOptions) -> str:
    """The folder that keys are relative to."""
    if is_glob(source.input):
        return glob_root(source.input)
    return source.input.rstrip("/") or "/"


def layout_of(source: InputOptions) -> str:
    """The layout asked for, or the one that the input's name tells.

    `folders` means that the folders' names must tell whether they are classes or splits.

    Raises:
        UserError: A regex for labels was given with a manifest.
    """
    if source.layout == "manifest":
        return source.layout
    if source.layout == "auto" and source.input.lower().endswith(MANIFEST_SUFFIXES):
        if not (is_local(source.input) and os.path.isdir(source.input)):
            if source.label_regex is not None:
                raise UserError(
                    f"--label_regex was given, but --input {source.input!r} is a manifest, which "
                    "has labels in a column; leave it out, or name that by --label_column."
                )
            return "manifest"
    if source.label_regex is not None:
        return "flat"
    if source.layout != "auto":
        return source.layout
    return "flat" if is_glob(source.input) else "folders"


def schema_of(source: InputOptions) -> ManifestSchema | None:
    """The columns of a manifest input; None for other inputs.

    Raises:
        UserError: The manifest cannot be read or lacks a column, or a column was named for an
            input that is not a manifest.
    """
    if layout_of(source) == "manifest":
        return manifest.read_schema(source)
    for flag in _COLUMN_FLAGS:
        if getattr(source, flag) is not None:
            raise UserError(
                f"--{flag} was given, but --input {source.input!r} is no manifest; expected a "
                ".csv, .jsonl or .parquet file."
            )
    return None


def listing_tasks(source: InputOptions) -> Iterator[ListingTask]:
    """The tasks that together list an input.

    Raises:
        UserError: The input is not there, holds no class folder, or needs a regex; or its
            bucket cannot be used.
    """
    layout = layout_of(source)
    if not is_local(source.input):
        storage.check_bucket(source.input, "--input")
    if layout == "manifest":
        files = manifest.manifest_files(source.input)
        for path, found in map_concurrently(lambda path: (path, spans(path)), files):
            yield from (ListingTask(path, kind="manifest", span=span) for span in found)
    elif layout == "flat":
        if source.label_regex is None:
            raise UserError(
                f"--input {source.input!r} is a flat folder or glob, so the label must be in the "
                "file name; expected --label_regex, for example '^([a-z]+)\\.' for cat.0.jpg."
            )
        yield ListingTask(source.input, kind="glob" if is_glob(source.input) else "folder")
    else:
        yield from _class_folders(source, layout)


def _class_folders(source: InputOptions, layout: str) -> Iterator[ListingTask]:
    top = subfolders(source.input)
    if layout == "folders":
        layout = _layout_by_names(source.input, top)
    beside = [ListingTask(source.input, kind="outside")]
    if layout == "class_folders":
        found = [ListingTask(path, label=printable(name)) for name, path in top]
    else:
        beside += [ListingTask(path, kind="outside") for _, path in top]
        found = [
            ListingTask(path, printable(split), printable(name))
            for split, split_path in top
            for name, path in subfolders(split_path)
        ]
    if not found:
        raise UserError(
            f"--input {source.input!r} has no class folder; expected ROOT/<class>/*.jpg, a "
            "manifest (.csv, .jsonl, .parquet), or --label_regex for labels in file names."
        )
    yield from found
    yield from beside


def _layout_by_names(path: str, top: list[tuple[str, str]]) -> str:
    """Tells splits from classes by the names of the folders, if they can be told."""
    splits = [name for name, _ in top if name.lower() in SPLIT_FOLDERS]
    if not splits:
        return "class_folders"
    nested = any(subfolders(below) for name, below in top if name in splits)
    if len(splits) == len(top) and nested:
        return "split_folders"
    if len(splits) < len(top) and not nested:
        return "class_folders"  # a class may be called train
    raise UserError(
        f"--input {path!r} has the folder {splits[0]!r}, which may be a split or a class; say "
        "--layout split_folders for ROOT/<split>/<class>/*.jpg, or --layout class_folders for "
        "ROOT/<class>/*.jpg."
    )


def list_task(
    task: ListingTask, source: InputOptions, schema: ManifestSchema | None
) -> Iterator[RefBatch | Skipped]:
    """Lists what a task says: batches of references, and files that were passed over.

    Raises:
        UserError: A file name does not match --label_regex; a row of a manifest is wrong.
    """
    if task.kind == "outside":
        yield from files_beside(task.path)
        return
    if task.kind == "manifest":
        refs: Iterator[ImageRef | Skipped] = manifest.read_refs(task.path, schema, task.span)
    else:
        refs = _image_refs(task, source)
    batch: list[ImageRef] = []
    for ref in refs:
        if isinstance(ref, Skipped):
            yield ref
            continue
        batch.append(ref)
        if len(batch) == BATCH_SIZE:
            yield RefBatch(batch)
            batch = []
    if batch:
        yield RefBatch(batch)


def _image_refs(task: ListingTask, source: InputOptions) -> Iterator[ImageRef | Skipped]:
    regex = re.compile(source.label_regex) if source.label_regex else None
    root = input_root(source)
    prefix = len(root.rstrip("/")) + 1  # keys are the path below the root
    files = files_matching if task.kind == "glob" else files_below
    found = files(task.path)
    for path, size_bytes, mtime_ns in found:
        below = path[prefix:]
        if isinstance(size_bytes, Skipped):
            yield size_bytes
        elif below.startswith(".") or "/." in below:
            yield Skipped("hidden")
        elif not below.lower().endswith(source.extensions):
            yield Skipped("not_an_image_name")
        else:
            key, name = printable(below), printable(below.rpartition("/")[2])
            label, split, group = _labels(task, source, regex, name, key)
            yield ImageRef(key, path, label, split, group, size_bytes, mtime_ns)


def _labels(
    task: ListingTask, source: InputOptions, regex: re.Pattern[str] | None, name: str, key: str
) -> tuple[str, str | None, str | None]:
    if regex is None or task.label is not None:
        return task.label or "", task.split, None
    found, group = regex.search(name), label_group(regex)
    label = found.group(group) if found and group is not None else None
    if found is None or not label:
        raise UserError(
            f"--label_regex {regex.pattern!r} does not match the file name {name!r}; fix the "
            "expression or take the file out."
        )
    named = found.groupdict()
    top = key.split("/")[0]
    known = source.layout == "auto" and top.lower() in SPLIT_FOLDERS
    by_folder = top if top != key and (known or source.layout == "split_folders") else None
    return label, named.get("split") or by_folder, named.get("group")
