"""Cuts an input into listing tasks, and lists the references of each task."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence

from beam_pipeline.inputs import folders, labels
from beam_pipeline.inputs.annotations.places import Place, places_of
from beam_pipeline.inputs.annotations.references import annotated_refs, annotated_schema
from beam_pipeline.inputs.annotations.refused import file_error
from beam_pipeline.inputs.archives.members import archive_files
from beam_pipeline.inputs.archives.references import archive_refs, webdataset_schema
from beam_pipeline.inputs.datasets import (
    as_copied,
    different_columns,
    list_records,
    shards_to_list,
)
from beam_pipeline.inputs.folders import Found, Level, PathFilter, Skipped, is_dataset
from beam_pipeline.inputs.layout import (
    glob_root,
    input_root,
    is_glob,
    is_pattern,
    layout_of,
    without_suffix,
)
from beam_pipeline.inputs.tables.references import read_refs
from beam_pipeline.inputs.tables.roles import TableSchema
from beam_pipeline.inputs.tables.schema import read_schema, table_files
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import (
    ANNOTATIONS,
    ARCHIVES,
    DATASET,
    TABLE,
    InputOptions,
)
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import Arg, UserError, wrong_input
from imageshards.manifest import MANIFEST_NAME, Shard
from imageshards.tables import Part, parts
from imageshards.text import key_of, printable

_SOME = 100  # names of files that are no images, among which annotations may be


@dataclasses.dataclass(frozen=True)
class ListingTask:
    """Part of an input that one call of `list_task` lists."""

    path: str  # folder, glob or file
    split: str | None = None  # split of images without one, as names of files and folders say
    # `folder`, `class` (a class folder), `other` (a folder outside of them), `beside` (files beside
    # class folders), `glob`, `table` (also annotations), `shard` or `archive`.
    kind: str = "folder"
    layout: labels.Layout = labels.Layout()  # labels and splits of folders and globs
    part: Part | None = None  # part of a Parquet file; None for all
    entry: Shard | None = None  # entry of a shard in its manifest
    source: int = 0  # number of the input
    place: Place | None = None  # pictures of a detection dataset
    prefix: str = ""  # beginning of the keys of an archive
    # Path whose name says a split, if images must not be drawn into the same split; else "".
    beside: str = ""
    word: str = ""  # name with a word for a split, if images are drawn into splits nonetheless
    passed: tuple[tuple[Skipped, int], ...] = ()  # what is passed over, and how often


def schema_of(source: InputOptions, class_names: Sequence[str] | None = None) -> TableSchema | None:
    """Returns the columns of an image table or of WebDataset archives, None without columns.

    `class_names` are names by number, for labels that are numbers. Raises `UserError` if the table
    cannot be read or lacks a column.
    """
    return schemas_of([source], class_names)[0]


def schemas_of(
    sources: Sequence[InputOptions], class_names: Sequence[str] | None = None
) -> tuple[TableSchema | None, ...]:
    """Returns the columns of each input; raises `UserError` also if extra columns would differ."""
    schemas: list[TableSchema | None] = []
    for source in sources:
        read = {TABLE: read_schema, ARCHIVES: webdataset_schema}.get(layout_of(source))
        read = annotated_schema if layout_of(source) in ANNOTATIONS else read
        found = read(source) if read else None
        if found is not None:
            # Names in a Parquet file win over the names of --class_names.
            names = found.class_names or tuple(class_names or ())
            found = dataclasses.replace(found, class_names=names)
        schemas.append(found)
    columns = [schema.columns if schema else () for schema in schemas]
    dropped = {name for schema in schemas if schema for name in schema.dropped}
    for name in sources[0].drop_column if any(schemas) else ():
        if name not in dropped:
            known = ", ".join(repr(column.name) for column in columns[0])
            received = f"{name!r}, which is no extra column of any " + Arg("input")
            raise invalid("drop_column", received, f"one of {known or 'none'}")
    for source, given in zip(sources[1:], columns[1:], strict=True):
        if set(given) != set(columns[0]):
            remedy = "leave out what differs by " + Arg("drop_column") + ", or store none by "
            remedy = remedy + Arg("columns", "")
            pair = (sources[0].input, columns[0]), (source.input, given)
            raise different_columns(*pair, "the same ones in all", remedy)
    return tuple(schemas)


def listing_tasks(*sources: InputOptions, draws: bool = True) -> list[ListingTask]:
    """Returns the tasks that together list some inputs.

    Names of inputs and of files say the split of their images: `photos/train`, `val-0001.tar`.
    Raises `UserError` if an input cannot be used. Without `draws`, the name of a single input says
    it, too, and tasks raise `UserError` for an image without a split beside a name that says one.
    """
    found = [
        dataclasses.replace(task, source=number)
        for number, source in enumerate(sources)
        for task in _tasks_of(source)
    ]
    tasks = [task for task in found if task.kind != "shard"]  # a manifest says splits of records
    # Names above all inputs say nothing about one of them.
    roots = [glob_root(s.input) if is_pattern(s.input) else s.input for s in sources]
    parts = [root.rstrip("/").split("/") for root in roots]
    start = len(os.path.commonprefix(parts))
    if not draws:
        start = min(start, *(len(each) - 1 for each in parts))
    paths = [
        task.path if task.kind in ("archive", "table") else input_root(sources[task.source])
        for task in tasks
    ]
    names = [without_suffix(path).split("/")[start:] for path in paths]
    said = labels.said_splits(names, draws)
    first = next((path for path, split in zip(paths, said, strict=True) if split), "")
    words = (each for name in names for each in name if labels.split_word(each))
    # `steam_train` may be no split, but it may be one, too.
    word = "" if draws or first else next(words, "")
    return [task for task in found if task.kind == "shard"] + [
        dataclasses.replace(task, split=split, beside="" if draws else first, word=word)
        for task, split in zip(tasks, said, strict=True)
    ]


def _tasks_of(source: InputOptions) -> Iterator[ListingTask]:
    if not storage.is_local(source.input):
        storage.check_bucket(source.input, "input")
    layout = layout_of(source)
    if layout == TABLE:
        files = table_files(source.input)
        for path, found in storage.map_concurrently(lambda path: (path, parts(path)), files):
            yield from (ListingTask(path, kind="table", part=part) for part in found)
    elif layout in ANNOTATIONS:
        yield from (ListingTask(one.path, kind="table", place=one) for one in places_of(source))
    elif layout == DATASET:
        for path, split, entry in shards_to_list(as_copied(source)):
            yield ListingTask(path, split, kind="shard", entry=entry)
    elif layout == ARCHIVES:
        for path, prefix in archive_files(source):
            yield ListingTask(path, kind="archive", prefix=prefix)
    elif is_glob(source.input):
        labels.flat_layout(source)
        if is_dataset(input_root(source)):
            raise folders.finished_input(input_root(source))
        yield ListingTask(source.input, kind="glob")
    else:
        yield from _folder_tasks(source)


class _FolderTree:
    """The folders of an input on this machine or in a store, as a `labels.Tree`."""

    def __init__(self, source: InputOptions):
        self._source, self._passes_over = source, path_filter(source)
        self._root = source.input.rstrip("/") + "/"
        self._levels: dict[str, Level] = {}
        self._holds: dict[str, bool] = {}
        # Folder → what is passed over directly in it, if it is no class folder.
        self.passed: dict[str, collections.Counter[Skipped]] = {}

    def level(self, path: str) -> Level:
        if path not in self._levels:
            self._levels[path] = self._list(path, self.path_of(path))
        return self._levels[path]

    def _list(self, path: str, here: str) -> Level:
        found: list[str] = []
        others: list[str] = []
        has_image = False
        passed = self.passed[path] = collections.Counter()
        try:
            for name, below, is_folder in folders.folder_entries(here):
                if name == MANIFEST_NAME and is_dataset(here):
                    raise folders.finished_input(here)
                if why := self._passes_over(below):
                    passed[why] += 1
                elif is_folder:
                    found.append(name)
                else:
                    is_image = name.lower().endswith(self._source.extensions)
                    has_image = has_image or is_image
                    others += [name] * (not is_image and len(others) < _SOME)
                    beside = labels.read_path(labels.Layout(classes={}), self._source, name, {})
                    passed.update(each for each in beside if isinstance(each, Skipped))
        except OSError as e:
            passed[folders.unreadable(here, e, self._passes_over)] += 1
        return Level(sorted(found), has_image, others)

    def holds_image(self, path: str) -> bool:
        """Returns whether an image is below a folder, or may be, as the folder cannot be listed."""
        if path not in self._holds:
            self._holds[path] = any(
                name.lower().endswith(self._source.extensions)
                if not isinstance(size, Skipped)
                else size.reason == folders.UNREADABLE_FOLDER
                for name, size, _ in folders.files_below(self.path_of(path), self._passes_over)
            )
        return self._holds[path]

    def files(self, path: str) -> Iterator[str]:
        # The listing itself reports an unreadable folder.
        with contextlib.suppress(PermissionError):
            yield from (file.name for file in storage.files_below(self.path_of(path)))

    def path_of(self, path: str) -> str:
        return (self._root + path).rstrip("/") or "/"


def _folder_tasks(source: InputOptions) -> Iterator[ListingTask]:
    tree = _FolderTree(source)
    try:
        layout = labels.find_layout(tree, source)
    except UserError as e:
        raise (storage.exists(source.input) and file_error(source.input)) or e from None
    classes, wrapper = layout.classes, layout.wrapper
    if classes is None:
        if is_dataset(source.input):
            raise folders.finished_input(source.input)
        yield ListingTask(source.input, layout=layout)
        return
    if folders.none_readable(map(tree.path_of, classes)):
        raise _nothing_readable(source, tree.path_of(min(classes)))
    levels = {"", *(path for folder in classes for path in [*labels.above(folder)][:-1])}
    passed = collections.Counter(layout.notes)
    if wrapper:  # the user named the folder above
        passed[Skipped(labels.WRAPPED, key_of(wrapper))] += 1
    for path in sorted(levels):
        for below in (f"{path}{name}/" for name in tree.level(path).folders):
            # Each task has the part of the layout that it needs.
            own = {below: classes[below]} if below in classes else {}
            flat = {each: s for each, s in layout.flat.items() if each.startswith(below)}
            if below not in levels:
                kind, of_task = "class" if own else "other", labels.Layout(wrapper, own, flat=flat)
                yield ListingTask(tree.path_of(below), kind=kind, layout=of_task)
        passed += tree.passed[path]
    yield ListingTask(source.input, kind="beside", passed=tuple(passed.items()))


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
    refs: Iterator[ImageRef | Skipped]
    if task.kind == "beside":
        refs = itertools.chain.from_iterable(itertools.repeat(*each) for each in task.passed)
    elif task.kind == "archive":
        refs = archive_refs(task.path, task.prefix, source, schema, spool)
    elif task.place is not None and schema is not None:
        refs = annotated_refs(task.place, source, schema)
    elif schema is not None:
        refs = read_refs(task.path, schema, task.part, spool)
    elif task.entry is not None:
        has, wanted = as_copied(source).record_label, source.label
        refs = list_records(task.path, task.split, task.entry, (has, wanted))
    else:
        refs = _image_refs(task, source)
    said = None if task.kind == "shard" else task.split
    given: set[str] = set()
    drawn = False
    is_empty, unreadable = True, ""  # `unreadable` is the first folder that cannot be listed
    for ref in refs:
        if isinstance(ref, Skipped):
            unreadable = unreadable or ref.name * (ref.reason == folders.UNREADABLE_FOLDER)
            yield ref
            continue
        is_empty = False
        split = ref.split or said
        if split:
            given.add(split)
        elif task.beside:
            raise _without_split(task)
        drawn = drawn or not split
        is_same = (split, task.source) == (ref.split, ref.source)
        yield ref if is_same else ref._replace(split=split, source=task.source)
    # Splits of records are known from the manifest; a warning names splits that images bring.
    if task.kind != "shard":
        yield from (Skipped(labels.GIVEN_SPLIT, split) for split in sorted(given))
    if task.word and drawn:
        yield Skipped(labels.DRAWN_BESIDE_WORD, printable(task.word))
    if is_empty and unreadable and task.kind in ("folder", "glob"):
        raise _nothing_readable(source, unreadable)
    if is_empty and task.kind == "class" and not unreadable:
        below = task.path[len(input_root(source).rstrip("/")) + 1 :]
        yield Skipped(labels.EMPTY_CLASS_FOLDER, key_of(below))


def _without_split(task: ListingTask) -> UserError:
    problem = f"with images without a split, beside {task.beside!r}, whose name says its split"
    remedy = "say a split in each name, or say " + Arg("splits", "train=1")
    remedy += " or other fractions for the images without a split"
    return wrong_input(task.path, problem, "a split for all images", remedy)


def _image_refs(task: ListingTask, source: InputOptions) -> Iterator[ImageRef | Skipped]:
    passes_over = path_filter(source)
    start = len(passes_over.root) + 1  # a key is the path below the root
    found: Iterator[Found]
    if task.kind == "glob":
        found = folders.files_matching(task.path, passes_over)
    else:
        found = folders.files_below(task.path, passes_over)
    for path, size_bytes, mtime_ns in found:
        if isinstance(size_bytes, Skipped):
            yield size_bytes
            continue
        place = {"uri": path, "size_bytes": size_bytes, "mtime_ns": mtime_ns}
        yield from labels.read_path(task.layout, source, path[start:], place)


def path_filter(source: InputOptions) -> PathFilter:
    return PathFilter(input_root(source), source.exclude_glob)
