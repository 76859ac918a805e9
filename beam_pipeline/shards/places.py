"""Where shards lie: plain values, which need no Beam."""

from __future__ import annotations

import dataclasses

import msgspec

from beam_pipeline.planning.refs import ShardUnit
from imageshards import storage
from imageshards.errors import LeaseLostError
from imageshards.index import index_file
from imageshards.manifest import QUARANTINE_NAME
from imageshards.typed import decode

# In the staging folder: written when a job begins. A job owns the output while its id is there.
JOB_NAME = "job.json"


class JobNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What `JOB_NAME` records.

    Attributes:
        id: A random id of the job.
        digest: Of the options of its build.
        in_place: Whether finished shards may be written where they will be.
        pinned_classes: Classes, by id, of the dataset that is being replaced.
    """

    id: str = ""
    digest: str = ""
    in_place: bool = True
    pinned_classes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlaces:
    """Names of shards, and the folders they pass through.

    A shard is *staged* while its file is in the staging folder, and *final* when it is in the
    output under the same name. It is *finished* as soon as its result is beside it, a file in the
    staging folder that is written last. Finished shards are staged until the commit makes them
    final. A store cannot rename, so there shards may be written to the output at once; then only
    what the commit is about to rewrite is staged, as a copy.

    Attributes:
        output: Folder of final shards.
        staging: Folder of results, indexes, rejects and staged shards.
        finished: Folder that finished shards are written to; default: `staging`.
        job: Id of the job in `JOB_NAME`; "" for a pipeline that has no such file.
        first_name, name_format, suffix: A file is called first name + split + filled-in format +
            suffix.
    """

    output: str
    staging: str
    finished: str = ""
    job: str = ""
    first_name: str = ""
    name_format: str = "-%(shard_num)05d-of-%(num_shards)05d"
    suffix: str = ".tfrecord"

    def check_job(self) -> None:
        """Checks that this job still owns the output; each step that publishes begins with it.

        Raises:
            LeaseLostError: Another build of this output has begun since, or has ended.
        """
        if not self.job:
            return
        try:
            found = decode(storage.read(storage.join(self.staging, JOB_NAME)), JobNotes).id
        except (FileNotFoundError, ValueError):
            found = ""
        if found != self.job:
            raise LeaseLostError(
                argument="output",
                received=f"{self.output!r}, which was taken over by another build, so this one "
                "stops and publishes nothing",
                remedy="cancel this job if its runner still shows it",
            )

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
        """Where the shard `name` is while it is staged."""
        return storage.join(self.staging, self.file_of(name))

    def finished_path(self, name: str) -> str:
        """Where it is written."""
        return storage.join(self.finished or self.staging, self.file_of(name))

    def final_path(self, name: str) -> str:
        """Where it is when it is committed."""
        return storage.join(self.output, self.file_of(name))

    def result_path(self, name: str) -> str:
        """Where its `ShardResult` is when it is finished."""
        return storage.join(self.staging, name + ".json")

    def index_path(self, name: str) -> str:
        """Where the index of its records is, as they were written."""
        return storage.join(self.staging, index_file(self.file_of(name)))

    def rejects_path(self, name: str) -> str:
        """Where its rejected images are, as records; there is no file without any."""
        return storage.join(self.staging, name + ".rejects")

    def quarantine_path(self, name: str) -> str:
        """Where they are in the end."""
        file = f"{self.first_name}{name}.tfrecord"
        return storage.join(self.output, QUARANTINE_NAME, file)
