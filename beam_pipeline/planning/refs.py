"""Defines references to images, their labels and classes, shards to write, and hashes of keys."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pickle
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from beam_pipeline.images.read import PICTURE, RECORD, WHOLE_FILE
from beam_pipeline.option_texts import invalid
from imageshards.errors import Arg, UserError
from imageshards.manifest import NONE, ONE, SEVERAL, FeatureSpec
from imageshards.storage import is_local
from imageshards.text import about_look_alikes, class_sort_key, printable

# Replaces the modification time of a file that was not found.
MISSING = -1

# Purposes of a hash: drawing a split, ranking images in a class, ordering the records of a shard,
# finding keys that occur twice, drawing a sample. Datasets depend on these values: a change moves
# every image.
SPLIT, RANK, ORDER, UNIQUE, SAMPLE = b"split", b"deal", b"place", b"unique", b"sample"

# Class name of an image, or several class names, or None.
Label = str | tuple[str, ...] | None


def names_of(label: Label | list[str]) -> tuple[str, ...]:
    return (label,) if isinstance(label, str) else tuple(label or ())


class ImageRef(NamedTuple):
    """Reference to a listed image, which may be a file or a range of bytes in a file.

        ImageRef("cat/1.jpg", "photos/cat/1.jpg", "cat")

    Attributes:
        key: Stable name: the path below the input's folder, or the id in a table.
        uri: Path or address of the file with the bytes: image, archive, Parquet file or shard.
        label: Class name as listed; a tuple of names, or None if images have no label.
        split: Split that the input gave; later the assigned split.
        group: Images of one group share a split; None if the key draws the split.
        size_bytes: Size when listed; -1 if unknown. For a record the size of its payload, for a
            member of a zip archive the compressed size.
        mtime_ns: Modification time when listed; 0 if unknown, `MISSING` if the file was not found.
            For a record the beginning of its shard's SHA-256. Resumed jobs compare size and time.
        columns: Extra columns: raw values as listed, later features of the record.
        offset_bytes: Where the bytes start in their file, including the framing of a record or the
            local header in a zip archive. `WHOLE_FILE` if the image is a whole file.
        source: Number of the input.
        source_bytes: Size of the original file of a record, if an index stores it.
        form: `PICTURE`, `ZIP_MEMBER` or `RECORD`.
        spooled: File with the bytes if `uri` cannot be read by ranges; else "".
        in_pixels: Whether sides of boxes in `columns` are in pixels, not between 0 and 1.
        box_labels: Label of each box in `columns`, if the labels of the image are those of its
            boxes; else ().
        sides: Sides of the boxes in `columns`, in the order of `BOX_FEATURES`, with digits that
            tensorflow-transform drops, as it has float32; () for tables.
        version: Version that `uri` must still have if the image is a range of it; "" for any.
    """

    key: str
    uri: str
    label: Label
    split: str | None = None
    group: str | None = None
    size_bytes: int = -1
    mtime_ns: int = 0
    columns: Mapping[str, Any] | None = None
    offset_bytes: int = WHOLE_FILE
    source: int = 0
    source_bytes: int | None = None
    form: str = PICTURE
    spooled: str = ""
    in_pixels: bool = False
    box_labels: tuple[str, ...] = ()
    sides: tuple[tuple[float, ...], ...] = ()
    version: str = ""

    @property
    def is_record(self) -> bool:
        """Whether the reference is to a record of a dataset."""
        return self.form == RECORD

    @property
    def path(self) -> str:
        """The file from which the bytes are read."""
        return self.spooled or self.uri

    @property
    def place(self) -> str:
        """The image for a message: its file, or its key and the file that contains the image."""
        return self.uri if self.offset_bytes == WHOLE_FILE else f"{self.key} of {self.uri}"


class RefBatch:
    """Batch of references that travels as one element, as a runner has costs per element.

        RefBatch([ImageRef("cat/1.jpg", "photos/cat/1.jpg", "cat")])

    Attributes:
        refs: The references, in no particular order.
    """

    __slots__ = ("refs",)

    def __init__(self, refs: list[ImageRef]):
        self.refs = refs

    def __len__(self) -> int:
        return len(self.refs)

    def __repr__(self) -> str:
        return f"RefBatch({len(self.refs)} refs)"

    def __getstate__(self) -> bytes:
        return pack_refs(self.refs)

    def __setstate__(self, packed: bytes) -> None:
        self.refs = unpack_refs(packed)


@dataclasses.dataclass(frozen=True)
class ShardUnit:
    """Unit of work: one shard, which is written completely or not at all.

    Attributes:
        split: Name of the split.
        index: Index of the shard in the split.
        num_shards: Shards of the split.
        class_ids: Label → number in the records, for the labels of this shard.
        refs: The images of the shard, in the order of the records.
        features: Extra features of the records, as the manifest declares them; the index of the
            shard has a column for each. None if the shard gets no index.
    """

    split: str
    index: int
    num_shards: int
    class_ids: dict[str, int]
    refs: list[ImageRef]
    features: dict[str, FeatureSpec] | None = None

    @property
    def name(self) -> str:
        """Unique name of the shard, the stem of its file."""
        return f"{self.split}-{self.index:05d}-of-{self.num_shards:05d}"

    # Units cross a shuffle or wait for a local process, so their references are packed.

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"refs": pack_refs(self.refs)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, refs=unpack_refs(state["refs"]))


def pack_refs(refs: Sequence[ImageRef]) -> bytes:
    # References cross several shuffles and wait in the pool of processes. Names repeat, and most
    # URIs are a folder and the key: this is a quarter of a pickled list, in 1 µs a reference.
    columns = tuple(zip(*refs, strict=True))
    return zlib.compress(pickle.dumps(columns, protocol=5), level=1) if refs else b""


def unpack_refs(packed: bytes) -> list[ImageRef]:
    if not packed:
        return []
    # Does what `ImageRef._make` does, without its check, in a third of the time.
    as_ref = functools.partial(tuple.__new__, ImageRef)
    return list(map(as_ref, zip(*pickle.loads(zlib.decompress(packed)), strict=True)))


class KeyHasher:
    """Salted, stable 128-bit hashes of keys (BLAKE2b, RFC 7693), independent for each purpose."""

    def __init__(self, salt: str, purpose: bytes = RANK):
        # The split of an image must not depend on the hash that gives its rank or its position.
        key = hashlib.blake2b(salt.encode(), digest_size=32).digest()
        self._empty = hashlib.blake2b(digest_size=16, key=key, person=purpose)

    def __call__(self, text: str) -> bytes:
        state = self._empty.copy()
        state.update(text.encode("utf-8", "surrogatepass"))
        return state.digest()


class ClassOrder(NamedTuple):
    """Order of the classes, which decides their ids."""

    # The order that the user gave. Classes without an image keep their id.
    class_names: tuple[str, ...] | None = None
    # The order of the dataset that is being rebuilt. New labels follow, sorted by `class_sort_key`,
    # so that no old class gets a new id.
    pinned: tuple[str, ...] = ()

    def names(self, labels: Iterable[str]) -> list[str]:
        """Returns the class names by id, for labels that `distinct_labels` has checked."""
        if self.class_names is not None:
            return list(self.class_names)
        return [*self.pinned, *sorted(set(labels).difference(self.pinned), key=class_sort_key)]


def distinct_labels(batch: RefBatch, class_names: Sequence[str] | None) -> set[str]:
    """Returns the labels of a batch, after checking each once.

    Raises `UserError` with the key of an image if a label is blank, has a line break, is no valid
    text or is missing in `class_names`.
    """
    # Reversed, so that the error names the first image with the label.
    keys = {name: ref.key for ref in reversed(batch.refs) for name in names_of(ref.label)}
    for label, key in sorted(keys.items()):
        if not label.strip() or {"\n", "\r"} & set(label) or printable(label) != label:
            problem = f"the label {label!r} of {key!r} cannot name a class"
            expected = "text on one line that is not blank"
            raise UserError(problem, expected=expected, remedy="rename it")
        if class_names is not None and label not in class_names:
            known = ", ".join(repr(name) for name in class_names[:5])
            more = ", …" if len(class_names) > 5 else ""
            alike = about_look_alikes(label, class_names)
            raise invalid(
                "class_names",
                f"names without {label!r}{alike}, the label of {key!r}",
                f"one of the labels {known}{more}",
                "add the class, rename it by "
                + Arg("class_map")
                + ", or leave the image out by "
                + Arg("exclude"),
            )
    return set(keys)


def label_kind(label: Label) -> str:
    """Returns how many labels an image with this label has: `ONE`, `NONE` or `SEVERAL`."""
    return ONE if isinstance(label, str) else NONE if label is None else SEVERAL


HOW_PATHS_ARE_READ = (
    "paths in an image table are relative to the folder of the table's file, or to "
    + Arg("image_root")
    + ": fix the paths, or name the folder"
)
_WINDOWS_DRIVE = re.compile(r"[A-Za-z]:(\\|$)")


def why_missing(uri: str) -> str:
    """Returns the path for an error; for a local path also the first part that does not exist."""
    if not is_local(uri):
        return repr(uri)
    folder = os.path.dirname(uri)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    first, *behind = os.path.relpath(uri, folder).split("/")
    if _WINDOWS_DRIVE.match(first):
        return f"{uri!r} ({first!r} is an absolute path of Windows: write it relative to the table)"
    return f"{uri!r} (the folder {folder!r} has no {'folder ' if behind else ''}{first!r})"
