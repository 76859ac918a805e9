"""Turns the images of an archive into references, labelled as in an unpacked folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from beam_pipeline.inputs import labels
from beam_pipeline.inputs.archives import webdataset
from beam_pipeline.inputs.archives.members import Member, open_archive, without_wrapper
from beam_pipeline.inputs.folders import PathFilter, Skipped
from beam_pipeline.inputs.labels import is_split
from beam_pipeline.inputs.layout import wrong_input
from beam_pipeline.inputs.spool import decompressed, spool_tar
from beam_pipeline.inputs.tables.schema import TableSchema
from beam_pipeline.options import InputOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.manifest import NONE
from imageshards.text import composed, key_of

# Archives like `photos-0001` are more likely parts of a dataset than classes.
_PART = re.compile(r"[-_.]\d+$")

# The name of a member → its split and its class folder.
_Place = Callable[[str], tuple[str | None, str | None]]


def archive_refs(
    path: str, prefix: str, source: InputOptions, schema: TableSchema | None, spool: str
) -> Iterator[ImageRef | Skipped]:
    """Yields the references of an archive, and a `Skipped` for each member passed over.

    Args:
        path: The archive.
        prefix: Beginning of the keys; "" for the only archive of an input.
        source: The input.
        schema: The columns of WebDataset archives; None for plain archives.
        spool: Folder for the contents of compressed archives.

    Raises:
        UserError: The archive cannot be read to its end, or an image has no label.
    """
    found = storage.stat(path)
    if found is None:
        expected = "an archive (.tar, .zip, .tar.gz)"
        raise wrong_input(path, "which is no file", expected, "fix the path")
    spooled = spool_tar(found, spool) if decompressed(path) else ""
    blank = ImageRef("", path, None, mtime_ns=found.mtime_ns, spooled=spooled)
    with open_archive(path, spooled) as archive:
        if schema is not None:
            yield from webdataset.read_refs(archive, source, schema, prefix, blank)
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
    images = [m for m in members.values() if m.name.lower().endswith(source.extensions)]
    others = [m for m in members.values() if not m.name.lower().endswith(source.extensions)]
    for other in others:
        yield from labels.no_image(other.name)
    yield from _members_in_folders(prefix, source, images, others, blank)


def _members_in_folders(
    prefix: str,
    source: InputOptions,
    images: Sequence[Member],
    others: Sequence[Member],
    blank: ImageRef,
) -> Iterator[ImageRef | Skipped]:
    regex = re.compile(composed(source.label_regex)) if source.label_regex else None
    in_folders = regex is None and source.label != NONE
    start = without_wrapper([m.name for m in images], is_split) if in_folders else 0
    wrapper = images[0].name[:start] if images else ""
    names = [member.name[start:] for member in images]
    place = _folder_place(prefix, source, names) if in_folders else None
    if place is not None:
        _check_no_masks(source, names, place)
        if _PART.search(prefix) and not any("/" in name for name in names):
            yield Skipped(labels.PART_AS_CLASS, prefix)
    of_labels: set[str] = set()
    for member, name in zip(images, names, strict=True):
        key = key_of("/".join(filter(None, (prefix, name))))
        if place is None:
            label, split, group = labels.labels_by_name(source, regex, key.rpartition("/")[2], key)
        else:
            split, folder = place(name)
            if folder is None:
                yield Skipped("outside_class_folders")
                continue
            of_labels.add(folder)
            label, group = labels.cut_label(folder, source), None
        yield blank._replace(
            key=key, label=label, split=split, group=group, size_bytes=member.size_bytes,
            offset_bytes=member.offset_bytes, form=member.form,
        )  # fmt: skip
    if place is not None:
        beside = [member.name[start:] for member in others if member.name.startswith(wrapper)]
        folders = {folder for _, folder in map(place, beside) if folder}
        for name in sorted(folders - of_labels):
            yield Skipped(labels.EMPTY_CLASS_FOLDER, name)


def _check_no_masks(source: InputOptions, names: Sequence[str], place: _Place) -> None:
    stems: dict[str | None, dict[str, set[str]]] = {}
    for name in names:
        split, folder = place(name)
        if folder is not None:
            stem = name.rpartition("/")[2].partition(".")[0]
            stems.setdefault(split, {}).setdefault(folder, set()).add(stem)
    for of_split in stems.values():
        labels.check_masks(source, {folder: found.copy for folder, found in of_split.items()})


def _folder_place(prefix: str, source: InputOptions, names: Sequence[str]) -> _Place:
    """Returns a function from the name of a member to its (split, class), by the member's folders.

    An archive among several counts as a folder: a split if it has the name of a split, a class if
    it holds no folders. The class of a member outside of class folders is None.
    """
    above, _, stem = key_of(prefix).rpartition("/")
    top = sorted({name.partition("/")[0] for name in names if "/" in name})
    if not top:
        if not stem and names:
            raise labels.no_class_folder(source)
        in_split = above.rpartition("/")[2]
        of_all = in_split if is_split(in_split) else None, stem
        return lambda name: of_all
    # An archive with folders may have the name of its split.
    layout = source.layout
    if layout not in ("class_folders", "split_folders"):
        nested = any(name.count("/") > 1 and is_split(name.partition("/")[0]) for name in names)
        layout = labels.layout_by_names(source.input, top, nested)
    by_name = stem if is_split(stem) else None

    def place(name: str) -> tuple[str | None, str | None]:
        first, second, *_ = *map(key_of, name.split("/")[:-1]), None, None
        return (by_name, first) if layout == "class_folders" else (first, second)

    return place
