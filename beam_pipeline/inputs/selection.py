"""Leaves out images and classes, renames classes, and refuses keys that occur more than once.

Only 8-byte hashes of keys are shuffled. A second pass finds the keys and images of equal hashes.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam import pvalue
from apache_beam.utils.shared import Shared

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.inputs.folders import EXCLUDED_BY_GLOB, Skipped
from beam_pipeline.option_texts import invalid
from beam_pipeline.planning.refs import UNIQUE, ImageRef, KeyHasher, Label, RefBatch, names_of
from imageshards import storage
from imageshards.errors import Arg
from imageshards.index import read_index
from imageshards.manifest import BOX_CLASS_FEATURE, MANIFEST_NAME, OBJECT_PREFIX
from imageshards.manifest.file import load_manifest
from imageshards.text import about_look_alikes, class_sort_key, counted

# Reasons of images that --exclude and --drop_class leave out.
EXCLUDED, DROPPED = "excluded", "dropped_class"
# File with the keys of --exclude, in the staging folder.
_EXCLUDED_NAME = "excluded.keys"


class KeysFile(NamedTuple):
    """The path of a file with the keys of --exclude, which every worker can read."""

    path: str

    def by_value(self) -> dict[str, list[str]]:
        """Reads the file: each value of --exclude → its keys."""
        found: dict[str, list[str]] = json.loads(storage.read(self.path))
        return found

    def keys(self) -> frozenset[str]:
        """Reads all keys from the file."""
        return frozenset(itertools.chain.from_iterable(self.by_value().values()))


def share_keys(given: Iterable[str], folder: str) -> KeysFile:
    """Writes the keys that `read_keys` reads to the folder of the unfinished build."""
    # There may be too many keys for a graph, so workers read them from a file.
    path = storage.join(folder, _EXCLUDED_NAME)
    storage.write(path, json.dumps({each: read_keys(each) for each in given}))
    return KeysFile(path)


def read_keys(path: str) -> list[str]:
    """Returns the sorted keys in a text file with a key on each line, or of a dataset."""
    try:
        if storage.exists(storage.join(path, MANIFEST_NAME)):
            manifest = load_manifest(path, "exclude", adopted=False)
            index = read_index(path, manifest, columns=["key"], argument="exclude")
            keys = index["key"].to_pylist()
        else:
            text = storage.read(path).decode("utf-8-sig")
            # `splitlines()` would cut keys that contain U+2028 or a similar character.
            keys = [line for line in (e.rstrip("\r") for e in text.split("\n")) if line.strip()]
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or str(e)
        received = f"{path!r}, which cannot be read ({reason})"
        expected = "a text file with a key on each line, or a dataset"
        raise invalid("exclude", received, expected) from e
    if not keys:
        received = f"{path!r}, which names no key"
        raise invalid("exclude", received, "a key on each line")
    return sorted(set(keys))


class Selected(NamedTuple):
    """Collections that `SelectImages` returns.

    Attributes:
        batches: `RefBatch`es of the images that are taken.
        skipped: Dicts to be added up: reason → images that are left out.
        checked: Collections that are complete when every key and class of the options was found.
    """

    batches: beam.PCollection[RefBatch]
    skipped: tuple[beam.PCollection[dict[str, int]], ...]
    checked: tuple[beam.PCollection, ...]


class SelectImages(beam.PTransform):
    """Transform that leaves images out and renames classes.

        selected = listed.batches | SelectImages(class_map={"kitten": "cat"})
        selected.batches | AssignSplits(options)

    Args:
        excluded: Keys of images that are left out; None for none.
        class_map: Class → new class of its images.
        drop_class: Classes that are left out, by their names before they are renamed.

    Raises:
        UserError: While running: no image has a given key, or no class has a given name.
    """

    def __init__(
        self,
        excluded: KeysFile | None = None,
        class_map: Mapping[str, str] | None = None,
        drop_class: Iterable[str] = (),
    ):
        super().__init__()
        self._excluded = excluded
        self._class_map = dict(class_map or {})
        self._dropped = frozenset(drop_class)

    def expand(self, batches: beam.PCollection[RefBatch]) -> Selected:
        skipped, checked = [], []
        stores = StoreConfig.of_pipeline(batches)
        if self._class_map or self._dropped:
            # The checks must see the labels of all images before they are renamed.
            labels = batches | "ListedLabels" >> beam.FlatMap(
                lambda batch: {name for ref in batch.refs for name in names_of(ref.label)}
            )
            check = Check(check_classes, [*self._class_map], sorted(self._dropped))
            checked.append(labels | "CheckClassMap" >> check)
        if self._excluded is not None:
            exclude = beam.ParDo(_ExcludeFn(self._excluded, stores))
            split = batches | "Exclude" >> exclude.with_outputs("skipped", "found", main="batches")
            batches = split.batches
            skipped.append(split.skipped)
            checked.append(split.found | "CheckExcluded" >> Check(check_excluded, self._excluded))
        if self._dropped:
            drop = beam.FlatMap(drop_classes, self._dropped)
            kept = batches | "DropClasses" >> drop.with_outputs("skipped", main="batches")
            batches = kept.batches
            skipped.append(kept.skipped)
        if self._class_map:
            batches = batches | "RenameClasses" >> beam.Map(rename_classes, self._class_map)
        return Selected(batches, tuple(skipped), tuple(checked))


@beam.ptransform_fn
def Check(found: beam.PCollection, check: Callable[..., str], *given: Any) -> beam.PCollection[str]:
    """Calls `check` with the set of all elements, also of none; it raises `UserError`."""
    step = StoreConfig.of_pipeline(found).step(check)
    union = found | "Union" >> beam.CombineGlobally(beam.combiners.ToSetCombineFn())
    return union | "Check" >> beam.Map(step, *given)


def rename_classes(batch: RefBatch, class_map: Mapping[str, str]) -> RefBatch:
    """Returns a batch with the new classes of its images."""

    def renamed(label: Label) -> Label:
        if isinstance(label, str):
            return class_map.get(label, label)
        return label and tuple(sorted({class_map.get(name, name) for name in label}))

    def of(ref: ImageRef) -> ImageRef:
        of_boxes = tuple(class_map.get(name, name) for name in ref.box_labels)
        columns = dict(ref.columns or {})
        if BOX_CLASS_FEATURE in columns:
            columns[BOX_CLASS_FEATURE] = [class_map.get(n, n) for n in columns[BOX_CLASS_FEATURE]]
        label = renamed(ref.label)
        return ref._replace(label=label, columns=columns or None, box_labels=of_boxes)

    return RefBatch([*map(of, batch.refs)])


def drop_classes(batch: RefBatch, dropped: Collection[str]) -> Iterator[Any]:
    """Yields a batch without some classes, and the number of images left out as `skipped`."""
    kept = []
    for ref in batch.refs:
        names = names_of(ref.label)
        left = tuple(name for name in names if name not in dropped)
        if left == names:
            kept.append(ref)
        elif left:
            stay = [name not in dropped for name in ref.box_labels]
            columns = dict(ref.columns or {})
            for name in filter(lambda name: stay and name.startswith(OBJECT_PREFIX), columns):
                columns[name] = [*itertools.compress(columns[name], stay)]
            boxes = tuple(itertools.compress(ref.box_labels, stay))
            sides = tuple(tuple(itertools.compress(side, stay)) for side in ref.sides)
            new = ref._replace(label=left, columns=columns or None, box_labels=boxes)
            kept.append(new._replace(sides=sides))
    if kept:
        yield RefBatch(kept)
    if len(kept) < len(batch):
        yield pvalue.TaggedOutput("skipped", {DROPPED: len(batch) - len(kept)})


def check_classes(labels: Iterable[str], renamed: Sequence[str], dropped: Sequence[str]) -> str:
    """Raises `UserError` with similar names if a class to rename or to drop does not exist."""
    classes = sorted(labels, key=class_sort_key)
    unknown = [name for name in (*renamed, *dropped) if name not in classes]
    if unknown:
        argument = "class_map" if unknown[0] in renamed else "drop_class"
        near = difflib.get_close_matches(unknown[0], classes, n=3) or classes[:5]
        more = ", …" if len(near) < len(classes) else ""
        alike = about_look_alikes(unknown[0], classes)
        received = f"the class {unknown[0]!r}{alike}, which no " + Arg("input") + " has"
        raise invalid(argument, received, f"one of {', '.join(map(repr, near))}{more}")
    return "checked"


class _ExcludeFn(beam.DoFn):
    """Function that splits a `RefBatch` into kept images, counts and keys of images left out."""

    def __init__(self, excluded: KeysFile, stores: StoreConfig):
        self._read = stores.step(excluded.keys)
        # All threads of a worker share one set of keys, as there may be many.
        self._shared = Shared()

    def setup(self) -> None:
        self._keys = self._shared.acquire(self._read)

    def process(self, batch: RefBatch) -> Iterator[Any]:
        left = [ref for ref in batch.refs if ref.key not in self._keys]
        if left:
            yield RefBatch(left)
        if len(left) < len(batch):
            yield pvalue.TaggedOutput("skipped", {EXCLUDED: len(batch) - len(left)})
            found = {ref.key for ref in batch.refs if ref.key in self._keys}
            yield from (pvalue.TaggedOutput("found", key) for key in found)


def check_globs(found: Iterable[str], globs: Iterable[str]) -> str:
    """Raises `UserError` if a glob leaves nothing out; `found` are the texts of `Skipped`s."""
    absent = [glob for glob in globs if str(Skipped(EXCLUDED_BY_GLOB, glob)) not in found]
    if absent:
        received = f"{absent[0]!r}, which matches no file and no folder of " + Arg("input")
        expected = "a glob without a slash such as '*_small.jpg', or one of the path below "
        raise invalid(
            "exclude_glob",
            received + " that the other globs leave",
            expected + Arg("input") + " such as 'cat/old'",
            "fix or remove it",
        )
    return "checked"


def check_excluded(found: set[str], excluded: KeysFile) -> str:
    """Raises `UserError` if a key to exclude was not found."""
    for given, keys in excluded.by_value().items():
        if not (absent := {*keys} - found):
            continue
        count = f"{len(absent):,} of {counted(len(keys), 'key')}"
        received = f"{given!r} with {count} that no " + Arg("input") + " has, "
        raise invalid(
            "exclude",
            received + f"{min(absent)!r} among them",
            "paths of images below the input's folder, or keys of the image table",
            "fix or remove them",
        )
    return "checked"


# Workers compare so many parts of the hashes in parallel; of 100 million images one part is 50 MB.
NUM_BUCKETS = 16
# Equal hashes of a bucket that are looked up. A single duplicate is enough to refuse a build.
MAX_SUSPECTS = 4


def hash_keys(batch: RefBatch) -> np.ndarray:
    """Returns the 64-bit hashes of the keys of a batch."""
    hasher = KeyHasher("", UNIQUE)
    return np.frombuffer(b"".join(hasher(ref.key)[:8] for ref in batch.refs), "<i8")


def bucketed_hashes(batch: RefBatch) -> Iterator[tuple[int, bytes]]:
    """Yields (bucket, hashes as bytes), with at most two hashes of each key."""
    hashes, counts = np.unique(hash_keys(batch), return_counts=True)
    # Two are enough to show that a key occurs more than once.
    hashes = np.repeat(hashes, np.minimum(counts, 2))
    for bucket in range(NUM_BUCKETS):
        if (cut := hashes[hashes % NUM_BUCKETS == bucket]).size:
            yield bucket, cut.tobytes()


def equal_hashes(found: Iterable[bytes]) -> list[int]:
    """Returns the smallest hashes that occur more than once in some packed arrays."""
    hashes = np.sort(np.frombuffer(b"".join(found), "<i8"))
    equal = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    return [int(each) for each in equal[:MAX_SUSPECTS]]


def images_with_hashes(batch: RefBatch, suspects: list[int]) -> Iterator[tuple[str, list[str]]]:
    """Yields (key, [place]) of the images whose key has a suspect hash."""
    if not suspects:
        return
    wanted = np.isin(hash_keys(batch), np.array(suspects, "<i8"))
    yield from ((ref.key, [ref.place]) for ref in itertools.compress(batch.refs, wanted))


def first_two(found: Iterable[list[str]]) -> list[str]:
    """Returns the two smallest of some URIs."""
    # A wrong --key_column may give all images one key, so the combiner keeps only two of them.
    return sorted(uri for uris in found for uri in uris)[:2]


def refuse(key: str, uris: list[str]) -> tuple[()]:
    """Raises `UserError` with both images of a key that occurs twice."""
    if len(uris) == 1:
        return ()  # the key has the same hash as a different key
    one, other = uris
    remedy = "of rows, say " + Arg("key_column", "none") + ", which numbers them, name a unique "
    remedy += "column by " + Arg("key_column") + ", or put all labels and boxes of an image into "
    remedy += "one row; if two inputs have a key, first copy one of them without it (imageshards "
    remedy += "build --input ONE --exclude KEYS --output ANOTHER)"
    received = f"the key {key!r} twice, for {one!r} and {other!r}"
    raise invalid("input", received, "unique keys", remedy)


class RefuseDuplicateKeys(beam.PTransform):
    """Transform from `RefBatch`es to nothing, which completes when no key occurs twice.

        checked = listed.batches | RefuseDuplicateKeys()
        files | CommitShards(spec, planned.plan, skipped, after=(checked,))

    Raises:
        UserError: While running: a key occurs twice. The message names both images.
    """

    def expand(self, batches: beam.PCollection[RefBatch]) -> beam.PCollection:
        suspects = (
            batches
            | "HashKeys" >> beam.FlatMap(bucketed_hashes).with_output_types(tuple[int, bytes])
            | "GroupHashes" >> beam.GroupByKey()
            | "EqualHashes" >> beam.FlatMapTuple(lambda _, found: equal_hashes(found))
        )  # a hash that two keys share; usually the collection is empty
        stores = StoreConfig.of_pipeline(batches)  # says whether an error names flags
        return (
            batches
            | "NameSuspects"
            >> beam.FlatMap(images_with_hashes, pvalue.AsList(suspects)).with_output_types(
                tuple[str, list[str]]
            )
            | "FirstTwo" >> beam.CombinePerKey(first_two)
            | "Refuse" >> beam.FlatMapTuple(stores.step(refuse))
        )
