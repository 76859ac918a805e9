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
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from beam_pipeline.inputs import labels
from beam_pipeline.inputs.archives.members import (
    MAX_TEXT_BYTES,
    Archive,
    Member,
    archive_files,
    open_archive,
)
from beam_pipeline.inputs.folders import EXCLUDED_BY_GLOB, Level, PathFilter, Skipped
from beam_pipeline.inputs.tables.references import refs_of_row
from beam_pipeline.inputs.tables.roles import TableSchema
from beam_pipeline.inputs.tables.schema import schema_of_rows
from beam_pipeline.options import WEBDATASET, InputOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import Arg, ImageError, UserError, install_advice, wrong_input
from imageshards.manifest import NONE
from imageshards.tables import Row
from imageshards.text import counted, key_of, printable

# Members that show whether an archive is a WebDataset, and samples that show the column types.
_FIRST_MEMBERS, _MOST_MEMBERS = 100, 10_000
_INFERENCE_SAMPLES = 100
_IMAGE = "image"
_TEXTS = ("json", "txt", "cls")
# Options that need the texts of a WebDataset.
_ROW_FLAGS = ("label_column", "columns", "key_column", "split_column", "group_column")

# Reason of a member in whose place unpacking would leave a later one.
REPLACED = "replaced_member"
# Reason of a `Skipped` that names an archive with texts beside images that are in class folders.
UNREAD_TEXTS = "unread_texts"
# Reason of a `Skipped` that names an archive without an image.
NO_IMAGE = "archive_without_image"
# Reasons why members may be lost images, and why others are left out, as a sentence says them.
_LOST = {
    "encrypted": "with a password",
    "unknown_compression": "compressed by another method than Deflate, such as Deflate64",
    "outside_archive": "with an absolute path, or a path that leads out of the archive",
    "link": "that are links",
    labels.ARCHIVE_INSIDE: "that are archives",
}
_LEFT_OUT = {
    "not_an_image_name": "with names of no images",
    "hidden": "that are hidden",
    "system_file": "of operating systems",
    EXCLUDED_BY_GLOB: "left out by --exclude_glob",
}


@dataclasses.dataclass
class _Sample:
    """Members of a WebDataset with one key: the image, and the cells of its texts by ending."""

    image: Member | None = None
    texts: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        # The order of `_TEXTS` lets a `.cls` member win over a `cls` in the JSON.
        return {n: c for ending in _TEXTS for n, c in self.texts.get(ending, {}).items()}


def webdataset_schema(source: InputOptions) -> TableSchema | None:
    """Returns the columns of WebDataset archives by their first samples, or None."""
    path, _ = archive_files(source)[0]
    with open_archive(path, encoding=source.zip_encoding) as archive:
        is_asked = source.layout == WEBDATASET
        if not is_asked and (source.layout != "auto" or not _is_webdataset(archive, source)):
            return None
    # The archive is opened again, as a compressed tar can only be read from its beginning.
    with open_archive(path, encoding=source.zip_encoding) as archive:
        head: list[Row] = [
            (f"{path}: {key}", sample.row() | {_IMAGE: ""})
            for key, sample in _first_samples(archive, path, source).items()
            if sample.image
        ]
    if not head:
        remedy = "rename members such as 0.1.jpg: a key ends at the first dot of a name"
        raise wrong_input(path, "which has no sample with an image", "KEY.jpg members", remedy)
    source = dataclasses.replace(source, image_column=_IMAGE)
    names = {name for _, row in head for name in row}
    if source.label != NONE and source.label_column is None and "cls" in names:
        source = dataclasses.replace(source, label_column="cls")
    # A record has no feature for a JSON object.
    nested = {n for _, row in head for n, cell in row.items() if isinstance(cell, dict)}
    nested -= {column.name for column in source.columns or ()}
    head = [(where, {n: c for n, c in row.items() if n not in nested}) for where, row in head]
    found = schema_of_rows(source, head, unused=("key", "split"))
    told = [f"the objects {name!r} in .json members are left out" for name in sorted(nested)]
    return dataclasses.replace(found, warnings=(*found.warnings, *told))


def _is_webdataset(archive: Archive, source: InputOptions) -> bool:
    """Returns whether, among the first members, an image shares its key with a class or JSON."""
    if source.label_regex is not None:
        return False
    wanted = {"cls", "json"}
    # A text may be a caption, or the boxes of a detection dataset.
    if source.label == NONE or source.label_column == "txt":
        wanted.add("txt")
    endings: dict[str, set[str]] = collections.defaultdict(set)
    images: set[str] = set()
    has_other_labels = source.label == NONE
    files = (member for member in _visible(archive, source) if isinstance(member, Member))
    for number, member in enumerate(itertools.islice(files, _MOST_MEMBERS), start=1):
        key, ending = _key_and_ending(member.name)
        endings[key].add(ending.rpartition(".")[2])
        if member.name.lower().endswith(source.extensions):
            images.add(key)
            has_other_labels = has_other_labels or "/" in key
            # Labelling programs write JSON beside images in class folders. So other texts than a
            # class make a WebDataset only if no folder is a class, or an option needs the texts.
            if "/" in key and not any(getattr(source, name) for name in _ROW_FLAGS):
                wanted = {"cls"}
        if key in images and endings[key] & wanted:
            return True
        # Without other labels more members are read, as those of a sample may be far apart.
        if number >= _FIRST_MEMBERS and has_other_labels:
            break
    return False


def _visible(archive: Archive, source: InputOptions) -> Iterator[Member | Skipped]:
    """Yields the members of an archive, and a `Skipped` in place of those that are passed over."""
    passes_over = PathFilter("", source.exclude_glob)
    for member in archive.members():
        yield member if isinstance(member, Skipped) else passes_over(f"/{member.name}") or member


def _key_and_ending(name: str) -> tuple[str, str]:
    """Splits a name at its first dot: `a/000.seg.png` → (`a/000`, `seg.png`)."""
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def _first_samples(archive: Archive, path: str, source: InputOptions) -> dict[str, _Sample]:
    """Returns the first samples of an archive, with all of their members."""
    samples: dict[str, _Sample] = {}
    kinds: set[tuple[bool, frozenset[str]]] = set()  # whether a sample has an image, and its texts
    runs, last = 0, ""
    for member in _visible(archive, source):
        if isinstance(member, Skipped):
            continue
        key, _ = _key_and_ending(member.name)
        if key != last:
            if runs:
                kinds.add((samples[last].image is not None, frozenset(samples[last].texts)))
            # More is read only if members of a sample are apart, or if samples are not alike.
            alike = len(kinds) == 1 and all(map(all, kinds))
            if alike and runs == len(samples) > _INFERENCE_SAMPLES:
                break
            runs, last = runs + 1, key
        _add(samples, archive, path, member, source)
    return dict(itertools.islice(samples.items(), _INFERENCE_SAMPLES))


def _add(
    samples: dict[str, _Sample],
    archive: Archive,
    path: str,
    member: Member,
    source: InputOptions,
    names: Collection[str] | None = None,
) -> Skipped | None:
    """Adds a member to its sample, with the cells of some names or all; returns what is left out.

    A text is read right behind its header, so a compressed archive, or an archive in a store, is
    read once from its beginning to its end.
    """
    key, ending = _key_and_ending(member.name)
    sample = samples.setdefault(key, _Sample())
    if ending in _TEXTS:
        found = _cells(archive, path, member, ending) if names is None or names else {}
        is_twice = ending in sample.texts
        sample.texts[ending] = {n: c for n, c in found.items() if names is None or n in names}
    elif f".{ending}" in source.extensions and sample.image is None:
        sample.image, is_twice = member, False
    elif sample.image and sample.image.name == member.name:
        sample.image, is_twice = member, True
    else:
        return Skipped("other_member")
    return Skipped(REPLACED) if is_twice else None


def _cells(archive: Archive, path: str, member: Member, ending: str) -> dict[str, Any]:
    """Returns the cells in a text of a sample; raises `UserError` if the text is damaged."""
    where = f"{path}: {printable(member.name)}"
    if member.size_bytes > MAX_TEXT_BYTES:
        raise UserError(f"{where} has {member.size_bytes:,} bytes", expected="a short text")
    try:
        text = archive.read(member).decode()
        found = json.loads(text) if ending == "json" else {ending: text.strip()}
    except (ValueError, RecursionError, ImageError) as e:
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
    # Members of a sample may be anywhere, so samples are complete at the end of the archive.
    samples: dict[str, _Sample] = {}
    names = {*schema.names} - {_IMAGE}
    for member in _visible(archive, source):
        skipped = member if isinstance(member, Skipped) else None
        if isinstance(member, Member):
            skipped = _add(samples, archive, blank.uri, member, source, names)
        if skipped:
            yield skipped
    for key, sample in samples.items():
        if (image := sample.image) is None:
            if sample.texts:
                yield Skipped("sample_without_image")
            continue
        place = blank._replace(
            key=key_of("/".join(filter(None, (prefix, image.name)))),
            split=labels.first_split(image.name),
            **image.place,
        )
        yield from refs_of_row(f"{blank.uri}: {printable(key)}", sample.row(), schema, place)


def archive_refs(
    path: str, prefix: str, source: InputOptions, schema: TableSchema | None, spool: str
) -> Iterator[ImageRef | Skipped]:
    """Yields the references of an archive, and a `Skipped` for each member passed over.

    `prefix` is the beginning of the keys, "" for the only archive of an input. `schema` has the
    columns of WebDataset archives. Raises `UserError` if the archive cannot be read to its end, or
    an image has no label.
    """
    found = storage.stat(path)
    if found is None:
        expected = "an archive (.tar, .zip, .tar.gz)"
        raise wrong_input(path, "which is no file", expected, "fix the path")
    blank = ImageRef("", path, None, mtime_ns=found.mtime_ns, version=found.version)
    counts = collections.Counter[str]()
    has_image = False
    with open_archive(path, found, spool, source.zip_encoding) as archive:
        blank = blank._replace(spooled=archive.spooled)
        if schema is not None:
            refs = _sample_refs(archive, source, schema, prefix, blank)
        else:
            refs = _refs_in_folders(archive, source, prefix, blank)
        for ref in refs:
            if isinstance(ref, ImageRef):
                has_image = True
            elif not ref.name or ref.reason == EXCLUDED_BY_GLOB:
                counts[ref.reason] += 1
            yield ref
    if not has_image:
        # An archive of texts beside other archives may be left out; lost images may not.
        if not prefix or counts.keys() & _LOST.keys():
            raise _no_image(path, counts)
        yield Skipped(NO_IMAGE, printable(path))


def _no_image(path: str, counts: Mapping[str, int]) -> UserError:
    reasons = [f"{counted(n, 'member')} {(_LOST | _LEFT_OUT).get(r, r)}" for r, n in counts.items()]
    problem = f"which holds no image that can be read ({', '.join(reasons) or 'it is empty'})"
    if counts.keys() & _LOST.keys():
        remedy = "unpack it with the program that made it, and give the folder"
        return wrong_input(path, problem, remedy=remedy)
    expected = "members whose names end as " + Arg("extensions") + " says"
    remedy = "convert pictures of other formats; for HEIC, " + install_advice("heif")
    return wrong_input(path, problem, expected, remedy)


def _refs_in_folders(
    archive: Archive, source: InputOptions, prefix: str, blank: ImageRef
) -> Iterator[ImageRef | Skipped]:
    members: dict[str, Member] = {}
    for member in _visible(archive, source):
        if isinstance(member, Skipped):
            yield member
            continue
        # Of two members with one name, unpacking would leave the last.
        if member.name in members:
            yield Skipped(REPLACED)
        members[member.name] = member
    tree = _MemberTree(members, source.extensions)
    above = key_of(prefix)
    layout = labels.Layout()
    if tree.holds_image(""):
        layout = labels.find_layout(tree, source, above.rpartition("/")[2])
    yield from layout.notes
    shared = {n: getattr(blank, n) for n in ("uri", "mtime_ns", "spooled", "version")}
    for name, member in members.items():
        place = shared | member.place
        yield from labels.read_path(layout, source, name, place, above and f"{above}/")
    for path in layout.classes or ():
        if not tree.holds_image(path):
            yield Skipped(labels.EMPTY_CLASS_FOLDER, key_of(path.rstrip("/")))
    texts = {_key_and_ending(name)[0] for name in members if name.lower().endswith(".json")}
    images = (name for name in members if name.lower().endswith(source.extensions))
    if source.layout == "auto" and any(_key_and_ending(name)[0] in texts for name in images):
        yield Skipped(UNREAD_TEXTS, printable(blank.uri))


class _MemberTree:
    """The folders of an archive, as a `labels.Tree`."""

    def __init__(self, names: Iterable[str], extensions: tuple[str, ...]):
        self._names = sorted(names)
        self._levels = collections.defaultdict[str, Level](lambda: Level([], False, []))
        self._above_images = set[str]()
        for name in self._names:
            is_image = name.lower().endswith(extensions)
            folders = [*labels.above(name)]
            for path, below in itertools.pairwise(folders):
                known = self._levels[path].folders
                if (inner := below[len(path) : -1]) not in known[-1:]:  # names are sorted
                    known.append(inner)
            if is_image:
                self._levels[folders[-1]] = self._levels[folders[-1]]._replace(has_image=True)
                self._above_images.update(folders)
            else:
                self._levels[folders[-1]].others.append(name[len(folders[-1]) :])

    def level(self, path: str) -> Level:
        return self._levels[path]

    def holds_image(self, path: str) -> bool:
        return path in self._above_images

    def files(self, path: str) -> Iterator[str]:
        return (storage.name_of(name) for name in self._names if name.startswith(path))
