"""From an input to pieces of listing work, and from a piece to batches of references."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterator

from beam_pipeline.inputs import manifest_input
from beam_pipeline.inputs.folders import (
    Skipped,
    files_below,
    files_beside,
    files_matching,
    glob_root,
    is_glob,
    prefix_of,
    printable,
    subfolders,
)
from beam_pipeline.inputs.manifest_input import ManifestSchema
from beam_pipeline.inputs.manifest_rows import WHOLE, Span, spans
from beam_pipeline.options import MANIFEST_SUFFIXES, InputOptions, label_group
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards import storage
from imageshards.errors import UserError
from imageshards.storage import is_local, key_ranges, map_concurrently

BATCH_SIZE = 1000
# Names that a store gives by one request.
PAGE = 1000
# With as many folders none is cut.
RANGES = 64
SPLIT_FOLDERS = {
    "train", "training", "val", "valid", "validation", "dev", "eval", "evaluation", "test",
    "testing",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Folder:
    """One piece of listing work.

    Attributes:
        path: Folder, glob or manifest to list.
        split, label: What the folder gives every image in it; None if it does not.
        kind: `folder`, `glob`, `manifest`, or `outside` for files beside class folders,
            which are only counted.
        span: Part of a manifest.
        after, until: Only names behind the one and up to the other, of a folder in a store.
    """

    path: str
    split: str | None = None
    label: str | None = None
    kind: str = "folder"
    span: Span = WHOLE
    after: str = ""
    until: str = ""


def input_root(source: InputOptions) -> str:
    """The folder that keys are relative to."""
    if is_glob(source.input):
        return glob_root(source.input)
    return source.input.rstrip("/") or "/"


def layout_of(source: InputOptions) -> str:
    """The layout asked for, or the one that the input's name tells; `folders` needs a look.

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


def expand_root(source: InputOptions) -> Iterator[Folder]:
    """The pieces of listing work of an input.

    Raises:
        UserError: The input is not there, holds no class folder, or needs a regex; or its
            bucket cannot be used.
    """
    layout = layout_of(source)
    if not is_local(source.input):
        storage.check_bucket(source.input, "--input")
    if layout == "manifest":
        files = manifest_input.manifest_files(source.input)
        for path, found in map_concurrently(lambda path: (path, spans(path)), files):
            yield from (Folder(path, kind="manifest", span=span) for span in found)
    elif layout == "flat":
        if source.label_regex is None:
            raise UserError(
                f"--input {source.input!r} is a flat folder or glob, so the label must be in the "
                "file name; expected --label_regex, for example '^([a-z]+)\\.' for cat.0.jpg."
            )
        yield from _in_ranges(
            [Folder(source.input, kind="glob" if is_glob(source.input) else "folder")]
        )
    else:
        yield from _in_ranges(list(_class_folders(source, layout)))


def _in_ranges(folders: list[Folder]) -> Iterator[Folder]:
    """Cuts long folders of a store, if there are not folders enough to be listed side by side."""
    long = [f for f in folders if f.kind != "outside" and storage.begins_anywhere(f.path)]
    wanted = RANGES // max(1, len(long))
    if wanted < 2:
        yield from folders
        return
    yield from (folder for folder in folders if folder not in long)
    for found in map_concurrently(functools.partial(_ranges, wanted=wanted), long):
        yield from found


def _ranges(folder: Folder, wanted: int) -> list[Folder]:
    prefix = prefix_of(folder.path, folder.kind == "glob")
    try:
        page = [file.path for file in itertools.islice(storage.files_from(prefix), PAGE)]
        if len(page) < PAGE:
            return [folder]
        cuts = key_ranges.cut_points(prefix, page, storage.first_from, wanted)
    except OSError:
        return [folder]  # what is wrong is told when it is listed
    ends = zip(["", *cuts], [*cuts, ""], strict=True)
    return [dataclasses.replace(folder, after=after, until=until) for after, until in ends]


def _class_folders(source: InputOptions, layout: str) -> Iterator[Folder]:
    top = subfolders(source.input)
    if layout == "folders":
        layout = _layout_by_look(source.input, top)
    beside = [Folder(source.input, kind="outside")]
    if layout == "class_folders":
        found = [Folder(path, label=printable(name)) for name, path in top]
    else:
        beside += [Folder(path, kind="outside") for _, path in top]
        found = [
            Folder(path, printable(split), printable(name))
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


def _layout_by_look(path: str, top: list[tuple[str, str]]) -> str:
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


def list_folder(
    folder: Folder, source: InputOptions, schema: ManifestSchema | None
) -> Iterator[RefBatch | Skipped]:
    """Lists one piece of work.

    Raises:
        UserError: A file name does not match --label_regex; a row of a manifest is wrong.
    """
    if folder.kind == "outside":
        yield from files_beside(folder.path)
        return
    if folder.kind == "manifest":
        refs: Iterator[ImageRef | Skipped] = manifest_input.read_refs(
            folder.path, schema, folder.span
        )
    else:
        refs = _image_refs(folder, source)
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


def _image_refs(folder: Folder, source: InputOptions) -> Iterator[ImageRef | Skipped]:
    regex = re.compile(source.label_regex) if source.label_regex else None
    root = input_root(source)
    prefix = len(root.rstrip("/")) + 1  # keys are the path below the root
    files = files_matching if folder.kind == "glob" else files_below
    found = files(folder.path, folder.after, folder.until)
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
            label, split, group = _labels(folder, source, regex, name, key)
            yield ImageRef(key, path, label, split, group, size_bytes, mtime_ns)


def _labels(
    folder: Folder, source: InputOptions, regex: re.Pattern[str] | None, name: str, key: str
) -> tuple[str, str | None, str | None]:
    if regex is None or folder.label is not None:
        return folder.label or "", folder.split, None
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
