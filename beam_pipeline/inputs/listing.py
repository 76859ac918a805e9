"""Cuts an input into listing tasks, and lists the references of each task.

Records of finished datasets are listed from the index of each shard.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from beam_pipeline.images.read import RECORD
from beam_pipeline.inputs import folders, labels
from beam_pipeline.inputs.archives.members import archive_files
from beam_pipeline.inputs.archives.references import archive_refs, webdataset_schema
from beam_pipeline.inputs.datasets import different_columns
from beam_pipeline.inputs.folders import PathFilter, Skipped, is_dataset
from beam_pipeline.inputs.labels import is_split
from beam_pipeline.inputs.layout import (
    expand_braces,
    input_root,
    is_glob,
    layout_of,
    unfit_option,
    wrong_input,
)
from beam_pipeline.inputs.spool import decompressed
from beam_pipeline.inputs.tables.references import read_refs
from beam_pipeline.inputs.tables.rows import Part, parts
from beam_pipeline.inputs.tables.schema import TableSchema, read_schema, table_files
from beam_pipeline.options import (
    ARCHIVES,
    DATASET,
    FILE_FLAGS,
    TABLE,
    TABLE_FLAGS,
    CopiedInput,
    InputOptions,
)
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import Arg, Text, UserError
from imageshards.index import index_schema, read_shard_index
from imageshards.manifest import NONE, ONE, SEVERAL, Shard, load_manifest
from imageshards.text import composed, key_of
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES

# Files of a folder whose names are compared to find masks beside images.
_SEEN_FILES = 1000


@dataclasses.dataclass(frozen=True)
class ListingTask:
    """Part of an input that one call of `list_task` lists."""

    path: str  # folder, glob or file
    split: str | None = None  # split that the folder gives every image in it
    label: str | None = None  # class that the folder gives every image in it
    # `folder`, `glob`, `table`, `shard` or `archive`. `outside` only counts files outside of class
    # folders; its `split` is the name of a split without class folders.
    kind: str = "folder"
    part: Part | None = None  # part of a Parquet file; None for all
    entry: Shard | None = None  # entry of a shard in its manifest
    source: int = 0  # number of the input
    prefix: str = ""  # beginning of the keys of an archive


def spooled_files(
    sources: Sequence[InputOptions], schemas: Sequence[TableSchema | None]
) -> list[storage.Stat]:
    """Returns the files of all inputs that cannot be read by ranges, with their present sizes."""
    paths: list[str] = []
    for source, schema in zip(sources, schemas, strict=True):
        if schema is not None and schema.has_pictures:
            paths += table_files(source.input)
        elif layout_of(source) == ARCHIVES and any(map(decompressed, expand_braces(source.input))):
            paths += [path for path, _ in archive_files(source) if decompressed(path)]
    return [found for found in storage.map_concurrently(storage.stat, paths) if found]


def has_several_archives(source: InputOptions) -> bool:
    """Returns whether an input is a folder of archives, or several behind a glob."""
    several = expand_braces(source.input) != [source.input] or is_glob(source.input)
    return layout_of(source) == ARCHIVES and several


def schema_of(source: InputOptions, class_names: Sequence[str] | None = None) -> TableSchema | None:
    """Returns the columns of an image table or of WebDataset archives, None without columns.

    `class_names` are names by number, for labels that are numbers. Raises `UserError` if the table
    cannot be read or lacks a column, or if a flag does not fit the input.
    """
    return schemas_of([source], class_names)[0]


def schemas_of(
    sources: Sequence[InputOptions], class_names: Sequence[str] | None = None
) -> tuple[TableSchema | None, ...]:
    """Returns the columns of each input; raises `UserError` also if extra columns would differ."""
    layouts = [*map(layout_of, sources)]
    are_read = dict.fromkeys(FILE_FLAGS, any(each not in (TABLE, DATASET) for each in layouts))
    _check_read(sources, are_read, "a folder, a glob or an archive")
    schemas: list[TableSchema | None] = []
    for source, layout in zip(sources, layouts, strict=True):
        read = {TABLE: read_schema, ARCHIVES: webdataset_schema}.get(layout)
        found = read(source) if read else None
        if found is not None:
            # Names in a Parquet file win over the names of --class_names.
            names = found.class_names or tuple(class_names or ())
            found = dataclasses.replace(found, class_names=names)
        schemas.append(found)
    are_read = dict.fromkeys(TABLE_FLAGS, any(schemas))
    tables = [s for s, layout in zip(schemas, layouts, strict=True) if s and layout == TABLE]
    are_read["image_column"] = bool(tables)
    are_read["allow_any_path"] = not all(schema.has_pictures for schema in tables)
    _check_read(sources, are_read, "a .csv, .jsonl or .parquet file of paths")
    columns = [schema.columns if schema else () for schema in schemas]
    for source, given in zip(sources[1:], columns[1:], strict=True):
        if set(given) != set(columns[0]):
            remedy = "say which by " + Arg("columns") + ", '' for none"
            pair = (sources[0].input, columns[0]), (source.input, given)
            raise different_columns(*pair, "the same ones in all", remedy)
    return tuple(schemas)


def _check_read(
    sources: Sequence[InputOptions], are_read: Mapping[str, bool], expected: str
) -> None:
    """Raises `UserError` if an option has a value that no input reads."""
    for source in sources:
        for name in (name for name, is_read in are_read.items() if not is_read):
            if (value := getattr(source, name)) != getattr(InputOptions, name):
                remedy: Text = "leave it out"
                if name == "exclude_glob":
                    remedy = "leave images out by their keys, in a file for " + Arg("exclude")
                problem = "has nothing that this option is for"
                raise unfit_option(name, repr(value), source.input, problem, expected, remedy)


def listing_tasks(source: InputOptions) -> Iterator[ListingTask]:
    """Yields the tasks that together list an input; raises `UserError` if it cannot be used."""
    layout = layout_of(source)
    if not storage.is_local(source.input):
        storage.check_bucket(source.input, "input")
    if layout == TABLE:
        files = table_files(source.input)
        for path, found in storage.map_concurrently(lambda path: (path, parts(path)), files):
            yield from (ListingTask(path, kind="table", part=part) for part in found)
    elif layout == DATASET:
        for path, split, entry in shards_to_list(_as_copied(source)):
            yield ListingTask(path, split, kind="shard", entry=entry)
    elif layout == ARCHIVES:
        for path, prefix in archive_files(source):
            yield ListingTask(path, kind="archive", prefix=prefix)
    elif layout == "flat":
        if source.label_regex is None and source.label != NONE:
            expected = Arg("label_regex") + ", for example '^([a-z]+)\\.' for cat.0.jpg"
            problem = "a flat folder or glob, so the label must be in the file name"
            raise wrong_input(source.input, problem, expected + ", or " + Arg("label", NONE))
        if is_dataset(input_root(source)):
            raise folders.finished_input(input_root(source))
        yield ListingTask(source.input, kind="glob" if is_glob(source.input) else "folder")
    else:
        yield from _class_folders(source, layout)


def _as_copied(source: InputOptions) -> CopiedInput:
    return source if isinstance(source, CopiedInput) else CopiedInput(**vars(source))


def _class_folders(source: InputOptions, layout: str) -> Iterator[ListingTask]:
    passes_over = path_filter(source)
    top = folders.subfolders(source.input, passes_over)
    nested = layout == "folders" and any(
        folders.subfolders(path, passes_over) for name, path in top if is_split(name)
    )
    if layout == "split_folders" or nested:
        # An earlier output beside split folders is neither a split nor a class.
        top = [(name, path) for name, path in top if is_split(name) or not is_dataset(path)]
    if layout == "folders":
        layout = labels.layout_by_names(source.input, [name for name, _ in top], nested)
    others = [ListingTask(source.input, kind="outside")]
    found = []
    if layout == "class_folders":
        found = [ListingTask(path, label=key_of(name)) for name, path in top]
    else:
        for split, split_path in top:
            of_split = [
                ListingTask(path, key_of(split), key_of(name))
                for name, path in folders.subfolders(split_path, passes_over)
            ]
            known = of_split or folders.none_readable([split_path])
            empty = None if known else key_of(split)
            others.append(ListingTask(split_path, empty, kind="outside"))
            found += of_split
    if not found:
        raise labels.no_class_folder(source)
    # Masks are compared with the images of the same split.
    for of in {task.split for task in found}:
        of_split = [task for task in found if task.split == of]
        stems_in = {str(t.label): functools.partial(_stems, t.path) for t in of_split}
        labels.check_masks(source, stems_in)
    if folders.none_readable(task.path for task in found):
        raise _nothing_readable(source, found[0].path)
    yield from found
    yield from others


def _stems(folder: str) -> Iterator[str]:
    # The listing itself reports an unreadable folder.
    with contextlib.suppress(PermissionError):
        for file in itertools.islice(storage.files_below(folder), _SEEN_FILES):
            yield file.name.partition(".")[0]


def _nothing_readable(source: InputOptions, folder: str) -> UserError:
    problem = "which holds no image outside of folders that this user may not list, such as "
    expected, remedy = "folders that may be read", "fix their permissions"
    return wrong_input(source.input, problem + repr(folder), expected, remedy)


def list_task(
    task: ListingTask, source: InputOptions, schema: TableSchema | None, spool: str = ""
) -> Iterator[ImageRef | Skipped]:
    """Yields the references of a task, and a `Skipped` for each file that is passed over.

    `spool` is the folder for contents that cannot be read by ranges. Raises `UserError` if a file
    name does not match --label_regex, or a row of a table is wrong.
    """
    if task.kind == "outside":
        yield from folders.files_outside_folders(task.path, path_filter(source))
        if task.split is not None:
            yield Skipped(labels.EMPTY_SPLIT_FOLDER, task.split)
        return
    refs: Iterator[ImageRef | Skipped]
    if task.kind == "archive":
        refs = archive_refs(task.path, task.prefix, source, schema, spool)
    elif schema is not None:
        refs = read_refs(task.path, schema, task.part, spool)
    elif task.entry is not None:
        has, wanted = _as_copied(source).record_label, source.label
        refs = list_records(task.path, task.split, task.entry, (has, wanted))
    else:
        refs = _image_refs(task, source)
    splits: set[str] = set()
    is_empty, unreadable = True, ""  # `unreadable` is the first folder that cannot be listed
    for ref in refs:
        if isinstance(ref, Skipped):
            unreadable = unreadable or ref.name * (ref.reason == folders.UNREADABLE_FOLDER)
            yield ref
            continue
        is_empty = False
        if ref.split:
            splits.add(ref.split)
        if task.source:
            ref = ref._replace(source=task.source)
        label = ref.label
        if isinstance(label, str):
            label = composed(label)
        elif label:
            label = tuple(dict.fromkeys(map(composed, label)))
        yield ref if label == ref.label else ref._replace(label=label)
    # Splits of records are known from the manifest; a warning names splits that images bring.
    if task.kind != "shard":
        yield from (Skipped(labels.GIVEN_SPLIT, split) for split in sorted(splits))
    if is_empty and unreadable and task.label is None:
        raise _nothing_readable(source, unreadable)
    if is_empty and task.label is not None and not unreadable:
        yield Skipped(labels.EMPTY_CLASS_FOLDER, "/".join(filter(None, (task.split, task.label))))


def _image_refs(task: ListingTask, source: InputOptions) -> Iterator[ImageRef | Skipped]:
    regex = re.compile(composed(source.label_regex)) if source.label_regex else None
    root = input_root(source)
    prefix = len(root.rstrip("/")) + 1  # a key is the path below the root
    files = folders.files_matching if task.kind == "glob" else folders.files_below
    for path, size_bytes, mtime_ns in files(task.path, path_filter(source)):
        below = path[prefix:]
        if isinstance(size_bytes, Skipped):
            yield size_bytes
        elif not below.lower().endswith(source.extensions):
            yield from labels.no_image(below)
        else:
            key, name = key_of(below), key_of(below.rpartition("/")[2])
            if task.label is None:
                label, split, group = labels.labels_by_name(source, regex, name, key)
            else:
                label, split, group = labels.cut_label(task.label, source), task.split, None
            yield ImageRef(key, path, label, split, group, size_bytes, mtime_ns)


def path_filter(source: InputOptions) -> PathFilter:
    return PathFilter(input_root(source), source.exclude_glob)


_INDEX_COLUMNS = ("key", "offset", "num_bytes", "source_bytes", "class_name")


def shards_to_list(source: CopiedInput) -> Iterator[tuple[str, str | None, Shard]]:
    """Yields (path, split that its records keep, entry of the manifest) of each shard."""
    manifest = load_manifest(source.input, "input")
    if source.fingerprint and manifest.fingerprint != source.fingerprint:
        problem = "which was replaced while this build read it"
        raise wrong_input(source.input, problem, remedy="run the same command again")
    for split, entry in manifest.shards():
        yield storage.join(source.input, entry.file), split if source.keeps_splits else None, entry


def list_records(
    path: str, split: str | None, entry: Shard, labels: tuple[str, str] = (ONE, ONE)
) -> Iterator[ImageRef]:
    """Yields references to the records of a shard, in their order, from the index.

    `split` is the split that its records keep; None if splits are drawn again. `labels` says how
    many labels the records have, and how many they are going to have. Raises `UserError` if the
    index is missing, or the index or the shard does not match the manifest.
    """
    has, wanted = labels
    schema = index_schema({}, has)
    names = _INDEX_COLUMNS[:-1] if wanted == NONE else _INDEX_COLUMNS
    schema = pa.schema([schema.field(name) for name in names])
    table = read_shard_index(storage.parent_of(path), entry, schema, "input")
    found = [table[name].to_pylist() for name in names]
    if wanted == NONE:
        found.append([None] * len(table))
    elif wanted == SEVERAL:
        found[-1] = [(name,) if has == ONE else tuple(name) for name in found[-1]]
    stored = storage.stat(path)
    blank = ImageRef(
        "", path, None, split, form=RECORD, version=stored.version if stored else "",
        # In place of a time: a resumed build must not mix two versions of a shard.
        mtime_ns=int(entry.sha256[:15], 16),
    )  # fmt: skip
    for key, offset, num_bytes, source_bytes, label in zip(*found, strict=True):
        size_bytes = num_bytes - HEADER_BYTES - FOOTER_BYTES
        yield blank._replace(
            key=key, label=label, size_bytes=size_bytes, offset_bytes=offset,
            source_bytes=source_bytes,
        )  # fmt: skip
