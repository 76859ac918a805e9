"""How shards are written, and where: plain values, which a process that has no Beam can use."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from types import TracebackType

from beam_pipeline.options import ImageOptions, UrlOptions
from beam_pipeline.planning.refs import ShardUnit
from imageshards import storage
from imageshards.tfrecord import frame_record

# Records are small: one write to the file for some fifty of them.
BUFFER_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteSpec:
    """What a process must know to write a shard.

    Attributes:
        output: Folder of the final shards.
        first_name, name_format, suffix: A file is called first name + split + filled-in format +
            suffix.
        staging: Folder of what is known of finished shards, and of shards until the commit.
        finished: Folder for the shards themselves until then.
        image: How pictures are encoded.
        urls: How images at http:// and https:// addresses are fetched.
        damage: What becomes of JPEGs that libjpeg warns about, `count`, `reject`, or empty.
        keeps_rejects: Whether there is a file of the rejected images beside each result.
        quarantine_bytes: Whether it holds their original bytes.
        versions: (library, version) pairs that the bytes depend on.
        run_id: Of this run: a result of another was written by an earlier one.
    """

    output: str
    first_name: str
    name_format: str
    suffix: str
    staging: str
    finished: str
    image: ImageOptions
    urls: UrlOptions
    damage: str
    keeps_rejects: bool
    quarantine_bytes: bool
    versions: tuple[tuple[str, str], ...]
    run_id: str

    def staged_in(self, folder: str) -> WriteSpec:
        """The same with another folder for what is not finished."""
        return dataclasses.replace(self, staging=folder, finished=self.finished or folder)

    def shard_name(self, unit: ShardUnit) -> str:
        """Name of a shard: its split and the filled-in template.

        Raises:
            ValueError: The template gives all shards of the split one name.
        """
        if unit.num_shards > 1 and "%(shard_num)" not in self.name_format:
            raise ValueError(
                f"shard_name_template received {self.name_format!r} for the {unit.num_shards} "
                f"shards of split {unit.split!r}; expected an S in it, as in '-SSSSS-of-NNNNN', or "
                "one shard a split."
            )
        shards = {"shard_num": unit.index, "num_shards": unit.num_shards}
        return unit.split + self.name_format % shards

    def file_of(self, name: str) -> str:
        """Name of the file of the shard `name`."""
        return f"{self.first_name}{name}{self.suffix}"

    def name_of(self, path: str) -> str:
        """Name of the shard whose final path this is."""
        file = storage.name_of(path)
        return file[len(self.first_name) : len(file) - len(self.suffix)]

    def staged_path(self, name: str) -> str:
        """Where a shard waits for the commit, and the originals of what it rewrites."""
        return storage.join(self.staging, self.file_of(name))

    def written_path(self, name: str) -> str:
        """Where the shard `name` is written."""
        return storage.join(self.finished, self.file_of(name))

    def final_path(self, name: str) -> str:
        """Where the shard `name` is when it is committed."""
        return storage.join(self.output, self.file_of(name))

    def result_path(self, name: str) -> str:
        """Where its `ShardResult` is kept; there only when the shard is finished."""
        return storage.join(self.staging, name + ".json")

    def rejects_path(self, name: str) -> str:
        """Where its rejected images are kept, as records."""
        return storage.join(self.staging, name + ".rejects")


class RecordFile:
    """A local file of framed records, hashed on the way; TensorFlow reads it, as it does Beam's.

    Args:
        path: Local.
    """

    def __init__(self, path: str):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._file = open(path, "wb", BUFFER_BYTES)  # closed by `__exit__`
        self._hash = hashlib.sha256()
        self.num_bytes = 0

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, payload: bytes) -> None:
        """Frames and writes one record."""
        data = frame_record(payload)
        self._file.write(data)
        self._hash.update(data)
        self.num_bytes += len(data)

    def hexdigest(self) -> str:
        """SHA-256 of all of it, when it is closed."""
        return self._hash.hexdigest()
