"""Lists an input inside the pipeline, folder by folder, as batches of references."""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems

from beam_pipeline import manifest_input
from beam_pipeline.errors import UserError
from beam_pipeline.manifest_input import ManifestSchema
from beam_pipeline.options import InputOptions
from beam_pipeline.planning import merge_counts
from beam_pipeline.reading import is_local
from beam_pipeline.refs import ImageRef, RefBatch

BATCH_SIZE = 1000
SPLIT_FOLDERS = {
    "train", "training", "val", "valid", "validation", "dev", "eval", "evaluation", "test", "testing",
}  # fmt: skip
_MANIFESTS = (".csv", ".jsonl", ".ndjson", ".parquet")
_MAGIC = re.compile(r"[*?\[]")


@dataclasses.dataclass(frozen=True)
class Folder:
    """One piece of listing work.

    Attributes:
        path: Folder, glob or manifest to list.
        split, label: What the folder gives every image in it; None if it does not.
        kind: `folder`, `glob`, `manifest`, or `outside` for files beside class folders,
            which are only counted.
    """

    path: str
    split: str | None = None
    label: str | None = None
    kind: str = "folder"


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A file that was passed over, and why."""

    reason: str


def printable(text: str) -> str:
    """File names may hold bytes that are no text; keys and labels are text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def input_root(source: InputOptions) -> str:
    """The folder that keys are relative to."""
    if _MAGIC.search(source.input):
        return _MAGIC.split(source.input)[0].rpartition("/")[0] or "."
    return source.input.rstrip("/") or "/"


def layout_of(source: InputOptions) -> str:
    """The layout asked for, or the one that the input's name tells; `folders` needs a look."""
    if source.layout != "auto":
        return source.layout
    if source.input.lower().endswith(_MANIFESTS):
        return "manifest"
    if _MAGIC.search(source.input) or source.label_regex:
        return "flat"
    return "folders"


def expand_root(source: InputOptions) -> Iterator[Folder]:
    """The pieces of listing work of an input.

    Raises:
        UserError: The input is not there, holds no class folder, or needs a regex.
    """
    layout = layout_of(source)
    if layout == "manifest":
        yield Folder(source.input, kind="manifest")
    elif layout == "flat":
        if not source.label_regex:
            raise UserError(
                f"--input {source.input!r} is a flat folder or glob, so the label must be in the file "
                "name; expected --label_regex, for example '^([a-z]+)\\.' for cat.0.jpg."
            )
        yield Folder(source.input, kind="glob" if _MAGIC.search(source.input) else "folder")
    elif is_local(source.input):
        yield from _class_folders(source, layout)
    else:
        yield Folder(source.input)


def _class_folders(source: InputOptions, layout: str) -> Iterator[Folder]:
    top = _subfolders(source.input)
    if layout == "folders":
        by_split = bool(top) and all(name.lower() in SPLIT_FOLDERS for name, _ in top)
        by_split = by_split and any(_subfolders(path) for _, path in top)
        layout = "split_folders" if by_split else "class_folders"
    beside = [Folder(source.input, kind="outside")]
    if layout == "class_folders":
        found = [Folder(path, label=printable(name)) for name, path in top]
    else:
        beside += [Folder(path, kind="outside") for _, path in top]
        found = [
            Folder(path, printable(split), printable(name))
            for split, split_path in top
            for name, path in _subfolders(split_path)
        ]
    if not found:
        raise UserError(
            f"--input {source.input!r} has no class folder; expected ROOT/<class>/*.jpg, a manifest "
            "(.csv, .jsonl, .parquet), or --label_regex for labels in file names."
        )
    yield from found
    yield from beside


def _subfolders(path: str) -> list[tuple[str, str]]:
    try:
        with os.scandir(path) as entries:
            return sorted((e.name, e.path) for e in entries if e.is_dir() and e.name[0] != ".")
    except FileNotFoundError:
        raise UserError(f"--input {path!r} does not exist; expected a folder, glob or manifest.") from None
    except NotADirectoryError:
        raise UserError(
            f"--input {path!r} is a file, not a folder; expected a folder, or a manifest named .csv, "
            ".jsonl or .parquet."
        ) from None
    except OSError as e:
        raise UserError(f"--input {path!r} cannot be listed ({e.strerror}); mend its rights.") from e


def list_folder(
    folder: Folder, source: InputOptions, schema: ManifestSchema | None
) -> Iterator[RefBatch | Skipped]:
    """Lists one piece of work.

    Raises:
        UserError: A file name does not match --label_regex; a row of a manifest is wrong.
    """
    if folder.kind == "outside":
        yield from _beside(folder.path)
        return
    if folder.kind == "manifest":
        refs: Iterator[ImageRef | Skipped] = manifest_input.read_refs(folder.path, schema)
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


def _beside(path: str) -> Iterator[Skipped]:
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                yield Skipped("hidden")
            elif not entry.is_dir():
                yield Skipped("outside_class_folders")


def _image_refs(folder: Folder, source: InputOptions) -> Iterator[ImageRef | Skipped]:
    regex = re.compile(source.label_regex) if source.label_regex else None
    root = input_root(source)
    prefix = len(root.rstrip("/")) + 1  # keys are the path below the root
    for path, size_bytes, mtime_ns in _files(folder):
        name = path.rpartition("/")[2]
        if isinstance(size_bytes, Skipped):
            yield size_bytes
        elif name.startswith("."):
            yield Skipped("hidden")
        elif not name.lower().endswith(source.extensions):
            yield Skipped("not_an_image_name")
        else:
            key = printable(path[prefix:])
            label, split, group = _labels(folder, regex, name, key)
            yield ImageRef(key, path, label, split, group, size_bytes, mtime_ns)


def _labels(
    folder: Folder, regex: re.Pattern[str] | None, name: str, key: str
) -> tuple[str, str | None, str | None]:
    if folder.label is not None:
        return folder.label, folder.split, None
    if regex is None:  # a store's listing: the class is the first component of the key
        parts = key.split("/")
        if len(parts) == 1:
            raise UserError(
                f"--input has {key!r} outside any class folder; expected ROOT/<class>/*.jpg or --label_regex."
            )
        if parts[0].lower() in SPLIT_FOLDERS and len(parts) > 2:
            return parts[1], parts[0], None
        return parts[0], None, None
    found = regex.search(printable(name))
    if not found:
        raise UserError(
            f"--label_regex {regex.pattern!r} does not match the file name {name!r}; mend the "
            "expression or take the file out."
        )
    named = found.groupdict()
    label = named.get("label") or found.group(1)
    return label, named.get("split"), named.get("group")


def _files(folder: Folder) -> Iterator[tuple[str, int | Skipped, int]]:
    if folder.kind == "glob" or not is_local(folder.path):
        yield from _matched(folder)
    else:
        yield from _walk(folder.path, frozenset())


def _matched(folder: Folder) -> Iterator[tuple[str, int | Skipped, int]]:
    pattern = folder.path if folder.kind == "glob" else folder.path.rstrip("/") + "/**"
    try:
        found = FileSystems.match([pattern])[0].metadata_list
    except Exception as e:  # every store has errors of its own
        raise UserError(f"--input {folder.path!r} cannot be listed ({e}).") from e
    for metadata in sorted(found, key=lambda m: m.path):
        if is_local(metadata.path) and os.path.isdir(metadata.path):
            yield metadata.path, Skipped("directory"), 0
        else:
            mtime_ns = int((metadata.last_updated_in_seconds or 0) * 1e9)
            yield metadata.path, metadata.size_in_bytes, mtime_ns


def _walk(path: str, above: frozenset[tuple[int, int]]) -> Iterator[tuple[str, int | Skipped, int]]:
    try:
        entries = sorted(os.scandir(path), key=lambda e: e.name)
    except OSError as e:
        raise UserError(f"--input: {path!r} cannot be listed ({e.strerror}); mend its rights.") from e
    for entry in entries:
        if entry.is_dir():
            status = entry.stat()
            here = (status.st_dev, status.st_ino)
            if entry.name.startswith("."):
                yield entry.path, Skipped("hidden"), 0
            elif here in above:
                yield entry.path, Skipped("link_to_a_folder_above"), 0
            else:
                yield from _walk(entry.path, above | {here})
        elif entry.is_file():
            status = entry.stat()
            yield entry.path, status.st_size, status.st_mtime_ns
        elif entry.is_symlink():
            yield entry.path, -1, 0  # broken: listed, so that it is quarantined, not lost
        else:
            yield entry.path, Skipped("special_file"), 0


def duplicate_checks(batch: RefBatch) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """(bucket, [(key, uri)]) so that equal keys meet, a thousand lists at a time."""
    import zlib

    buckets: dict[int, list[tuple[str, str]]] = collections.defaultdict(list)
    for ref in batch.refs:
        buckets[zlib.crc32(ref.key.encode("utf-8", "surrogatepass")) % 256].append((ref.key, ref.uri))
    yield from buckets.items()


def refuse_duplicates(bucket: int, found: Iterable[list[tuple[str, str]]]) -> Iterator[None]:
    """Raises `UserError` naming both images of a key that occurs twice; yields nothing."""
    seen: dict[str, str] = {}
    for pairs in found:
        for key, uri in pairs:
            if key in seen:
                first, second = sorted((seen[key], uri))
                raise UserError(
                    f"--input has the key {key!r} twice, for {first!r} and {second!r}; expected unique keys: "
                    "name a unique column by --key_column or remove one row."
                )
            seen[key] = uri
    yield from ()


class Listed(tuple):
    """(batches: PCollection[RefBatch], skipped: PCollection[dict] with one element)."""

    batches = property(lambda self: self[0])
    skipped = property(lambda self: self[1])


class ListImages(beam.PTransform):
    """An input → batches of `ImageRef`, listed by the workers; nothing is in the graph."""

    def __init__(self, source: InputOptions, schema: ManifestSchema | None):
        super().__init__()
        self._source = source
        self._schema = schema

    def expand(self, pipeline: beam.Pipeline) -> Listed:
        listed = (
            pipeline
            | "Input" >> beam.Create([self._source])
            | "ExpandRoot" >> beam.FlatMap(expand_root)  # Folder
            | "Spread" >> beam.Reshuffle()
            | "ListFolder"
            >> beam.ParDo(_ListFolderFn(self._source, self._schema)).with_outputs(
                "skipped", main="batches"
            )
        )
        skipped = listed.skipped | "SumSkipped" >> beam.CombineGlobally(merge_counts)
        return Listed((listed.batches, skipped))


class _ListFolderFn(beam.DoFn):
    """Folder → RefBatch; tagged `skipped`: {reason: files}."""

    def __init__(self, source: InputOptions, schema: ManifestSchema | None):
        self._source = source
        self._schema = schema

    def process(self, folder: Folder) -> Iterator:
        skipped: collections.Counter[str] = collections.Counter()
        for found in list_folder(folder, self._source, self._schema):
            if isinstance(found, Skipped):
                skipped[found.reason] += 1
            else:
                yield found
        yield beam.pvalue.TaggedOutput("skipped", dict(skipped))
