"""Reads WebDataset archives: members whose names are equal up to their first dot are one sample.

The image of a sample is read by its range. The texts of a sample are the cells of a row: `cls` and
`txt` are columns of these names, and each member of a `json` object is a column.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any

from beam_pipeline.inputs.archives.members import Archive, Member, archive_files, open_archive
from beam_pipeline.inputs.folders import PathFilter, Skipped
from beam_pipeline.inputs.layout import wrong_input
from beam_pipeline.inputs.tables.references import refs_of_row
from beam_pipeline.inputs.tables.rows import Row
from beam_pipeline.inputs.tables.schema import TableSchema, schema_of_rows
from beam_pipeline.options import WEBDATASET, InputOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards.errors import UserError
from imageshards.manifest import NONE
from imageshards.text import key_of, printable

# Members that show whether an archive is a WebDataset, and samples that show the column types.
_FIRST_MEMBERS = 100
_INFERENCE_SAMPLES = 100
# Larger texts are refused, as captions and metadata are small.
_MAX_TEXT_BYTES = 16 << 20
_IMAGE = "image"
_TEXTS = ("json", "txt", "cls")

_Sample = tuple[str, Member | None, dict[str, Any], list[Skipped]]


def read_schema(source: InputOptions) -> TableSchema | None:
    """Returns the columns of WebDataset archives by their first samples; None for plain archives.

    Raises `UserError` if the first archive cannot be read, or a column is missing.
    """
    path, _ = archive_files(source)[0]
    with open_archive(path) as archive:
        is_asked = source.layout == WEBDATASET
        if not is_asked and (source.layout != "auto" or not _is_webdataset(archive, source)):
            return None
    # The archive is opened again, as a compressed tar can only be read from its beginning.
    with open_archive(path) as archive:
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

    def key_of_member(member: Member | Skipped) -> str:
        return "" if isinstance(member, Skipped) else _key_and_ending(member.name)[0]

    for key, members in itertools.groupby(archive.members(), key_of_member):
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
    if member.size_bytes > _MAX_TEXT_BYTES:
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


def read_refs(
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
        where = f"{blank.uri}: {printable(key)}"
        yield from refs_of_row(where, row, schema, place)
