"""Turns the images of an archive into references, labelled as in an unpacked folder.

In a WebDataset, members whose names are equal up to their first dot are one sample. The texts of a
sample are the cells of a row: `cls` and `txt` are columns of these names, and each member of a
`json` object is a column.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from beam_pipeline.inputs import labels
from beam_pipeline.inputs.archives.members import (
    MAX_TEXT_BYTES,
    Archive,
    Member,
    archive_files,
    open_archive,
)
from beam_pipeline.inputs.folders import PathFilter, Skipped
from beam_pipeline.inputs.layout import wrong_input
from beam_pipeline.inputs.spool import decompressed, spool_tar
from beam_pipeline.inputs.tables.references import refs_of_row
from beam_pipeline.inputs.tables.rows import Row
from beam_pipeline.inputs.tables.schema import TableSchema, schema_of_rows
from beam_pipeline.options import WEBDATASET, InputOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import UserError
from imageshards.manifest import NONE
from imageshards.text import key_of, printable

# Members that show whether an archive is a WebDataset, and samples that show the column types.
_FIRST_MEMBERS = 100
_INFERENCE_SAMPLES = 100
_IMAGE = "image"
_TEXTS = ("json", "txt", "cls")

_Sample = tuple[str, Member | None, dict[str, Any], list[Skipped]]


def webdataset_schema(source: InputOptions) -> TableSchema | None:
    """Returns the columns of WebDataset archives by their first samples, or None."""
    path, _ = archive_files(source)[0]
    with open_archive(path, encoding=source.zip_encoding) as archive:
        is_asked = source.layout == WEBDATASET
        if not is_asked and (source.layout != "auto" or not _is_webdataset(archive, source)):
            return None
    # The archive is opened again, as a compressed tar can only be read from its beginning.
    with open_archive(path, encoding=source.zip_encoding) as archive:
        samples = (each for each in _samples(archive, path, source) if each[1] is not None)
        head: list[Row] = [
            (f"{path}: {key}", row | {_IMAGE: ""})
            for key, _, row, _ in itertools.islice(samples, _INFERENCE_SAMPLES)
        ]
    if not head:
        raise wrong_input(path, "which has no sample with an image", "KEY.jpg members")
    source = dataclasses.replace(source, image_column=_IMAGE)
    names = {name for _, row in head for name in row}
    if source.label != NONE and source.label_column is None and "cls" in names:
        source = dataclasses.replace(source, label_column="cls")
    if source.columns is None:
        # A record has no feature for a JSON object.
        nested = {n for _, row in head for n, cell in row.items() if isinstance(cell, dict)}
        head = [(where, {n: c for n, c in row.items() if n not in nested}) for where, row in head]
    return schema_of_rows(source, head, unused=("key", "split"))


def _is_webdataset(archive: Archive, source: InputOptions) -> bool:
    """Returns whether, among the first members, an image shares its key with a class or JSON."""
    # A text beside an image may be a caption, or the boxes of a detection dataset. So texts make a
    # WebDataset only if labels do not come from folders.
    wanted = {"cls", "json"}
    if source.label == NONE or source.label_column == "txt":
        wanted.add("txt")
    found = itertools.islice(archive.members(), _FIRST_MEMBERS)
    endings: dict[str, set[str]] = {}
    images: set[str] = set()
    for member in found:
        if isinstance(member, Member):
            key, ending = _key_and_ending(member.name)
            endings.setdefault(key, set()).add(ending)
            if member.name.lower().endswith(source.extensions):
                images.add(key)
    return source.label_regex is None and any(endings[key] & wanted for key in images)


def _key_and_ending(name: str) -> tuple[str, str]:
    """Splits a name at its first dot: `a/000.seg.png` → (`a/000`, `seg.png`)."""
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def _samples(
    archive: Archive, path: str, source: InputOptions, reads_texts: bool = True
) -> Iterator[_Sample]:
    """Yields (key, image, row of cells, `Skipped`s) for each run of members with one key."""
    # Each text is read right after its header, so a compressed archive, or an archive in a store,
    # is read once from its beginning to its end.
    passes_over = PathFilter("", source.exclude_glob)

    for key, members in itertools.groupby(
        archive.members(), lambda m: "" if isinstance(m, Skipped) else _key_and_ending(m.name)[0]
    ):
        image: Member | None = None
        texts: dict[str, dict[str, Any]] = {}
        skipped: list[Skipped] = []
        for member in members:
            if isinstance(member, Skipped):
                skipped.append(member)
            elif why := passes_over(f"/{member.name}"):
                skipped.append(why)
            elif (ending := _key_and_ending(member.name)[1]) in _TEXTS:
                texts[ending] = _cells(archive, path, member, ending) if reads_texts else {}
            elif image is None and f".{ending}" in source.extensions:
                image = member
            else:
                skipped.append(Skipped("other_member"))
        if image is None and texts:
            skipped.append(Skipped("sample_without_image"))
        row: dict[str, Any] = {}
        # The order of `_TEXTS` lets a `.cls` member win over a `cls` in the JSON.
        for ending in _TEXTS:
            row |= texts.get(ending, {})
        yield key, image, row, skipped


def _cells(archive: Archive, path: str, member: Member, ending: str) -> dict[str, Any]:
    """Returns the cells in a text of a sample; raises `UserError` if the text is damaged."""
    where = f"{path}: {printable(member.name)}"
    if member.size_bytes > MAX_TEXT_BYTES:
        raise UserError(f"{where} has {member.size_bytes:,} bytes", expected="a short text")
    try:
        text = archive.read(member).decode()
        found = json.loads(text) if ending == "json" else {ending: text.strip()}
    except (ValueError, RecursionError) as e:
        kind = "JSON" if ending == "json" else "UTF-8 text"
        raise UserError(f"{where} is not {kind} ({e})", remedy="pack the archive again") from e
    if not isinstance(found, dict):
        raise UserError(f"{where} is no JSON object", expected="{column: value}")
    return found


def _sample_refs(
    archive: Archive, source: InputOptions, schema: TableSchema, prefix: str, blank: ImageRef
) -> Iterator[ImageRef | Skipped]:
    """Yields the references of an archive's samples, and a `Skipped` for each member passed over.

    `prefix` is the beginning of the keys, "" for nothing. `blank` is a reference with the place of
    the archive. Raises `UserError` if a sample lacks its label or a column.
    """
    reads_texts = bool(schema.label or schema.columns or schema.key or schema.split or schema.group)
    for key, image, row, skipped in _samples(archive, blank.uri, source, reads_texts):
        yield from skipped
        if image is None:
            continue
        place = blank._replace(
            key=key_of("/".join(filter(None, (prefix, image.name)))),
            size_bytes=image.size_bytes,
            offset_bytes=image.offset_bytes,
            form=image.form,
        )
        yield from refs_of_row(f"{blank.uri}: {printable(key)}", row, schema, place)


def archive_refs(
    path: str,
    prefix: str,
    source: InputOptions,
    schema: TableSchema | None,
    spool: str,
    said: tuple[str | None, str | None] = (None, None),
) -> Iterator[ImageRef | Skipped]:
    """Yields the references of an archive, and a `Skipped` for each member passed over.

    `prefix` is the beginning of the keys, "" for the only archive of an input. `schema` has the
    columns of WebDataset archives. `said` are the splits that the names of the archive and of the
    folders above it say; its images have the second one if the archive's name is their class.
    Raises `UserError` if the archive cannot be read to its end, or an image has no label.
    """
    found = storage.stat(path)
    if found is None:
        expected = "an archive (.tar, .zip, .tar.gz)"
        raise wrong_input(path, "which is no file", expected, "fix the path")
    spooled = spool_tar(found, spool) if decompressed(path) else ""
    blank = ImageRef("", path, None, said[0], mtime_ns=found.mtime_ns, spooled=spooled)
    with open_archive(path, spooled, source.zip_encoding) as archive:
        if schema is not None:
            yield from _sample_refs(archive, source, schema, prefix, blank)
            return
        members: dict[str, Member] = {}
        passes_over = PathFilter("", source.exclude_glob)
        for member in archive.members():
            if isinstance(member, Skipped):
                yield member
            elif skipped := passes_over(f"/{member.name}"):
                yield skipped
            else:
                # Of two members with one name, unpacking would leave the last.
                members[member.name] = member
    tree = _MemberTree(members, source.extensions)
    layout = labels.find_layout(tree, source, key_of(prefix).rpartition("/")[2])
    yield from layout.notes
    above, by_name = key_of(prefix), said[layout.label is not None]
    for name, member in members.items():
        for place in labels.read_path(layout, source, name):
            if isinstance(place, Skipped):
                yield place
                continue
            yield blank._replace(
                key="/".join(filter(None, (above, place.key))), label=place.label,
                split=place.split or by_name, group=place.group, size_bytes=member.size_bytes,
                offset_bytes=member.offset_bytes, form=member.form,
            )  # fmt: skip
    for path, kind in layout.folders(tree):
        if kind == labels.CLASS and not tree.holds_image(path):
            yield Skipped(labels.EMPTY_CLASS_FOLDER, key_of(path.rstrip("/")))


class _MemberTree:
    """The folders of an archive, as a `labels.Tree`."""

    def __init__(self, names: Iterable[str], extensions: tuple[str, ...]):
        self._names = sorted(names)
        self._folders: dict[str, set[str]] = collections.defaultdict(set)
        self._with_images = set[str]()
        self._above_images = set[str]()
        for name in self._names:
            *parts, _ = name.split("/")
            paths = [*itertools.accumulate((f"{part}/" for part in parts), initial="")]
            for path, inner in zip(paths, parts, strict=False):
                self._folders[path].add(inner)
            if name.lower().endswith(extensions):
                self._with_images.add(paths[-1])
                self._above_images.update(paths)

    def folders(self, path: str) -> list[str]:
        return sorted(self._folders.get(path, ()))

    def has_image(self, path: str) -> bool:
        return path in self._with_images

    def holds_image(self, path: str) -> bool:
        return path in self._above_images

    def files(self, path: str) -> Iterator[str]:
        return (storage.name_of(name) for name in self._names if name.startswith(path))
