"""The steps of a small build without a runner, on storage whose operations can be disturbed."""

import contextlib
import dataclasses
import errno
import hashlib
import io
import itertools
import pathlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO
from unittest import mock

from beam_pipeline.columns.export import export_labels
from beam_pipeline.commit import staging as staging_folder
from beam_pipeline.commit.dataset import (
    CommitSpec,
    add_up,
    begin_commit,
    finish_commit,
    without_shards,
)
from beam_pipeline.commit.finalize import FinalizeTask, FinalShard, finalize_shard
from beam_pipeline.commit.transforms import summary_of
from beam_pipeline.options import ImageOptions, PlanOptions, ShardOptions
from beam_pipeline.planning.plan import ShardPlan
from beam_pipeline.planning.refs import ImageRef, ShardUnit
from beam_pipeline.shards.places import ShardPlaces
from beam_pipeline.shards.writer import write_shard
from imageshards import storage
from imageshards.manifest import MANIFEST_NAME, TRANSFORM_NAME
from imageshards.manifest.file import load_manifest
from imageshards.storage import AtomicFile
from imageshards.storage.base import Backend, Stat, replaced
from imageshards.storage.local import LocalBackend
from tests.support.builds import jpeg

CLASSES = ("ant", "bee", "cat")
_WRITES = {"write", "write_new", "upload", "copy", "link", "commit"}


class MemoryStore(Backend):
    """Objects with versions; each appears whole or not at all."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self._versions = itertools.count()

    def open_read(self, path: str, version: str = "") -> BinaryIO:
        if path not in self.objects:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return io.BytesIO(self.objects[path][0])

    def stat(self, path: str) -> Stat | None:
        if path not in self.objects:
            return None
        data, version = self.objects[path]
        return Stat(path, len(data), 0, str(version))

    def files_from(self, prefix: str) -> Iterator[Stat]:
        found = (self.stat(path) for path in sorted(self.objects) if path.startswith(prefix))
        yield from (stat for stat in found if stat)

    def write(self, path: str, data: bytes, version: str | None = "") -> Stat:
        found = self.stat(path)
        if version != "" and version != (found and found.version):
            raise replaced(path)
        self.objects[path] = (data, next(self._versions))
        return Stat(path, len(data), 0, str(self.objects[path][1]))

    def upload(self, local_path: str, path: str, version: str | None = "") -> Stat:
        return self.write(path, pathlib.Path(local_path).read_bytes(), version)

    def copy(self, source: str, target: str) -> None:
        with self.open_read(source) as file:
            self.write(target, file.read())

    def delete(self, paths: Iterable[str]) -> None:
        for path in list(paths):
            self.objects.pop(path, None)


@dataclasses.dataclass
class _Hooked:
    """A backend, or a class of files, that calls a hook before and after each operation."""

    backend: Any
    called: Callable[[bool], None]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)

        def call(*args: Any) -> Any:
            self.called(name in _WRITES)
            result = found(*args)
            self.called(False)
            return result

        return call if callable(found) else found


class Disturbed:
    """Storage in which something happens at one of its operations, counted from 0.

    `count` has the operations so far; the times before and after one are two.
    """

    def __init__(self) -> None:
        self.count = 0
        self._at, self._writes_only = -1, False
        self._act: Callable[[], None] = lambda: None

    def called(self, is_write: bool) -> None:
        """The hook of all backends, before (or after, then no write) each operation."""
        if self._writes_only and not is_write:
            return
        number, self.count = self.count, self.count + 1
        if number == self._at or (self._writes_only and number > self._at >= 0):
            if not self._writes_only:
                self._at = -1
            self._act()

    @contextlib.contextmanager
    def at(self, number, act, *, writes_only=False):
        """Calls `act` at an operation from now, or at a write and all that follow."""
        self.count, self._at, self._act, self._writes_only = 0, number, act, writes_only
        try:
            yield
        finally:
            self._at, self._writes_only = -1, False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Puts the hook into this machine's files and into a store `mem://`."""
        backends = {"": LocalBackend(), "mem": MemoryStore()}.items()
        hooked: Any = {scheme: _Hooked(backend, self.called) for scheme, backend in backends}
        file_class = _Hooked(types.SimpleNamespace(commit=AtomicFile.commit), self.called)
        with (
            mock.patch.dict(storage._backends, hooked),
            mock.patch.object(
                AtomicFile, "commit", lambda file, *version: file_class.commit(file, *version)
            ),
        ):
            yield


def fail(number: int = errno.EIO) -> Callable[[], None]:
    def act() -> None:
        raise OSError(number, "disturbed")

    return act


@dataclasses.dataclass
class Job:
    """A build, step by step, with an output here or in `mem://`."""

    output: str
    units: list[ShardUnit]
    overwrite: bool = False

    def begin(self) -> None:
        """What is done before a pipeline runs, and until all shards are written."""
        staging = storage.join(self.output, ".staging")
        state = staging_folder.read_output_state(self.output, staging)
        staging_folder.check_output(state, self.overwrite)
        job = staging_folder.prepare_staging(state)
        export_labels(CLASSES, storage.join(staging, TRANSFORM_NAME))
        self.places = places = ShardPlaces(output=self.output, staging=staging, job=job)
        options = ShardOptions(image=ImageOptions(8, 8), plan=PlanOptions({"train": 1.0}))
        for unit in self.units:
            write_shard(unit, places, options)
        counts = {("train", 0): sum(len(unit.refs) for unit in self.units)}
        self.plan = ShardPlan(CLASSES, counts, {"train": len(self.units)}, {})
        self.spec = CommitSpec(places, options, max_reject_fraction=1, report=False)
        paths = [places.final_path(unit.name) for unit in self.units]
        self.summary = add_up(summary_of(path, self.spec) for path in paths)

    def begin_commit(self) -> list[FinalizeTask]:
        return begin_commit(self.summary, self.plan, self.spec)

    def finalize(self, task: FinalizeTask) -> FinalShard:
        return finalize_shard(task, self.places)

    def finish(self, entries: Iterable[FinalShard]) -> str:
        return finish_commit(self.plan, entries, without_shards(self.summary), [], self.spec)

    def commit(self) -> None:
        self.finish([self.finalize(task) for task in self.begin_commit()])

    def run(self) -> None:
        self.begin()
        self.commit()
        staging_folder.remove(self.places.staging)


def make_units(photos: pathlib.Path, seed: int, shards: int = 3) -> list[ShardUnit]:
    """Shards of twelve pictures each, dealt as a plan does; five pictures of three are broken."""
    photos.mkdir(parents=True)
    dealt: list[list[ImageRef]] = [[] for _ in range(shards)]
    for number in range(12 * shards):
        name = CLASSES[number * len(CLASSES) // (12 * shards)]
        path = photos / f"{number:03d}.jpg"
        broken = number % shards == 0 and number % 4 == 0 or number in (1, 31)
        data = b"\xff\xd8 no picture %d" % number if broken else jpeg(seed + number, 9, 9)
        ref = ImageRef(path.name, str(path), name, "train", None, path.write_bytes(data), 1)
        dealt[number % shards].append(ref)
    ids = {name: place for place, name in enumerate(CLASSES)}
    return [ShardUnit("train", i, shards, ids, refs, {}) for i, refs in enumerate(dealt)]


def everything(output: str) -> dict[str, bytes]:
    found = (file.path for file in storage.files_below(output))
    return {path[len(output) + 1 :]: storage.read(path) for path in found}


def contents(output: str) -> dict[str, bytes]:
    """Every file of a dataset, without the staging folder."""
    found = everything(output).items()
    return {name: data for name, data in found if not name.startswith(".staging/")}


def restore(output: str, before: Mapping[str, bytes]) -> None:
    storage.delete_folder(output)
    for name, data in before.items():
        storage.write(storage.join(output, name), data)


def fingerprint_if_whole(folder: str) -> str | None:
    """The fingerprint of a dataset whose shards are all there; None where there is no manifest."""
    if not storage.exists(storage.join(folder, MANIFEST_NAME)):
        return None
    manifest = load_manifest(folder)
    for _, entry in manifest.shards():
        data = storage.read(storage.join(folder, entry.file))
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise ValueError(f"{folder}: {entry.file} is not what the manifest says")
    return manifest.fingerprint


def spreads(output: object) -> set[int]:
    """How much the shards of a split differ in records, and in records of each class."""
    made = load_manifest(str(output))
    columns = []
    for split in made.splits.values():
        columns.append([shard.num_records for shard in split.shards])
        for name in made.classes:
            columns.append([shard.classes.get(name, 0) for shard in split.shards])
    return {max(column) - min(column) for column in columns}
